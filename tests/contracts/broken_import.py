"""Something that cannot be imported."""

raise OSError("libnothing.so: cannot open shared object file")
