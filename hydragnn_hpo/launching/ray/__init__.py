"""Jobs on a Ray cluster, see README.md; nothing else in the house knows Ray."""
