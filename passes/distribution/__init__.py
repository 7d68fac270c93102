"""Distribution: which device computes what, and the program of each device."""
