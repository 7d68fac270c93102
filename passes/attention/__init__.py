"""Attention: score functions as regions and kernels, their gradients, and which kernel runs."""
