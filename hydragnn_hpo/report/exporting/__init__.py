"""A campaign for other programs: tables, storages of trackers, the best trial's configuration."""
