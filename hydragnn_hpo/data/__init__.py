"""From structures to batches of graphs: readers, neighbours, stores, splits, batches."""
