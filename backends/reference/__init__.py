"""The reference back end: the meaning of every op in plain torch."""
