"""The graph store: ADIOS2 BP5 parts on disk, and the ways to read them."""
