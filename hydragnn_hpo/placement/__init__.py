"""What trials cost, and where and how wide they run; pure functions."""
