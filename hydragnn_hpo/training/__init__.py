"""One trial: spec in, result out; the same mathematics at any width."""
