"""Brains: who proposes the next trials, and what a searched space means."""
