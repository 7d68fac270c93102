"""Compiled functions that write parts of tensors: what eager leaves behind, without copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from lynx.backends.c import has_compiler
from lynx.records import RECORDS
from tests.tools.compare import compiled

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    RECORDS.reset()
    yield
    torch._dynamo.reset()


def rows(c: Tensor, p: Tensor, k: Tensor) -> Tensor:
    c.index_copy_(2, p, k * 2)
    return c.sum(-1)


def put(c: Tensor, i: Tensor, v: Tensor) -> Tensor:
    c[:, i] = v
    return c + 1


def added(c: Tensor, i: Tensor, v: Tensor) -> Tensor:
    c.index_put_((i,), v, accumulate=True)
    return c * 3


def scattered(c: Tensor, i: Tensor, v: Tensor) -> Tensor:
    c.scatter_(1, i, v)
    return c * 3


def scatter_added(c: Tensor, i: Tensor, v: Tensor) -> Tensor:
    c.scatter_add_(1, i, v)
    return c * 3


def index_added(c: Tensor, i: Tensor, v: Tensor) -> Tensor:
    c.index_add_(0, i, v, alpha=0.5)
    return c * 3


def filled(c: Tensor, i: Tensor) -> Tensor:
    c.index_fill_(1, i, 4.0)
    return c * 3


def sliced(c: Tensor, v: Tensor) -> Tensor:
    c[:, 3:5] = v
    c[..., ::2] *= 2
    return c * 2


def within(c: Tensor, v: Tensor) -> Tensor:
    c[1:3, :, 2:6:2] += v
    c[0, 1] *= 2
    return c * 3


def stacked(c: Tensor, p: Tensor, k: Tensor) -> Tensor:
    layer = c[1]
    layer.index_copy_(2, p, k * 2)
    return layer.sum(-1) + c[0].sum(-1)


def slots(c: Tensor, s: Tensor, v: Tensor) -> Tensor:
    c.view(-1, 3, 8)[s] = v
    return c[0] + 1


def turned(c: Tensor, p: Tensor, v: Tensor) -> Tensor:
    c.transpose(1, 2)[:, p] = v
    return c.sum(0)


def several(c: Tensor, v: Tensor) -> Tensor:
    for i in range(4):
        c[:, i] = v * i
    return c.sum(0)


def read_and_written(c: Tensor, i: Tensor, v: Tensor) -> Tensor:
    c[i] += v
    return c.sum(0)


def moved(c: Tensor) -> Tensor:
    c[2:4] = c[:2]
    c[1:3] = c[3:5] + c[:2]
    c[0] = c[2]
    return c * 2


def integers(*values: int) -> Tensor:
    return torch.tensor(values)


IN_PLACE: dict[str, tuple[Callable[..., Tensor], Callable[[], list[Tensor]]]] = {
    "one row": (rows, lambda: [cache(), integers(5), torch.randn(2, 3, 1, 8)]),
    "rows, one twice": (rows, lambda: [cache(), integers(5, 3, 5), torch.randn(2, 3, 3, 8)]),
    "put": (put, lambda: [torch.randn(2, 16, 8), integers(5, -1), torch.randn(2, 2, 8)]),
    "added": (added, lambda: [torch.randn(16, 8), integers(5, -1, 5, 3), torch.randn(4, 8)]),
    "scattered": (scattered, lambda: [torch.randn(4, 8), places(4, 6, 8), torch.randn(4, 6)]),
    "scatter-added": (
        scatter_added, lambda: [torch.randn(4, 8), places(4, 6, 8), torch.randn(4, 6)]
    ),
    "index-added": (index_added, lambda: [torch.randn(4, 8), integers(2, 2), torch.randn(2, 8)]),
    "filled": (filled, lambda: [torch.randn(4, 8), integers(2, -1)]),
    "sliced": (sliced, lambda: [torch.randn(4, 8, 4), torch.randn(4, 2, 4)]),
    "within": (within, lambda: [torch.randn(4, 3, 8), torch.randn(2, 3, 2)]),
    "stacked": (
        stacked, lambda: [torch.randn(3, 2, 3, 16, 8), integers(5), torch.randn(2, 3, 1, 8)]
    ),
    "slots": (slots, lambda: [torch.randn(4, 5, 3, 8), integers(7, 3, 19), torch.randn(3, 3, 8)]),
    "turned": (turned, lambda: [torch.randn(4, 3, 8, 5), integers(2, 6), torch.randn(4, 2, 3, 5)]),
    "several": (several, lambda: [torch.randn(4, 8, 3), torch.randn(4, 3)]),
    "moved": (moved, lambda: [torch.randn(6, 5)]),
    "read and written": (
        read_and_written, lambda: [torch.randn(6, 5), integers(2, 2, 4), torch.randn(3, 5)]
    ),
}  # fmt: skip


def cache() -> Tensor:
    return torch.randn(2, 3, 16, 8)


def places(*shape: int) -> Tensor:
    *outer, end = shape
    return torch.randint(0, end, outer)


def copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("key", IN_PLACE)
def test_writes_are_done_in_place(key: str) -> None:
    function, make = IN_PLACE[key]
    compiled = torch.compile(function, backend="lynx", options={"strict": True})
    given = make()
    wanted = copies(given)
    for _ in range(3):
        found, expected = compiled(*given), function(*wanted)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(given, wanted)
    (record,) = RECORDS.graphs
    program = record.program
    assert [write.kind for write in program.writes] == ["in_place"]
    target = program.writes[0].mutation.target
    whole = [
        value for step in program.steps for value in step.op.results
        if value.type == target.type and program.bases[value] is not target
    ]  # fmt: skip
    returned = [value for value in program.graph.outputs if value is not None]
    assert set(whole) <= set(returned), "there is a copy of the tensor"
    assert record.executable.native.kernels


def test_what_is_returned_of_the_old_tensor_is_kept() -> None:
    def function(c: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        old = c.clone()
        c[i] = v
        return old, c[0] * 2

    compiled = torch.compile(function, backend="lynx", options={"strict": True})
    given = [torch.randn(6, 5), integers(2, 0), torch.randn(2, 5)]
    wanted = copies(given)
    torch.testing.assert_close(compiled(*given), function(*wanted))
    torch.testing.assert_close(given, wanted)


def test_other_parts_are_read_before_they_are_written() -> None:
    compiled = torch.compile(moved, backend="lynx", options={"strict": True})
    given = torch.randn(6, 5)
    wanted = given.clone()
    for _ in range(2):
        torch.testing.assert_close(compiled(given), moved(wanted))
    torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("bad", [-1, 16])
def test_indices_out_of_range_raise_as_in_eager(bad: int) -> None:
    compiled = torch.compile(rows, backend="lynx", options={"strict": True})
    given = [cache(), integers(5), torch.randn(2, 3, 1, 8)]
    compiled(*given)
    before = given[0].clone()
    with pytest.raises(IndexError):
        rows(given[0].clone(), integers(bad), given[2])
    with pytest.raises(IndexError):
        compiled(given[0], integers(bad), given[2])
    assert torch.equal(given[0], before)


def test_errors_are_caught_as_those_of_eager() -> None:
    compiled = torch.compile(scattered, backend="lynx", options={"strict": True})
    given = [torch.randn(4, 8), places(4, 6, 8), torch.randn(4, 6)]
    compiled(*given)
    given[1][2, 3] = 8
    with pytest.raises(RuntimeError):
        scattered(*copies(given))
    with pytest.raises(RuntimeError):
        compiled(*given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64])
def test_other_types(dtype: torch.dtype) -> None:
    for function in (added, index_added, scattered, put):
        torch._dynamo.reset()
        if function is index_added and not dtype.is_floating_point:
            continue
        make = next(make for f, make in IN_PLACE.values() if f is function)
        given = [x.to(dtype) if x.is_floating_point() else x for x in make()]
        wanted = copies(given)
        compiled = torch.compile(function, backend="lynx", options={"strict": True})
        compiled(*given)
        function(*wanted)
        exact = dtype is not torch.float16 or function is not index_added
        assert torch.equal(given[0], wanted[0]) or not exact


def test_a_table_gets_its_gradient_from_a_kernel() -> None:
    table, index = torch.randn(50, 16), torch.randint(0, 50, (7, 9))

    def loss(w: Tensor, i: Tensor) -> Tensor:
        return torch.nn.functional.embedding(i, w, padding_idx=3).square().sum()

    found, wanted = table.clone().requires_grad_(), table.clone().requires_grad_()
    torch.compile(loss, backend="lynx", options={"strict": True})(found, index).backward()
    loss(wanted, index).backward()
    torch.testing.assert_close(found.grad, wanted.grad)
    backward = RECORDS.graphs[-1]
    assert any("embedding_backward" in k.name for k in backward.executable.native.kernels)


def test_one_program_serves_all_sizes() -> None:
    def function(c: Tensor, i: Tensor, v: Tensor) -> Tensor:
        c.index_copy_(1, i, v + 1)
        return c * 2

    compiled = torch.compile(function, backend="lynx", options={"strict": True}, dynamic=True)
    for batch, count in ((2, 3), (5, 7), (4, 2)):
        given = [torch.randn(batch, 9, 4), places(count, 9), torch.randn(batch, count, 4)]
        wanted = copies(given)
        torch.testing.assert_close(compiled(*given), function(*wanted))
        torch.testing.assert_close(given, wanted)
    assert len(RECORDS.graphs) == 1
    assert [write.kind for write in RECORDS.graphs[0].program.writes] == ["in_place"]


def put_in_rows(x: Tensor, i: Tensor, j: Tensor, v: Tensor) -> None:
    x[i, :, j] = v


def put_in_grid(x: Tensor, i: Tensor, j: Tensor, v: Tensor) -> None:
    x[i, j] = v


REPEATED: list[tuple[Callable[..., object], Callable[[int], list[Tensor]]]] = [
    (lambda x, i, v: x.index_copy_(1, i, v), lambda n: [places(n, 5), torch.randn(6, n, 12)]),
    (put_in_rows, lambda n: [places(n, 6), places(n, 12) - 12, torch.randn(n, 5)]),
    (put_in_grid, lambda n: [places(3, n, 6), places(n, 5), torch.randn(3, n, 12)]),
    (lambda x, i, v: x.scatter_(2, i, v), lambda n: [places(6, 5, n, 12), torch.randn(6, 5, n)]),
    (lambda x, i, v: x.scatter_(0, i, v), lambda n: [places(n, 4, 7, 6), torch.randn(n, 5, 9)]),
    (lambda x, i, v: x.index_add_(1, i, v), lambda n: [places(n, 5), torch.randn(6, n, 12)]),
    (
        lambda x, i, j, v: x.index_put_((i, j), v, accumulate=True),
        lambda n: [places(n, 6), places(n, 5) - 5, torch.randn(n, 12)],
    ),
    (
        lambda x, i, v: x.scatter_add_(1, i, v),
        lambda n: [places(6, n, 12, 5), torch.randn(6, n, 12)],
    ),
]


@pytest.mark.parametrize("number", range(len(REPEATED)))
def test_what_is_written_several_times_is_as_in_eager(number: int) -> None:
    """The last of several writes to a place stays, and sums are rounded in the same order."""
    function, make = REPEATED[number]

    def written(*arguments: Tensor) -> None:
        function(*arguments)

    compiled = torch.compile(written, backend="lynx", options={"strict": True}, dynamic=False)
    for count in (1, 17):
        given = [torch.randn(6, 5, 12), *make(count)]
        wanted = copies(given)
        compiled(*given)
        written(*wanted)
        assert torch.equal(given[0], wanted[0])


def shared_after_writes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a = x * 2
    a.t()[0].zero_()
    return a.view(-1), a.view(2, -1), a.t()


def shared_and_written_through(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a = x * 2
    row = a.view(-1)
    row[2:5].copy_(x[0, :3])
    a.add_(row.view_as(a))
    a.t()[0].zero_()
    return a, row


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [shared_after_writes, shared_and_written_through])
def test_results_that_share_memory_still_do_after_writes_by_views(
    function: Callable[..., tuple[torch.Tensor, ...]], dynamic: bool
) -> None:
    x = torch.randn(4, 5)
    outs, expected = compiled(function, dynamic=dynamic)(x), function(x)
    assert len({out.untyped_storage().data_ptr() for out in outs}) == 1
    for out, wanted in zip(outs, expected, strict=True):
        assert torch.equal(out, wanted)
        assert out.stride() == wanted.stride()
