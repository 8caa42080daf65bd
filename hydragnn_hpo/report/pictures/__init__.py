"""The PNG files that commands draw."""
