"""The reference pages: every setting and every command, from what the code itself says."""
