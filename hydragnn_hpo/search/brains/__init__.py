"""Search algorithms behind one protocol: ask, tell, replay, learn; see ``search.brain``."""
