"""What is to be known of one host, and done on it, without torch."""
