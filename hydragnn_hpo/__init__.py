"""From structures with properties to a trusted predictor: GNN campaigns and ensembles."""

__version__ = "0.1.0"
