"""Sums over ranks as a test of what connects them: ordered here, judged here, see README.md."""
