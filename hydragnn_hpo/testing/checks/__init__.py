"""What a layer must obey: one module per kind of law; each has a dict ``CHECKS``."""
