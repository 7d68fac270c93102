"""Samples of collectives: operands that lie on a mesh."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    ReduceScatter,
    Replicate,
    Shard,
)
from lynx.ir.sharding import Mesh, Partial, parse_sharding, sharding_of
from lynx.ir.types import DType, TensorType
from tests.samples import Sample

MESH = Mesh("mesh", (("dp", 2), ("tp", 3)))


def tensor(*shape: int, on: str, partial: str = "", dtype: DType = DType.F32) -> Value:
    """Return a value that lies as a plan says, partial over `tp` by a reduction."""
    given = parse_sharding(on, MESH)
    pending = (Partial(partial, "tp"),) if partial else ()
    return Value(TensorType(dtype, shape, sharding=sharding_of(given.splits, pending, MESH)))


SAMPLES = [
    Sample(AllReduce(tensor(5, 4, on="dp, _", partial="sum"), ("tp",))),
    Sample(AllReduce(tensor(5, on="_", partial="max", dtype=DType.I64), ("tp",), "max")),
    Sample(AllReduce(tensor(5, on="_", partial="or", dtype=DType.BOOL), ("tp",), "or")),
    Sample(ReduceScatter(tensor(5, 7, on="dp, _", partial="sum"), ("tp",), 1)),
    Sample(ReduceScatter(tensor(5, 8, on="_, _", partial="sum"), ("tp",), 1, unit=4)),
    Sample(AllGather(tensor(7, 2, on="(dp, tp), _"), ("tp",), 0)),
    Sample(AllGather(tensor(7, 2, on="(dp, tp), _"), ("dp", "tp"), 0)),
    Sample(AllToAll(tensor(7, 5, on="(dp, tp), _"), ("tp",), 0, 1)),
    Sample(AllToAll(tensor(7, 8, on="tp, _"), ("tp",), 0, 1, unit=2)),
    Sample(Shard(tensor(7, 5, on="dp, _"), ("tp",), 0)),
    Sample(Shard(tensor(7, 6, on="dp, _"), ("tp",), 1, unit=3)),
    Sample(Replicate(Value(TensorType(DType.F32, (3, 2))), ("dp", "tp"), (2, 3))),
]
