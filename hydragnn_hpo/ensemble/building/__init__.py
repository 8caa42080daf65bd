"""From the trials of a run to one ensemble."""
