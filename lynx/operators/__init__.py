"""Operators of our own, which stand in traced graphs for what recognisers found.

Importing the package registers them with torch, under the namespace `lynx`.
"""

from .attention import attention
from .linear_cross_entropy import linear_cross_entropy
from .matmul import matmul

__all__ = ["attention", "linear_cross_entropy", "matmul"]
