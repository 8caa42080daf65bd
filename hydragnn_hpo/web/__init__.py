"""What every service of ours shares: sockets, tokens."""
