"""Which searched parameters mattered, and for what."""
