"""Recognise attention, however it is written, and put one operator in its place.

`sites` finds two products with a softmax between them, `analysis` finds out what is computed there
and plans the operator, `emission` puts it into the graph, and `checking` makes sure that it
computes the same. Whatever is unexpected leaves the graph as it is, with a reason.
"""

from __future__ import annotations

from .rewriting import fuse_attention

__all__ = ["fuse_attention"]
