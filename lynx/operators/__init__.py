"""Operators of our own, which stand in traced graphs for what recognisers found.

Importing the package registers them with torch, under the namespace `lynx`.
"""

from .attention import attention
from .constrain import constrain
from .linear_cross_entropy import linear_cross_entropy
from .matmul import matmul

__all__ = ["attention", "constrain", "linear_cross_entropy", "matmul"]
