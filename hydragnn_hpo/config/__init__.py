"""Settings without torch: schemas, capabilities and cost formulas. Mirrors the floors."""
