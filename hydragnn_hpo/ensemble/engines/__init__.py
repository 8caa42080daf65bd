"""Ways to run the members: compiled, stacked, side by side on a GPU."""
