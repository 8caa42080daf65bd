"""A first campaign for a card, of a size that fits the time that somebody has."""
