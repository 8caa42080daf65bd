"""From trials to one predictor: select, calibrate, evaluate, write, predict."""
