"""Verbs of ``hydragnn-hpo ensemble`` that look at a file, or make a smaller one of it."""
