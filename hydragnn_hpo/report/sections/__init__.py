"""What the report says, one file per section."""
