"""Passes over the edges: what convs send and sum, each by eager torch and by compiled loops."""
