"""What the spread of members is worth: calibration, intervals, scores."""
