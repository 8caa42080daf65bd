"""Ranks and hosts that share the work of predicting, without knowing each other."""
