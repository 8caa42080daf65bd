"""The controller's side: one agent on each host, made one backend."""
