"""The multi-headed GNN: trunk, convs, heads."""
