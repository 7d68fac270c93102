"""The loss of a projection, chunk by chunk: eager's numbers for all options, and no logits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use
from torch.utils._python_dispatch import TorchDispatchMode

from lynx.backends.reference import counted_tokens
from lynx.backends.reference import linear_cross_entropy as module
from lynx.backends.reference.linear_cross_entropy import (
    LossForm,
    TargetError,
    chunk_tokens,
    linear_cross_entropy,
    linear_cross_entropy_backward,
)

CLASSES, FEATURES, TOKENS = 37, 8, (3, 7)
CAP = ("divide 3.0", "tanh", "multiply 3.0", "convert f32")
REDUCTIONS = ("mean", "sum", "weighted", "none")
DOUBLE, SINGLE, BRAIN, HALF = torch.float64, torch.float32, torch.bfloat16, torch.float16

Tensors = dict[str, Any]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEWEST_TOKENS", 4)
    monkeypatch.setattr(module, "MOST_TOKENS", 8)
    monkeypatch.setattr(module, "BLOCK_BYTES", 3 * CLASSES * 4)
    torch.manual_seed(0)


def operands(dtype: torch.dtype, *, bias: bool, class_weight: bool, token_weight: bool) -> Tensors:
    return {
        "x": torch.randn(*TOKENS, FEATURES).to(dtype),
        "weight": torch.randn(CLASSES, FEATURES).to(dtype),
        "bias": torch.randn(CLASSES).to(dtype) if bias else None,
        "target": torch.randint(0, CLASSES, TOKENS),
        "class_weight": torch.rand(CLASSES).to(dtype) if class_weight else None,
        "token_weight": torch.rand(TOKENS) if token_weight else None,
    }


def in_eager(given: Tensors, form: LossForm, dtype: torch.dtype) -> tuple[torch.Tensor, Tensors]:
    """Return the loss by way of the logits, and the leaves that have gradients."""
    leaves = {
        name: given[name].detach().to(dtype).requires_grad_()
        for name in ("x", "weight", "bias")
        if given[name] is not None
    }
    logits = F.linear(leaves["x"], leaves["weight"], leaves.get("bias"))
    if form.steps:
        logits = torch.tanh(logits / 3.0) * 3.0
        logits = logits.float() if dtype is not DOUBLE else logits
    weight = None if given["class_weight"] is None else given["class_weight"].to(logits.dtype)
    reduction = form.reduction if given["token_weight"] is None else "none"
    loss = F.cross_entropy(
        logits.view(-1, CLASSES),
        given["target"].view(-1),
        weight,
        ignore_index=-100 if form.ignore is None else form.ignore,
        label_smoothing=form.smoothing,
        reduction=reduction,
    )
    if reduction == "none":
        loss = loss.view(TOKENS)
    if given["token_weight"] is not None:
        loss = (loss * given["token_weight"].to(loss.dtype)).sum()
    return loss, leaves


def distance(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-3))


OPTIONS = list(
    itertools.product(
        REDUCTIONS, (-100, None, 3), (0.0, 0.1), (False, True), (False, True), ((), CAP)
    )
)


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE, BRAIN, HALF], ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_against_double(dtype: torch.dtype, reduction: str) -> None:
    for kind, ignore, smoothing, bias, weighted, steps in OPTIONS:
        if kind != reduction or (dtype is DOUBLE and steps):
            continue
        form = LossForm("sum" if kind == "weighted" else kind, ignore, smoothing, steps)
        given = operands(dtype, bias=bias, class_weight=weighted, token_weight=kind == "weighted")
        if ignore is not None:
            given["target"][0, :4] = ignore
        exact, leaves = in_eager(given, form, DOUBLE)
        incoming = torch.rand(exact.shape, dtype=DOUBLE)
        truth = torch.autograd.grad(exact, list(leaves.values()), incoming)
        wanted = (True, True, bias)
        loss, units = linear_cross_entropy(
            *given.values(), form, wanted if kind != "none" else (False,) * 3
        )
        later = linear_cross_entropy_backward(
            incoming.to(loss.dtype), *given.values(), form, wanted
        )
        found = [[g * incoming for g in units if g is not None]] if kind != "none" else []
        found.append([g for g in later if g is not None])
        bound = {DOUBLE: 1e-12, SINGLE: 2e-6, BRAIN: 2e-2, HALF: 3e-3}[dtype]
        about = f"{form}, bias {bias}, weights {weighted}"
        assert distance(loss, exact.detach()) < bound, about
        for gradients in found:
            assert all(distance(g, e) < 2 * bound for g, e in zip(gradients, truth, strict=True)), (
                about
            )


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN, HALF], ids=str)
@pytest.mark.parametrize("steps", [(), CAP])
def test_no_worse_than_eager(dtype: torch.dtype, steps: tuple[str, ...]) -> None:
    form = LossForm("mean", -100, 0.0, steps)
    given = operands(dtype, bias=True, class_weight=False, token_weight=False)
    exact, precise = in_eager(given, form, DOUBLE)
    eager, leaves = in_eager(given, form, dtype)
    loss, units = linear_cross_entropy(*given.values(), form, (True, True, True))
    assert loss.dtype == eager.dtype
    # One rounding of the result is allowed for.
    slack = {SINGLE: 2e-7, BRAIN: 4e-3, HALF: 5e-4}[dtype]
    assert distance(loss, exact.detach()) <= distance(eager.detach(), exact.detach()) + slack
    truth = torch.autograd.grad(exact, list(precise.values()))
    theirs = torch.autograd.grad(eager, list(leaves.values()))
    for ours, other, best in zip(units, theirs, truth, strict=True):
        assert ours is not None
        assert distance(ours.to(dtype), best) <= distance(other, best) + slack


def test_losses_are_eagers_to_the_bit() -> None:
    given = operands(SINGLE, bias=False, class_weight=False, token_weight=False)
    loss, _ = linear_cross_entropy(*given.values(), LossForm("none"))
    # One token after the other, as products of other sizes are rounded in another order.
    scores = torch.cat(
        [given["x"].view(-1, FEATURES)[n : n + 4] @ given["weight"].t() for n in range(0, 21, 4)]
    )
    expected = F.cross_entropy(scores, given["target"].view(-1), reduction="none")
    torch.testing.assert_close(loss.view(-1), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_all_ignored(reduction: str) -> None:
    given = operands(SINGLE, bias=True, class_weight=False, token_weight=False)
    given["target"].fill_(-100)
    loss, units = linear_cross_entropy(*given.values(), LossForm(reduction), (True,) * 3)
    eager, leaves = in_eager(given, LossForm(reduction), SINGLE)
    torch.testing.assert_close(loss, eager.detach(), equal_nan=True)
    assert math.isnan(loss) == (reduction == "mean")
    for unit, leaf in zip(units, torch.autograd.grad(eager, list(leaves.values())), strict=True):
        assert unit is not None
        assert torch.equal(unit, leaf)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_tokens(reduction: str) -> None:
    x, weight = torch.randn(0, FEATURES), torch.randn(CLASSES, FEATURES)
    target = torch.zeros(0, dtype=torch.int64)
    wanted = (True, True, False) if reduction != "none" else (False,) * 3
    form = LossForm(reduction)
    loss, units = linear_cross_entropy(x, weight, None, target, None, None, form, wanted)
    expected = F.cross_entropy(x @ weight.t(), target, reduction=reduction)
    torch.testing.assert_close(loss, expected, equal_nan=True)
    if units[1] is not None:
        assert torch.equal(units[1], torch.zeros_like(weight))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none(value: float) -> None:
    given = operands(SINGLE, bias=True, class_weight=False, token_weight=False)
    given["bias"][5] = value
    loss, units = linear_cross_entropy(*given.values(), LossForm("mean"), (True,) * 3)
    eager, leaves = in_eager(given, LossForm("mean"), SINGLE)
    torch.testing.assert_close(loss, eager.detach(), equal_nan=True)
    expected = torch.autograd.grad(eager, list(leaves.values()))
    torch.testing.assert_close(units, expected, equal_nan=True, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wrong", [CLASSES, -1, 10**9])
def test_targets_out_of_range(wrong: int) -> None:
    given = operands(SINGLE, bias=False, class_weight=False, token_weight=False)
    given["target"][1, 2] = wrong
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
        linear_cross_entropy(*given.values(), LossForm())
    with pytest.raises(TargetError, match=f"index {wrong} is out of bounds"):
        linear_cross_entropy(*given.values(), LossForm(ignore=None))
    linear_cross_entropy(*given.values(), LossForm(ignore=wrong))


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
def test_layouts(layout: str) -> None:
    given = operands(SINGLE, bias=False, class_weight=False, token_weight=False)
    if layout == "transposed":
        given["weight"] = given["weight"].t().contiguous().t()
        given["x"] = given["x"].transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "sliced":
        given["weight"] = torch.randn(CLASSES, 2 * FEATURES)[:, ::2]
        given["x"] = torch.randn(*TOKENS, 2 * FEATURES)[..., FEATURES:]
    else:
        given["weight"] = torch.randn(1, FEATURES).expand(CLASSES, FEATURES)
        given["x"] = torch.randn(3, 1, FEATURES).expand(*TOKENS, FEATURES)
    loss, units = linear_cross_entropy(*given.values(), LossForm(), (True, True, False))
    eager, leaves = in_eager(given, LossForm(), SINGLE)
    torch.testing.assert_close(loss, eager.detach())
    for unit, leaf in zip(units, torch.autograd.grad(eager, list(leaves.values())), strict=False):
        torch.testing.assert_close(unit, leaf)


def test_memory_that_is_given() -> None:
    given = operands(SINGLE, bias=True, class_weight=False, token_weight=False)
    expected, units = linear_cross_entropy(*given.values(), LossForm(), (True,) * 3)
    for rows in (torch.empty(*TOKENS, FEATURES), torch.empty(FEATURES, *TOKENS).permute(1, 2, 0)):
        out = (rows, torch.empty(FEATURES, CLASSES).t(), torch.empty(CLASSES))
        loss, written = linear_cross_entropy(*given.values(), LossForm(), (True,) * 3, out)
        assert torch.equal(loss, expected)
        for place, result, unit in zip(out, written, units, strict=True):
            assert result is not None
            assert result.data_ptr() == place.data_ptr()
            torch.testing.assert_close(place, unit)


def test_results_are_the_same_each_time() -> None:
    given = operands(SINGLE, bias=True, class_weight=True, token_weight=False)
    runs = [
        linear_cross_entropy(*given.values(), LossForm(smoothing=0.1), (True,) * 3)
        for _ in range(3)
    ]
    for loss, units in runs[1:]:
        assert torch.equal(loss, runs[0][0])
        assert all(map(torch.equal, units, runs[0][1]))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [SINGLE, BRAIN], ids=str)
def test_tokens_that_count_for_nothing(
    reduction: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = LossForm("sum" if reduction == "weighted" else reduction, -100, 0.1)
    given = operands(dtype, bias=True, class_weight=True, token_weight=reduction == "weighted")
    given["target"].view(-1)[::2] = -100
    if reduction == "weighted":
        given["token_weight"][0] = 0
    wanted = (True, True, True) if reduction != "none" else (False,) * 3
    grad = torch.randn(TOKENS if reduction == "none" else ())
    values = []
    for share in (16, 0):  # the second looks at all tokens
        monkeypatch.setattr(counted_tokens, "WORTH_SKIPPING", share)
        loss, units = linear_cross_entropy(*given.values(), form, wanted)
        later = linear_cross_entropy_backward(grad, *given.values(), form, (True,) * 3)
        values.append([loss, *units, *later])
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)
    assert torch.equal(values[0][-3].view(-1, FEATURES)[::2], torch.zeros(11, FEATURES))


def skipped(given: Tensors, form: LossForm) -> bool:
    found = counted_tokens.counted_tokens(*given.values(), form.ignore, form.steps)
    return found is not None


@pytest.mark.parametrize("name", ["x", "weight", "bias", "class_weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_all_tokens_are_looked_at_where_logits_may_not_be_finite(name: str, value: float) -> None:
    given = operands(SINGLE, bias=True, class_weight=True, token_weight=False)
    given["target"].view(-1)[::2] = -100
    assert skipped(given, LossForm())
    given[name].view(-1)[0] = value
    assert skipped(given, LossForm()) == (name == "class_weight" and value == 1e38)
    loss, units = linear_cross_entropy(*given.values(), LossForm(), (True,) * 3)
    eager, leaves = in_eager(given, LossForm(), SINGLE)
    torch.testing.assert_close(loss, eager.detach(), equal_nan=True)
    expected = torch.autograd.grad(eager, list(leaves.values()))
    torch.testing.assert_close(units, expected, equal_nan=True, rtol=1e-4, atol=1e-6)


def test_few_tokens_that_count_for_nothing_are_not_worth_it() -> None:
    given = operands(SINGLE, bias=True, class_weight=False, token_weight=False)
    given["target"][0, 0] = -100
    assert not skipped(given, LossForm())
    given["target"][0, 1] = -100
    assert skipped(given, LossForm())
    assert not skipped(given, LossForm(steps=("divide 0.0",)))
    assert not skipped(given, LossForm(steps=("multiply 1e38",)))


def test_wrong_targets_of_tokens_without_weight_are_seen() -> None:
    given = operands(SINGLE, bias=True, class_weight=False, token_weight=True)
    given["token_weight"].zero_()
    given["target"][0, 0] = CLASSES
    with pytest.raises(IndexError):
        linear_cross_entropy(*given.values(), LossForm("sum"))


def test_weights_that_are_no_numbers_are_seen() -> None:
    given = operands(SINGLE, bias=True, class_weight=False, token_weight=True)
    given["target"].fill_(-100)
    given["token_weight"][0, 0] = math.nan
    loss, _ = linear_cross_entropy(*given.values(), LossForm("sum"))
    assert math.isnan(loss)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in torch.utils._pytree.tree_leaves(result):
            if isinstance(item, torch.Tensor):
                self.elements = max(self.elements, item.untyped_storage().nbytes() // 4)
        return result


def test_logits_never_exist() -> None:
    tokens, features, classes = 512, 4, 64
    x, weight = torch.randn(tokens, features), torch.randn(classes, features)
    target = torch.randint(0, classes, (tokens,))
    with Largest() as largest:
        linear_cross_entropy(x, weight, None, target, None, None, LossForm(), (True, True, False))
    assert largest.elements == tokens * features


def test_sizes_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert chunk_tokens(4096, 32000, 4) == 256
    assert chunk_tokens(4096, 250_000, 4) == 256
    assert chunk_tokens(4096, 8192, 4) == 1024
    assert chunk_tokens(100_000, 50, 4) == 1024
    assert chunk_tokens(10, 50, 4) == 10
    assert chunk_tokens(0, 50, 4) == 1
