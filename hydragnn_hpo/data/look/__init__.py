"""A first look at files that nobody has described yet: what a card of them would say, and why."""
