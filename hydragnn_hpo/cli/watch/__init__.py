"""``status --watch``: a campaign on a terminal, as it goes on."""
