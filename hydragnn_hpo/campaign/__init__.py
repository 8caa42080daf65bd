"""The campaign: journal, state, and the loop that asks, places, watches and tells."""
