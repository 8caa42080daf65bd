"""The ranks of one trial: how they meet, and how they share one model."""
