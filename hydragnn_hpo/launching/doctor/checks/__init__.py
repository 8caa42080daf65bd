"""What is judged: pure functions from facts of all hosts to findings, a file for each subject."""
