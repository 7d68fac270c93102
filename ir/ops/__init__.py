"""All ops, by family."""
