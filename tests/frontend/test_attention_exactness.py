"""Recognised attention where it is easily off: huge scores, ties in masks, layouts, noise."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses
from torch import Tensor

import lynx

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    gc.collect()  # Dynamo forgets what has died before it forgets the rest
    torch._dynamo.reset()


def operands(queries: int = 8, keys: int = 8, depth: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((2, 3, queries, depth), (2, 3, keys, depth), (2, 3, keys, depth))
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    return q, k, v


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / 2, -1) @ v


def is_found(function: Function, *operands: Tensor) -> bool:
    return any(site.refusal == "" for site in lynx.explain(function, *operands).attention)


@pytest.mark.parametrize("exponent", [10, 11, 12, 15, 20, 25, 29, 32, 37])
def test_huge_scores(exponent: int) -> None:
    """A row of which nothing is left is the mean, whatever number it was filled with."""
    fill = -(10.0**exponent) * 1.3
    keep = torch.rand(8, 8) < 0.5
    keep[2] = False

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).masked_fill(~keep, fill).softmax(-1) @ v

    q, k, v = operands()
    expected = torch.autograd.grad(function(q, k, v).sum(), (q, k, v))
    compiled = torch.compile(function, backend="lynx")
    torch.testing.assert_close(compiled(q, k, v), function(q, k, v))
    found = torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v))
    torch.testing.assert_close(found, expected)


def test_a_mask_hangs_on_the_last_place_of_a_number() -> None:
    """Ties are decided as in eager: products are rounded before they are added to."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = torch.arange(k.shape[2])[None].float() * 0.7
        queries = torch.arange(q.shape[2])[:, None].float() * 0.9 + 0.1
        return (q @ k.mT).masked_fill(~(keys <= queries), -1e9).softmax(-1) @ v

    arguments = operands(queries=140, keys=190)
    assert is_found(function, *arguments)
    compiled = torch.compile(function, backend="lynx")
    torch.testing.assert_close(compiled(*arguments), function(*arguments))


@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_gradients_where_logarithms_of_denominators_are_large(scale: float) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.mT) * scale).clamp(-50, 50).softmax(-1) @ v

    # Where products round depends on the machine: one draw says little of errors.
    compiled = torch.compile(function, backend="lynx")
    ours, theirs = torch.zeros(3), torch.zeros(3)
    for seed in range(8):
        torch.manual_seed(seed)
        arguments = [torch.randn(2, 3, n, 4, requires_grad=True) for n in (33, 70, 70)]
        wide = [x.detach().double().requires_grad_() for x in arguments]
        grad = torch.randn(2, 3, 33, 4)
        exact = torch.autograd.grad(function(*wide), wide, grad.double())
        for errors, way in ((ours, compiled), (theirs, function)):
            found = torch.autograd.grad(way(*arguments), arguments, grad)
            errors += torch.stack(
                [(x - y).abs().max() / y.abs().max() for x, y in zip(found, exact, strict=True)]
            )
    unit = torch.finfo(torch.float32).eps
    assert (ours <= 2 * theirs + 8 * unit).all()


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1)
    return torch.einsum("bhqk,bhkd->bqhd", weights, v)


AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x + 1,
    "two sums": lambda x: (x + 1) * 2,
    "strided": lambda x: (x + 1).as_strided((2, 40), (96, 1)),
    "view": lambda x: (x + 1).view(2, 3, -1) if x.is_contiguous() else x,
    "turned": lambda x: x.transpose(1, 2) + 1,
    "parts": lambda x: torch.cat([part + 1 for part in x.chunk(2, -1)], -1),
    "dropped": lambda x: F.dropout(x, 0.4),
    "drawn": lambda x: torch.rand_like(x) + x,
    "in place": lambda x: (x * 2).mul_(3),
}  # fmt: skip


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("attention", [attend, _sdpa, _einsum])
def test_results_lie_in_memory_as_in_eager(attention: Function, after: str) -> None:
    """So do those of what follows, and noise falls on the same elements."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return AFTER[after](attention(q, k, v))

    arguments = operands()
    compiled = torch.compile(function, backend="lynx")
    torch.manual_seed(5)
    expected = function(*arguments)
    torch.manual_seed(5)
    found = compiled(*arguments)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


def copies_of(function: Function) -> int:
    arguments = operands()
    assert is_found(function, *arguments)
    forward = lynx.explain(function, *arguments).graphs[0]
    assert forward.imported is not None
    return sum(op.name == "copy" for op in forward.imported.ops)


def test_what_is_rearranged_at_once_is_not_copied() -> None:
    """Heads that are brought together again, as models do, cost nothing."""
    assert copies_of(lambda q, k, v: attend(q, k, v) + 1)
    assert not copies_of(lambda q, k, v: attend(q, k, v).transpose(1, 2).reshape(2, 8, -1))


def test_tensors_without_memory() -> None:
    """Forward derivatives make zeros that lie nowhere: they are made real, or left to torch."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return torch.func.jvp(lambda x: (x @ k.mT) @ v, (q,), (v,))

    q, k, v = (torch.randn(6, 8, 8, requires_grad=True) for _ in range(3))
    expected = torch.autograd.grad([x.sum() for x in function(q, k, v)], (q, k, v))
    compiled = torch.compile(function, backend="lynx")
    found = torch.autograd.grad([x.sum() for x in compiled(q, k, v)], (q, k, v))
    torch.testing.assert_close(found, expected)
    with pytest.warns(RuntimeWarning, match="no-memory"):
        zeros = torch.compile(torch.sin, backend="lynx")(torch._efficientzerotensor((4, 5)))
    assert torch.equal(zeros, torch.zeros(4, 5))


@pytest.mark.parametrize("is_given", [False, True])
def test_rows_that_lose_the_number_of_keys(is_given: bool) -> None:
    """Next to the least number a logarithm is no more than it: eager's weights are all one."""
    mask = torch.zeros(8, 8)
    mask[2] = torch.finfo(torch.float32).min

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT + (mask if is_given else mask.clone())
        return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v

    arguments = operands()
    compiled = torch.compile(function, backend="lynx")
    torch.testing.assert_close(compiled(*arguments), function(*arguments))


@pytest.mark.parametrize("shape", [(), (1, 3, 1, 1)])
def test_a_factor_is_not_taken_for_a_mask(shape: tuple[int, ...]) -> None:
    """Gradients of rows of which a sum leaves nothing are NaN, whatever scores are scaled by."""
    scale = torch.full(shape, 2.0)
    mask = torch.zeros(8, 8)
    mask[3] = -torch.inf

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.tanh(q @ k.mT / scale) + mask
        return torch.nan_to_num(scores.softmax(-1), 0.0) @ v

    arguments = operands()
    compiled = torch.compile(function, backend="lynx")
    expected = torch.autograd.grad(function(*arguments).sum(), arguments)
    found = torch.autograd.grad(compiled(*arguments).sum(), arguments)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_limits_that_are_reached_take_no_part_of_the_gradient() -> None:
    """Where a score equals a limit that is a tensor, it has all of the gradient, as in eager."""
    limits = torch.zeros(()), torch.ones(())

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.clamp(q @ k.mT, *limits).softmax(-1) @ v

    _, k, v = operands()
    arguments = (torch.zeros(2, 3, 8, 4, requires_grad=True), k, v)
    compiled = torch.compile(function, backend="lynx")
    expected = torch.autograd.grad(function(*arguments).sin().sum(), arguments)
    found = torch.autograd.grad(compiled(*arguments).sin().sum(), arguments)
    torch.testing.assert_close(found, expected)


