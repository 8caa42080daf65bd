"""Campaigns side by side."""
