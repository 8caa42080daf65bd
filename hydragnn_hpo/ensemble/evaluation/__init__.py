"""Hold an ensemble against labelled structures: any file, or a split of a store."""
