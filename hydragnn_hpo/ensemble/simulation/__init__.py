"""Relaxing and moving atoms with an ensemble: the ASE calculator, and when to stop."""
