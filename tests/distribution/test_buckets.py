"""Which collectives travel together is said in the program of the mesh, and changes no number."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.backends.reference.mesh import evaluate_on_mesh
from lynx.ir import Graph, InternalError, parse_graph, print_graph, verify
from lynx.ir.ops.collective import AllGather, Collective
from lynx.ir.ops.schedule import Start
from lynx.ir.sharding import Mesh
from lynx.passes import PassContext, parse_pipeline
from lynx.passes.distribution import start_buckets
from lynx.passes.distribution.assign_buckets import assign_buckets, payload, summary
from lynx.passes.distribution.cost import Costs
from lynx.passes.distribution.gathers_ahead import gather_ahead
from lynx.passes.distribution.localize import localize
from lynx.passes.distribution.machine import read_target
from lynx.passes.distribution.ranks import order_text, verify_schedules
from lynx.passes.distribution.report import traffic_of
from lynx.passes.distribution.start_buckets import StartBuckets
from tests.distribution.harness import check
from tests.distribution.mutations import mutations, promising, rejection
from tests.distribution.test_recipes import MEGATRON, captured
from tests.schedules import RECIPES, typed_step

PIPELINE = parse_pipeline("start-buckets,fuse,split-collectives,schedule-overlap")
SIZES = {"batch": 7, "width": 5, "hidden": 9}


def bucketed(graph: Graph, limit: int = 25 << 20) -> Graph:
    result = assign_buckets(graph, Costs(read_target("cpu-gloo"), graph.mesh), limit)
    verify(result)
    return result


def compiled(graph: Graph) -> Graph:
    result = PIPELINE.run(graph, PassContext())
    assert isinstance(result, Graph)
    return result


def collectives(graph: Graph) -> list[Collective]:
    return [op for op in graph.ops if isinstance(op, Collective) and op.needs_communication]


def numbers(text: str, limit: int = 25 << 20) -> list[int]:
    """Return the bucket of each collective of a program, in the order in which they start."""
    graph = parse_graph(text)
    verify(graph)
    return [op.bucket for op in collectives(bucketed(graph, limit))]


def inputs_of(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*map(int, v.shape), generator=generator) for v in graph.inputs]


GRADIENTS = """
graph @g(%x: f32[8 @ dp, 4], %y: f32[8 @ dp, 4]) mesh @m(dp = 2, tp = 2) {
  %0 = sum %x {dims = [0]} : f32[4] + partial(sum: dp)
  %1 = all_reduce %0 {axes = ["dp"]} : f32[4] replicated
  %2 = reshape %1 {shape = [2, 2]} : f32[2, 2] replicated
  %3 = exp %x : f32[8 @ dp, 4]
  %4 = sum %3 {dims = [0]} : f32[4] + partial(sum: dp)
  %5 = all_reduce %4 {axes = ["dp"]} : f32[4] replicated
  return %2, %5
}
"""

READ_BEFORE = """
graph @g(%x: f32[8 @ dp, 4]) mesh @m(dp = 2, tp = 2) {
  %0 = sum %x {dims = [0]} : f32[4] + partial(sum: dp)
  %1 = all_reduce %0 {axes = ["dp"]} : f32[4] replicated
  %2 = exp %1 : f32[4] replicated
  %3 = exp %x : f32[8 @ dp, 4]
  %4 = sum %3 {dims = [0]} : f32[4] + partial(sum: dp)
  %5 = all_reduce %4 {axes = ["dp"]} : f32[4] replicated
  return %2, %5
}
"""

WEIGHTS = """
graph @g(%x: f32[8 @ dp, 4], %u: f32[4 @ dp, 4], %v: f32[4 @ dp, 4]) mesh @m(dp = 2, tp = 2) {
  %0 = all_gather %u {axes = ["dp"], dim = 0} : f32[4, 4] replicated
  %1 = matmul %x, %0 : f32[8 @ dp, 4]
  %2 = permute %v {dims = [1, 0]} : f32[4, 4 @ dp]
  %3 = all_gather %2 {axes = ["dp"], dim = 1} : f32[4, 4] replicated
  %4 = matmul %1, %3 : f32[8 @ dp, 4]
  return %4
}
"""


def test_sums_that_nobody_reads_yet_travel_together() -> None:
    graph = bucketed(parse_graph(GRADIENTS))
    assert [op.bucket for op in collectives(graph)] == [0, 0]
    text = print_graph(graph)
    assert text.count('axes = ["dp"], bucket = 0') == 2
    assert print_graph(parse_graph(text)) == text
    assert summary(graph) == "2 all_reduce over dp travel in 1 bucket of up to 32 B"
    first, second = (graph.ops.index(op) for op in collectives(graph))
    assert second == first + 1  # side by side, where the last one stood
    local = StartBuckets().run(localize(graph, {"dp": 0, "tp": 0}), PassContext())
    (start,) = [op for op in local.ops if isinstance(op, Start)]
    assert (len(start.xs), start.sites) == (2, (0, 1))


def test_a_sum_that_is_read_waits_for_no_other() -> None:
    assert numbers(READ_BEFORE) == [-1, -1]


def test_parameters_are_gathered_together_before_the_first_is_read() -> None:
    assert numbers(WEIGHTS) == [0, 0]
    graph = bucketed(parse_graph(WEIGHTS))
    names = [op.name for op in graph.ops]
    assert names == ["permute", "all_gather", "all_gather", "matmul", "matmul"]


def test_kinds_stay_apart() -> None:
    lines = GRADIENTS.splitlines()
    of_y = [n for n, line in enumerate(lines) if line.strip()[:2] in ("%3", "%4", "%5")]
    double, largest = list(lines), list(lines)
    double[1] = double[1].replace("%y: f32", "%y: f64")
    for n in of_y:
        double[n] = double[n].replace("f32", "f64").replace("%x", "%y")
        largest[n] = largest[n].replace("= sum", "= amax").replace("(sum:", "(max:")
        largest[n] = largest[n].replace('["dp"]}', '["dp"], reduction = "max"}')
    for text in ("\n".join(double), "\n".join(largest)):
        assert numbers(text) == [-1, -1]


def test_buckets_are_no_larger_than_allowed() -> None:
    assert numbers(GRADIENTS, limit=32) == [0, 0]
    assert numbers(GRADIENTS, limit=31) == [-1, -1]
    for recipe in RECIPES:
        graph = bucketed(typed_step(recipe, 4, batch=64, width=64, hidden=128), 100_000)
        sizes: dict[int, int] = {}
        for op in collectives(graph):
            sizes[op.bucket] = sizes.get(op.bucket, 0) + payload(op, graph.mesh)
        sizes.pop(-1, None)
        assert all(size <= 100_000 for size in sizes.values())


def test_gathers_come_one_bucket_ahead() -> None:
    typed = typed_step("fsdp", 4, batch=64, width=64, hidden=128)
    # Two parameters of 32 kB in a bucket.
    graph = bucketed(typed, 1 << 16)
    moved = gather_ahead(graph)
    verify(moved)
    assert sorted(map(id, moved.ops)) == sorted(map(id, graph.ops))
    gathers = list(dict.fromkeys(op.bucket for op in moved.ops if isinstance(op, AllGather)))
    for before, bucket in itertools.pairwise(gathers):
        given = {op.out for op in moved.ops if isinstance(op, AllGather) and op.bucket == before}
        reads = [n for n, op in enumerate(moved.ops)
                 if not given.isdisjoint(op.operands) and not op.is_view]  # fmt: skip
        starts = [n for n, op in enumerate(moved.ops) if getattr(op, "bucket", -1) == bucket]
        assert max(starts) < min(reads)
    assert gather_ahead(graph, limit=1) is graph


@pytest.mark.parametrize("recipe", RECIPES)
def test_numbers_and_proofs_stay(recipe: str) -> None:
    """Bit for bit, pieces of unequal length included; all devices start the same in one order."""
    typed = typed_step(recipe, **SIZES)
    inputs = inputs_of(typed)
    plain, _ = evaluate_on_mesh(typed, inputs)
    graph = gather_ahead(bucketed(typed))
    verify(graph)
    assert sorted(map(str, traffic_of(graph))) == sorted(map(str, traffic_of(typed)))
    moved, _ = evaluate_on_mesh(graph, inputs, change=compiled)
    assert all(map(torch.equal, plain, moved))
    verify_schedules(graph, compiled)
    if recipe != "tp":  # all sums of `tp` depend on each other
        assert summary(graph)


@pytest.mark.parametrize("recipe", ["fsdp", "dp+tp", "fsdp+tp"])
def test_no_mutation_of_a_bucket_passes(recipe: str) -> None:
    graph = promising(gather_ahead(bucketed(typed_step(recipe, **SIZES))))
    every = [m for m in mutations(graph) if m.op.bucket >= 0]
    assert every
    assert [str(m) for m in every if rejection(graph, m) is None] == []


def test_a_failure_leaves_each_tensor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = localize(bucketed(parse_graph(GRADIENTS)), {"dp": 0, "tp": 0})

    def fail(*_: object) -> Graph:
        raise InternalError("broken", "on purpose")

    monkeypatch.setattr(start_buckets, "merged", fail)
    context = PassContext()
    assert StartBuckets().run(graph, context) is graph
    assert any("each tensor travels alone" in remark.message for remark in context.remarks)


OPS = ("gather", "sum", "read", "cut", "add", "view", "input")


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 99), st.integers(0, 99)), max_size=24),
    st.sampled_from([40, 100, 1000]),
)
def test_random_programs(steps: list[tuple[str, int, int]], limit: int) -> None:
    """Random orders of gathers, sums and readers: numbers and order proofs stay."""
    graph = random_program(steps)
    verify(graph)
    after = gather_ahead(bucketed(graph, limit))
    verify(after)
    inputs = [x[: int(v.shape[0])] for v, x in zip(graph.inputs, inputs_of(graph), strict=True)]
    plain, _ = evaluate_on_mesh(graph, inputs)
    moved, _ = evaluate_on_mesh(after, inputs, change=compiled)
    assert all(map(torch.equal, plain, moved))
    verify_schedules(after, compiled)


def random_program(steps: list[tuple[str, int, int]]) -> Graph:
    """Return a program over vectors of five numbers that are cut, whole, or partial sums."""
    lines: list[str] = []
    cut, whole = ["%a", "%b"], ["%c"]
    count = 0

    def emit(text: str, type_: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"  %v{count} = {text} : {type_}")
        return f"%v{count}"

    for kind, one, other in steps:
        x, y, w = cut[one % len(cut)], cut[other % len(cut)], whole[one % len(whole)]
        if kind == "gather":
            made = emit(f'all_gather {x} {{axes = ["dp"], dim = 0}}', "f32[5] replicated")
            whole.append(made)
        elif kind == "sum":
            part = emit(f"sum {x} {{dims = [0], keepdim = true}}", "f32[1] + partial(sum: dp)")
            done = emit(f'all_reduce {part} {{axes = ["dp"]}}', "f32[1] replicated")
            whole.append(emit(f"add {w}, {done}", "f32[5] replicated"))
        elif kind == "read":
            whole.append(emit(f"sin {w}", "f32[5] replicated"))
        elif kind == "cut":
            cut.append(emit(f'shard {w} {{axes = ["dp"], dim = 0}}', "f32[5 @ dp]"))
        elif kind == "add":
            cut.append(emit(f"add {x}, {y}", "f32[5 @ dp]"))
        elif kind == "view":
            whole.append(emit(f"add {w}, {whole[other % len(whole)]}", "f32[5] replicated"))
        else:
            cut.append("%a" if one % 2 else "%b")
    outputs = ", ".join([*dict.fromkeys(cut), *dict.fromkeys(whole)])
    head = "graph @r(%a: f32[5 @ dp], %b: f32[5 @ dp], %c: f32[5] replicated) mesh @m(dp = 2) {"
    return parse_graph("\n".join([head, *lines, f"  return {outputs}", "}"]))


MIXED = """
graph @g(%x: f32[8 @ tp, 4], %y: f32[8 @ tp, 4], %z: f32[8 @ tp, 4]) mesh @m(tp = 4) {
  %0 = all_gather %z {axes = ["tp"], dim = 0} : f32[8, 4] replicated
  %1 = exp %0 : f32[8, 4] replicated
  %2 = sum %x {dims = [0]} : f32[4] + partial(sum: tp)
  %3 = all_reduce %2 {axes = ["tp"]} : f32[4] replicated
  %4 = add %x, %y : f32[8 @ tp, 4]
  %5 = all_gather %4 {axes = ["tp"], dim = 0} : f32[8, 4] replicated
  %6 = all_gather %y {axes = ["tp"], dim = 0} : f32[8, 4] replicated
  return %1, %3, %5, %6
}
"""


def test_a_bucket_with_other_gathers_stays_together() -> None:
    """`%6` alone could go ahead of the sum, and then nothing would say when its bucket starts."""
    together = bucketed(parse_graph(MIXED), limit=300)
    before = [op.bucket for op in collectives(together)]
    assert before == [-1, -1, 0, 0]
    assert collectives(gather_ahead(together)) == collectives(together)


def test_devices_without_a_piece_keep_the_order() -> None:
    """Five tokens on four devices: on the last one nothing needs what is gathered."""
    one = captured(residual="_, tp, _", batch=2, length=5)
    laid = check(one, Mesh("mesh", (("tp", 4),)), MEGATRON)
    assert laid.backward is not None
    together = gather_ahead(bucketed(laid.backward.graph))
    assert any(op.bucket >= 0 for op in collectives(together))
    assert together.mesh is not None
    places = map(together.mesh.coordinates, range(4))
    orders = {order_text(compiled(localize(together, place))) for place in places}
    assert len(orders) == 1
