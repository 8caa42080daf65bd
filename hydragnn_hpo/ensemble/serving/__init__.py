"""An ensemble as an HTTP service: one token, hard limits, one thread that predicts."""
