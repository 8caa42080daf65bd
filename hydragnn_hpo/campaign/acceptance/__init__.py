"""What a site runs once before it trusts us, see README.md."""
