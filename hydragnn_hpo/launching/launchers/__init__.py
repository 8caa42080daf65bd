"""A launcher for every job, where ranks need a PMI."""