NOT_A_NUMBER = float("nan")


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_no_number_shows_where_it_is_hidden(place: int, queries: int) -> None:
    """A truth hides a pair by a sum, as in eager; and a weight of zero does not hide a value."""
    keys = torch.arange(40)[None]
    keep = (keys <= torch.arange(queries)[:, None] + 1) & (keys >= torch.arange(queries)[:, None])

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, queries = torch.arange(k.shape[2])[None], torch.arange(q.shape[2])[:, None]
        keep = (keys <= queries + 1) & (keys >= queries)
        return F.scaled_dot_product_attention(q, k, v, keep)

    def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2 + torch.where(keep, 0.0, -torch.inf)).softmax(-1) @ v

    given = [x.detach() for x in operands(queries=queries, keys=40)]
    given[place][0, 0, -1] = NOT_A_NUMBER
    found = torch.compile(function, backend="lynx")(*given)
    torch.testing.assert_close(found, written_out(*given), equal_nan=True)


def test_gradients_of_what_noise_drops_are_no_numbers_where_weights_are_none() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v

    q, k, v = operands()
    with torch.no_grad():
        q[0, 0, 0] = NOT_A_NUMBER
    torch.manual_seed(1)
    expected = torch.autograd.grad(function(q, k, v).sum(), (q, k, v))
    torch.manual_seed(1)
    compiled = torch.compile(function, backend="lynx")
    found = torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v))
    torch.testing.assert_close(found, expected, equal_nan=True)


LEAST = {
    "added": lambda s, seen, least: s + torch.where(seen, 0.0, least).to(s.dtype),
    "chosen": lambda s, seen, least: torch.where(seen, s, least),
    "filled": lambda s, seen, least: s.masked_fill(~seen, least),
    "made": lambda s, seen, least: torch.where(seen, s, torch.full((), least, dtype=s.dtype)),
    "given": lambda s, seen, least: torch.where(seen, s, NUMBERS[s.dtype, least]),
}
NUMBERS = {
    (dtype, least): torch.tensor(least, dtype=dtype)
    for dtype, least in ((torch.float32, -1e9), (torch.float32, -3e38), (torch.bfloat16, -1e4))
}


@pytest.mark.parametrize("way", LEAST)
@pytest.mark.parametrize(("dtype", "least"), NUMBERS, ids=str)
def test_lengths_that_leave_only_a_large_number(dtype: torch.dtype, least: float, way: str) -> None:
    """Next to a large number the logarithm of the number of keys is nothing: weights are 1."""

    def model(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        seen = torch.arange(k.shape[-2]) < lengths[:, None, None, None]
        scores = LEAST[way](q @ k.transpose(-2, -1), seen, least)
        return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8).to(dtype) for n in (5, 4, 4))
    lengths = torch.tensor([2, 0])
    compiled = torch.compile(model, backend="lynx", options={"strict": True})
    tolerance = 1e-3 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(
        compiled(q, k, v, lengths), model(q, k, v, lengths), rtol=tolerance, atol=tolerance
    )


def test_a_single_row_of_which_nothing_is_left() -> None:
    """Gradients of a row that a mask hides as a whole are NaN, though results are zeros."""

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(8)
        scores = q @ k.mT + torch.where(seen, 0.0, -torch.inf)
        return torch.nan_to_num(scores.softmax(-1), 0.0) @ v

    arguments = operands(queries=1)
    expected = torch.autograd.grad(model(*arguments).sum(), arguments)
    compiled = torch.compile(model, backend="lynx")
    found = torch.autograd.grad(compiled(*arguments).sum(), arguments)
    assert expected[0].isnan().all()
    torch.testing.assert_close(found, expected, equal_nan=True)


HIDING = {
    "nan_to_num": lambda w: torch.nan_to_num(w, 0.0),
    "where": lambda w: torch.where(w.isnan(), 0.0, w),
    "masked_fill": lambda w: w.masked_fill(w != w, 0.0),
}


