"""Distribution: from annotated tensors on a mesh to the program of one process."""
