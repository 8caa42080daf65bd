"""The loop that decides, and what it works with."""
