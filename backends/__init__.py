"""Back ends: ways to run an op."""
