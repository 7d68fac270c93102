"""The runtime: memory and execution of finished programs."""
