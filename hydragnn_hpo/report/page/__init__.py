"""One self-contained HTML file, whatever is on it."""
