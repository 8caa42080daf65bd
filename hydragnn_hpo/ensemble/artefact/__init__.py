"""One file that travels: what is in it, writing it, reading it without running anything."""
