"""What is seen of a training while it runs, and what ends it early."""
