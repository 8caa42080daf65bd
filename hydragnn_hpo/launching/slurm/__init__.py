"""Agents on the hosts of a Slurm allocation, see README.md one floor up."""
