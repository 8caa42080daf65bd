"""The journal, and all that is read out of it."""