@pytest.mark.parametrize("number", [NOT_A_NUMBER, torch.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("way", HIDING)
def test_rows_of_nan_are_hidden_whatever_they_come_of(way: str, place: int, number: float) -> None:
    """Weights of zero take the place of NaN, also of that of queries and keys; not of values."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(3, 1) for x in (k, v))
        return HIDING[way]((q @ k.mT).softmax(-1)) @ v

    q, k, v = (x.detach() for x in operands())
    given = [q, k[:, :1].clone(), v[:, :1].clone()]
    given[place][0, 0, 5, 1] = number
    assert is_found(function, *given)
    compiled = torch.compile(function, backend="lynx")
    torch.testing.assert_close(compiled(*given), function(*given), equal_nan=True)


def test_what_hides_nan_is_undone_by_dividing_again() -> None:
    mask = torch.zeros(8, 8)
    mask[3] = -torch.inf

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT + mask).softmax(-1).nan_to_num(0.0)
        return (weights / weights.sum(-1, keepdim=True)) @ v

    given = [x.detach() for x in operands()]
    expected = function(*given)
    assert expected.isnan().any()
    compiled = torch.compile(function, backend="lynx")
    torch.testing.assert_close(compiled(*given), expected, equal_nan=True)


@pytest.mark.parametrize("is_after", [False, True])
def test_gradients_of_rows_that_integers_leave_nothing_of(is_after: bool) -> None:
    """What is hidden by a sum is NaN in gradients; lengths and documents leave nothing of rows."""
    lengths, ids = torch.tensor([3, 8]), torch.arange(8).div(3, rounding_mode="floor")

    def function(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, ids: Tensor) -> Tensor:
        seen = torch.arange(k.shape[2]) < lengths[:, None, None, None]
        seen = (~seen if is_after else seen) & (ids[:, None] == ids[None])
        scores = q @ k.mT + torch.where(seen, 0.0, -torch.inf)
        return torch.nan_to_num(scores.softmax(-1), 0.0) @ v

    arguments = operands()
    expected = torch.autograd.grad(function(*arguments, lengths, ids).sum(), arguments)
    assert expected[0].isnan().any()
    compiled = torch.compile(function, backend="lynx")
    found = torch.autograd.grad(compiled(*arguments, lengths, ids).sum(), arguments)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_rows_far_below_the_maximum_of_all() -> None:
    """Nothing is left of them, in eager: zeros are divided by zeros."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT - torch.arange(q.shape[2])[:, None] * 20.0
        weights = (scores - scores.max()).exp()
        return (weights / weights.sum(-1, keepdim=True)) @ v

    given = [x.detach() for x in operands()]
    expected = function(*given)
    assert expected.isnan().any()
    compiled = torch.compile(function, backend="lynx")
    torch.testing.assert_close(compiled(*given), expected, equal_nan=True)


def test_gradients_of_scores_of_half_precision() -> None:
    """The gradient of a product of single precision is as precise, whatever is made of it."""
    shape = "[2, 3, 8, 8]"
    score = f"""graph @score(%dot: f32{shape}, %p0: f16[8]) {{
  %0 = cast %dot {{dtype = f16}} : f16{shape}
  %1 = mul %0, %p0 : f16{shape}
  %2 = cast %1 {{dtype = f32}} : f32{shape}
  return %2
}}
"""
    given = [x.detach().half().requires_grad_() for x in operands()]
    scale = torch.linspace(0.25, 1, 8).half()
    out, _ = torch.ops.lynx.attention(*given, [scale], None, None, score, [], 1.0, False)
    found = torch.autograd.grad(out.float().sin().sum(), given)
    q, k, v = exact = [x.detach().float().requires_grad_() for x in given]
    expected = ((q @ k.mT * scale.float()).softmax(-1) @ v).sin().sum()
    for ours, theirs in zip(found, torch.autograd.grad(expected, exact), strict=True):
        torch.testing.assert_close(ours.float(), theirs, atol=1e-2, rtol=1e-2)
