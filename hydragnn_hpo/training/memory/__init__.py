"""Steps that fit into the memory of a rank."""
