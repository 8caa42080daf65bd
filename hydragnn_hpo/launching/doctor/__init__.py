"""What is right and wrong with the hosts that we hold, see README.md."""
