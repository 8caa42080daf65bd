"""Getting software onto hosts: packed environments, their broadcast, containers."""
