"""The op by which a model says how one of its values lies on the mesh."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.sharding import parse_sharding
from lynx.ir.space import IterationSpace
from lynx.ir.types import TensorType

from .layout import parallel_space

_DATA, _YIELDING = 0, 2


class Constrain(Op, name="constrain"):
    """Give a tensor as it is, and say how it lies: what propagation starts from.

        %y = constrain %x {sharding = "dp, _, tp", priority = 0} : f32[4, 8, 16]

    Lower priorities win where constraints contend for a mesh axis. With -1 axes that cut the first
    dimension, of batches, count as data; others yield to those of parameters. Propagation may cut
    the dimensions in `open` further.
    """

    x: Value
    sharding: str
    priority: int = -1
    open: tuple[int, ...] = ()

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x = self.x.tensor_type
        rank = len(parse_sharding(self.sharding).dims)
        if rank != x.rank:
            message = f"has {rank} entries in '{self.sharding}' for {x.rank} dimensions"
            raise self.error("sharding-rank", message)
        if not all(0 <= dim < x.rank for dim in self.open):
            raise self.error("bad-dim", f"opens {list(self.open)}, the rank is {x.rank}")
        return x.with_shape(x.shape)

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension."""
        return parallel_space(self.x.shape)

    def priority_of(self, axis: str) -> int:
        """Return the priority of a mesh axis that cuts the tensor."""
        if self.priority >= 0:
            return self.priority
        (first, *_) = parse_sharding(self.sharding).dims
        return _DATA if axis in first else _YIELDING
