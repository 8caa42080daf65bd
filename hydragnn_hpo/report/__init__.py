"""Figures that a run leaves behind."""
