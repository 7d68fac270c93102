"""Costs: machines from TOML, and times that grow with bytes and members."""

from __future__ import annotations

from pathlib import Path

import pytest

from lynx.ir import UsageError
from lynx.ir.core import Graph, Value
from lynx.ir.ops.attention import Attention, AttentionBackward
from lynx.ir.ops.communication import (
    Communication,
    LocalAllGather,
    LocalAllReduce,
    LocalAllToAll,
    LocalReduceScatter,
)
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.ops.elementwise_arithmetic import Add
from lynx.ir.ops.fusion import Fused, Region
from lynx.ir.ops.indexing import Embedding
from lynx.ir.ops.layout_slicing import Concatenate
from lynx.ir.ops.linear import Matmul
from lynx.ir.ops.loss_linear import LinearCrossEntropy
from lynx.ir.ops.reduction import Sum
from lynx.ir.ops.schedule import Start
from lynx.ir.sharding import Mesh
from lynx.ir.types import DType, TensorType
from lynx.passes import PassContext, parse_pipeline
from lynx.passes.distribution.buckets import BucketCollectives
from lynx.passes.distribution.cost import Costs, payload_of, transfer_time
from lynx.passes.distribution.machine import read_target, target_names
from lynx.passes.distribution.operations import moved_bytes, operations
from lynx.passes.distribution.split import SplitCollectives
from lynx.settings import read_settings
from tests.schedules import local_step


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


def attention(batch: int, heads: int, shared: int, queries: int, keys: int) -> Attention:
    q = value(batch, heads, queries, 64)
    k, v = value(batch, shared, keys, 64), value(batch, shared, keys, 32)
    return Attention(q, k, v, (), None, None)


@pytest.mark.parametrize("shared", [4, 2, 1])
def test_attention_counts_its_products(shared: int) -> None:
    op = attention(2, 4, shared, 100, 50)
    scores = 2 * 4 * 100 * 50
    products = 2 * scores * (64 + 32)
    assert products < operations(op) < 1.2 * products
    wanted = (True, True, True, False)
    back = AttentionBackward(
        *(op.q, op.k, op.v, (), None, None, value(2, 4, 100, 32), None, *op.results),
        wanted=wanted,
    )
    products = 2 * scores * (3 * 64 + 2 * 32)
    assert products < operations(back) < 1.2 * products


def test_attention_costs_about_what_its_parts_do() -> None:
    op = attention(2, 4, 4, 256, 256)
    graph = Graph("g", (op.q, op.k, op.v), (op,), (op.results[0],))
    parts = parse_pipeline("choose-attention{way=unfused}").run(graph, PassContext())
    assert not any(isinstance(part, Attention) for part in parts.ops)
    assert operations(op) == pytest.approx(sum(map(operations, parts.ops)), rel=0.3)


@pytest.mark.parametrize(("transposed", "groups"), [(False, 1), (False, 2), (True, 1), (True, 2)])
def test_convolutions_count_windows_once(transposed: bool, groups: int) -> None:
    x, weight = value(3, 8, 20, 20), value(8, 8 // groups, 5, 5)
    op = Convolution(x, weight, None, (2, 2), transposed=transposed, groups=groups)
    size = 20 if transposed else 8
    assert operations(op) == 2 * 3 * 8 * (8 // groups) * 25 * size**2
    grad = Value(op.out.type)
    for kind in (ConvolutionBackwardInput, ConvolutionBackwardWeight):
        back = kind(grad, x, weight, (2, 2), transposed=transposed, groups=groups)
        assert operations(back) == operations(op)


@pytest.mark.parametrize("grads", [(), ("x",), ("x", "weight")])
def test_losses_of_projections_count_their_products(
    grads: tuple[str, ...],
) -> None:
    target = Value(TensorType(DType.I64, (30,)))
    x, weight = value(30, 16), value(1000, 16)
    op = LinearCrossEntropy(x, weight, None, target, None, None, gradients=grads)
    assert operations(op) == 2 * 30 * 16 * 1000 * (1 + len(grads))


def test_what_moves_data_counts_what_it_moves() -> None:
    indices = Value(TensorType(DType.I64, (6,)))
    looked_up = Embedding(value(50_000, 64), indices)
    assert operations(looked_up) == 6 * 64
    assert moved_bytes(looked_up) == 2 * 6 * 64 * 4 + 6 * 8
    joined = Concatenate((value(8, 96), value(8, 96), value(8, 96)), 1)
    assert operations(joined) == 8 * 288
    total = Sum(value(128, 256), (1,))
    assert operations(total) == 128 * 256
    assert moved_bytes(total) == (128 * 256 + 128) * 4


def test_a_kernel_that_looks_up_rows_does_not_read_the_table() -> None:
    table, other = value(50_000, 64), value(6, 64)
    parameters = (Value(table.type), Value(TensorType(DType.I64, (6,))), Value(other.type))
    row = Embedding(parameters[0], parameters[1])
    added = Add(row.out, parameters[2])
    inputs = (table, Value(parameters[1].type), other)
    body = Region(parameters, (row, added), (added.out,))
    assert moved_bytes(Fused(inputs, body)) == 3 * 6 * 64 * 4 + 6 * 8
    doubled = Add(parameters[0], parameters[0])
    both = Region(parameters, (row, added, doubled), (added.out, doubled.out))
    assert moved_bytes(Fused(inputs, both)) > 50_000 * 64 * 4


def test_schedules_are_made_for_the_machine_that_is_named(tmp_path: Path) -> None:
    """Over a link whose messages take long all gradients wait for each other."""
    slow, fast = tmp_path / "slow.toml", tmp_path / "fast.toml"
    text = 'name = "x"\nefficiency = 1.0\nmemory_bandwidth = 1e9\nlaunch = 1e-6\nflops.f32 = 1e9\n'
    for path, latency, bandwidth in ((slow, 1.0, 1e9), (fast, 1e-9, 1e9)):
        link = f'[[links]]\nname = "y"\nlatency = {latency}\nbandwidth = {bandwidth}\n'
        path.write_text(text + link)
    graph = SplitCollectives().run(local_step("fsdp", 0), PassContext())
    counts = []
    for path in (slow, fast):
        result = BucketCollectives().run(graph, PassContext(machine=str(path)))
        counts.append(sum(isinstance(op, Start) for op in result.ops))
    assert counts[0] < counts[1]
    with pytest.raises(UsageError, match="there is no target 'abacus'"):
        read_settings({"machine": "abacus"}, environment={})
    assert read_settings(environment={"LYNX_MACHINE": str(slow)}).machine == str(slow)
