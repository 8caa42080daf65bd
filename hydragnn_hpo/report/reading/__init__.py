"""What a run directory holds, read once for everything that shows it."""
