"""What agents and controllers say to each other, and how it gets across."""
