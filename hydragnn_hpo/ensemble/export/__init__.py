"""An ensemble as one program that runs without this package."""
