"""Import rule of what a model says of how its values lie on a mesh."""

from __future__ import annotations

from lynx.distribution.plans import spelled_out
from lynx.ir.core import Value
from lynx.ir.ops.constraint import Constrain

from .registry import Context, Imported, imports


@imports("lynx.constrain.default")
def constrain(context: Context, x: Value, sharding: str, priority: int) -> Imported:
    """Spell the text out for the dimensions of the tensor."""
    rank = x.tensor_type.rank
    plain, opened, level = spelled_out(sharding, "x", rank, context.builder.loc, priority)
    return context.emit(Constrain(x, plain, level, opened))
