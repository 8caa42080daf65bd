"""What the counters of a host say: one file per source of numbers, all in ``sources.SOURCES``."""
