"""Who makes steps of gradients, and how long they are."""
