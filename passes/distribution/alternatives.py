"""Other forms of ops that can be cut where the ops themselves cannot.

Look-ups in a table whose rows lie on several devices run over the rows of each device, with zeros
for all others, and add up (vocabulary-parallel embedding, Megatron-LM, Shoeybi et al. 2019,
section 3).
"""

from __future__ import annotations

from collections.abc import Mapping

from lynx.ir.core import Op
from lynx.ir.ops.indexing import Embedding, EmbeddingBackward, Gather
from lynx.ir.ops.windows import EmbeddingWindow, EmbeddingWindowBackward, GatherWindow
from lynx.ir.sharding import Split
from lynx.ir.space import IterationSpace


def alternative(op: Op) -> Op | None:
    """Return the form of an op whose space has more factors that can be cut, if there is one."""
    if isinstance(op, Embedding):
        return EmbeddingWindow(op.weight, op.indices, loc=op.loc)
    if isinstance(op, EmbeddingBackward) and not op.by_frequency:
        return EmbeddingWindowBackward(op.grad, op.indices, op.rows, op.padding, loc=op.loc)
    if isinstance(op, Gather):
        return GatherWindow(op.x, op.index, op.dim, loc=op.loc)
    return None


def replacement(op: Op, splits: Mapping[str, Split], space: IterationSpace | None) -> Op:
    """Return the form of an op that runs where its factors are cut so: `space` tells which."""
    if not splits or space is None:
        return op
    other = alternative(op)
    return op if other is None or other.space() != space else other
