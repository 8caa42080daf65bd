"""The host's side: an agent, its zygote, and the ranks that it forks."""
