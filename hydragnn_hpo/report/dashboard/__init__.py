"""A report that keeps up with its campaign, for one person on this computer."""
