"""Batch jobs: their scripts, their records, and how one follows another. See README.md."""
