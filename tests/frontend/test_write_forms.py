"""The ways to write into a tensor: what is left of it, of its views and of gradients, by bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

Write = Callable[..., object]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def numbers(*shape: int) -> Tensor:
    """Return quarters, whose sums and products of a few are exact."""
    return torch.randint(-8, 9, shape) * 0.25


def places(*shape: int, end: int) -> Tensor:
    """Return indices, some of them several times."""
    return torch.randint(0, end, shape)


def mask() -> Tensor:
    return torch.randint(0, 2, (6, 5)).bool()


def steps(t: Tensor, v: Tensor) -> None:
    t[1::2, ::3] = v


def augmented(t: Tensor, v: Tensor) -> None:
    t[::2] += v
    t[1] *= 2


def shifted(t: Tensor) -> None:
    t[:3] = t[3:]


def masked(t: Tensor, m: Tensor) -> None:
    t[m] = 3.0


def masked_rows(t: Tensor, m: Tensor) -> None:
    t[m[:, 0]] = 0.5


def grid(t: Tensor, i: Tensor, j: Tensor, v: Tensor) -> None:
    t[i, j] = v


def chosen(t: Tensor, m: Tensor, v: Tensor) -> None:
    t.copy_(torch.where(m, t, v))


def twice(t: Tensor, i: Tensor, v: Tensor) -> None:
    t.index_add_(0, i, v)
    t.index_copy_(0, i[:2], v[2:])


def column(t: Tensor, i: Tensor, v: Tensor) -> None:
    t.select(1, 3).index_put_((i,), v, accumulate=True)


def turned(t: Tensor, i: Tensor, v: Tensor) -> None:
    t.mT.scatter_add_(0, i, v)


WRITES: dict[str, tuple[Write, Callable[[], list[Tensor]]]] = {
    "index_put": (
        lambda t, i, v: t.index_put_((i,), v), lambda: [places(4, end=6) - 6, numbers(4, 5)]
    ),
    "index_put adding": (
        lambda t, i, v: t.index_put_((i,), v, accumulate=True),
        lambda: [places(9, end=6), numbers(5)],
    ),
    "index_put in a grid": (
        grid, lambda: [places(3, 1, end=6), places(4, end=5), numbers(3, 4)]
    ),
    "index_copy": (
        lambda t, i, v: t.index_copy_(1, i, v), lambda: [places(7, end=5), numbers(6, 7)]
    ),
    "index_fill": (lambda t, i: t.index_fill_(1, i, 2.0), lambda: [places(2, end=5)]),
    "index_add": (
        lambda t, i, v: t.index_add_(0, i, v, alpha=-2), lambda: [places(8, end=6), numbers(8, 5)]
    ),
    "scatter": (
        lambda t, i, v: t.scatter_(1, i, v), lambda: [places(4, 7, end=5), numbers(4, 7)]
    ),
    "scatter a number": (lambda t, i: t.scatter_(0, i, 1.5), lambda: [places(2, 3, end=6)]),
    "scatter_add": (
        lambda t, i, v: t.scatter_add_(0, i, v), lambda: [places(9, 4, end=6), numbers(9, 4)]
    ),
    **{
        f"scatter_reduce {kind}, {'with' if own else 'without'} its own": (
            lambda t, i, v, kind=kind, own=own: t.scatter_reduce_(0, i, v, kind, include_self=own),
            lambda: [places(6, 5, end=6), numbers(6, 5)],
        )
        for kind in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    },
    "in steps": (steps, lambda: [numbers(3, 2)]),
    "augmented": (augmented, lambda: [numbers(3, 5)]),
    "shifted": (shifted, list),
    "masked": (masked, lambda: [mask()]),
    "masked rows": (masked_rows, lambda: [mask()]),
    "masked_fill": (lambda t, m: t.masked_fill_(m, 2.0), lambda: [mask()]),
    "chosen": (chosen, lambda: [mask(), numbers(6, 5)]),
    "twice": (twice, lambda: [places(4, end=6), numbers(4, 5)]),
    "into a column": (column, lambda: [places(9, end=6), numbers(9)]),
    "turned": (turned, lambda: [places(3, 6, end=5), numbers(3, 6)]),
}  # fmt: skip


def clones(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def assert_same(found: object, wanted: object) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("key", WRITES)
def test_into_an_input_of_which_views_live_on(key: str) -> None:
    write, make = WRITES[key]

    def function(t: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        before = t * 2
        row, turned = t[1], t.mT
        write(t, *rest)
        row[2:] += 1
        return before, row, turned, turned.sum(0)

    compiled = torch.compile(function, backend="lynx")
    given = [numbers(6, 5), *make()]
    wanted = clones(given)
    for _ in range(2):
        found, expected = compiled(*given), function(*wanted)
        assert_same(found, expected)
        assert_same(given, wanted)
    assert found[1].data_ptr() == given[0][1].data_ptr()
    assert found[2].data_ptr() == given[0].data_ptr()


@pytest.mark.parametrize("layout", ["turned", "with gaps"])
@pytest.mark.parametrize("key", WRITES)
def test_into_an_input_of_another_layout(key: str, layout: str) -> None:
    write, make = WRITES[key]

    def function(t: Tensor, *rest: Tensor) -> None:
        write(t, *rest)

    def target() -> Tensor:
        return torch.zeros(5, 6).mT if layout == "turned" else torch.zeros(6, 15)[:, 1::3]

    rest = make()
    found, wanted = target(), target()
    found.add_(1)
    wanted.add_(1)
    torch.compile(function, backend="lynx")(found, *rest)
    function(wanted, *rest)
    assert_same(found, wanted)
    whole = found._base
    assert whole is not None
    assert_same(whole, wanted._base)


@pytest.mark.parametrize("key", WRITES)
def test_gradients_of_what_is_written_into(key: str) -> None:
    write, make = WRITES[key]

    def function(x: Tensor, weight: Tensor, *rest: Tensor) -> Tensor:
        t = x * 2
        before = t[:, 1]
        write(t, *rest)
        return (t * weight).sum() + (before * before).sum()

    weight, rest = numbers(6, 5), make()
    start = numbers(6, 5) + 3
    results = []
    for call in (torch.compile(function, backend="lynx"), function):
        x = start.clone().requires_grad_()
        own = [v.clone().requires_grad_(v.is_floating_point()) for v in rest]
        call(x, weight, *own).backward()
        results.append([x.grad, *(v.grad for v in own if v.requires_grad)])
    torch.testing.assert_close(*results)
