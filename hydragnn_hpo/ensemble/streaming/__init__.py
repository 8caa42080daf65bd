"""From files of any size to predictions: piece after piece, in bounded memory, restartable."""
