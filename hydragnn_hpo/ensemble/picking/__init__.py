"""Which new structures are worth a label: uncertain ones, and not all alike."""
