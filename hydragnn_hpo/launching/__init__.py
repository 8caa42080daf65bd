"""Run jobs: slots, jobs and events (``job``), and the backends that run them.

Knows floor 0 only and never imports torch; ``local`` runs jobs on this computer.
"""
