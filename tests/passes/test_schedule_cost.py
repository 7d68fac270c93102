"""Costs: machines from TOML, and times that grow with bytes and members."""

from __future__ import annotations

from pathlib import Path

import pytest

from lynx.ir import UsageError
from lynx.ir.core import Value
from lynx.ir.ops.communication import (
    Communication,
    LocalAllGather,
    LocalAllReduce,
    LocalAllToAll,
    LocalReduceScatter,
)
from lynx.ir.ops.linear import Matmul
from lynx.ir.sharding import Mesh
from lynx.ir.types import DType, TensorType
from lynx.passes.distribution.cost import Costs, payload_of, transfer_time
from lynx.passes.distribution.machine import read_target, target_names


def value(*shape: int) -> Value:
    return Value(TensorType(DType.F32, shape))


def kinds(rows: int, members: int, index: int = 0) -> list[Communication]:
    """Return one communication of each kind; members hold `rows`, the last one less."""
    sizes = (*[rows] * (members - 1), rows - 1)
    own = sizes[index]
    return [
        LocalAllReduce(value(rows * members, 8), ("a",)),
        LocalAllGather(value(own, 8), ("a",), 0, sizes, index),
        LocalReduceScatter(value(sum(sizes), 8), ("a",), 0, sizes, index),
        LocalAllToAll(value(own, members), ("a",), 0, 1, sizes, (1,) * members, index),
    ]


@pytest.mark.parametrize("name", target_names())
def test_times_grow_with_bytes_and_members(name: str) -> None:
    target = read_target(name)
    for link in target.links:
        for kind in range(4):
            for members in (2, 3, 4, 8, 64):
                times = [
                    transfer_time(op, payload_of(op, members), members, link)
                    for op in (kinds(rows, members)[kind] for rows in (2, 10, 1000, 100_000))
                ]
                assert times == sorted(times)
            op = kinds(16, 2)[kind]
            times = [transfer_time(op, 1e6, members, link) for members in (1, 2, 4, 8, 64, 512)]
            assert times == sorted(times)
            assert times[0] == 0


@pytest.mark.parametrize("members", [2, 3, 7])
def test_all_members_find_the_same_costs(members: int) -> None:
    mesh = Mesh("mesh", (("a", members),))
    costs = Costs(read_target("h100"), mesh)
    rows = [[costs.transfer(op) for op in kinds(5, members, n)] for n in range(members)]
    assert all(row == rows[0] for row in rows)


def test_a_group_communicates_over_the_closest_link_that_joins_it() -> None:
    target = read_target("h100")
    mesh = Mesh("mesh", (("dp", 4), ("tp", 8)))
    assert target.link(mesh, ("tp",)).name == "nvlink"
    assert target.link(mesh, ("dp",)).name == "infiniband"
    assert target.link(mesh, ("tp", "dp")).name == "infiniband"
    small = Mesh("mesh", (("dp", 2), ("tp", 4)))
    assert target.link(small, ("dp", "tp")).name == "nvlink"


def test_large_products_are_bound_by_arithmetic_and_small_ones_by_memory() -> None:
    costs = Costs(read_target("h100"), None)
    large = costs.compute(Matmul(value(8192, 8192), value(8192, 8192)))
    assert large == pytest.approx(2 * 8192**3 / (0.7 * 67e12), rel=0.01)
    thin = costs.compute(Matmul(value(8192, 8192), value(8192, 1)))
    assert thin == pytest.approx(8192**2 * 4 / 3.35e12, rel=0.1)


def test_mistakes_in_targets_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a file in TOML or one of a100, cpu-gloo, h100"):
        read_target("abacus")
    path = tmp_path / "mine.toml"
    for text in ("name = ", 'name = "x"', 'name = "x"\nspeed = 3\nlinks = []'):
        path.write_text(text)
        with pytest.raises(UsageError) as raised:
            read_target(str(path))
        assert raised.value.code == "bad-target"
