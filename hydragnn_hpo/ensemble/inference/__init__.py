"""Predicting with all members: graphs built once, moments streamed."""
