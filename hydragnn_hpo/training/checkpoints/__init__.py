"""What a training keeps, so that it can go on elsewhere."""
