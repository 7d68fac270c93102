"""Attention is found however it is written, computes what it should, and is left where it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

from lynx.ir.ops.attention import Attention
from lynx.normalize import normalize
from lynx.recognise import recognise
from lynx.recognise.attention import checking, rewriting
from lynx.records import RECORDS
from tests.frontend.attention_idioms import Idiom
from tests.frontend.attention_misses import MISSES
from tests.frontend.attention_more_idioms import IDIOMS

LENGTH, BATCH = 9, 2
DTYPES = [torch.float32, torch.bfloat16]


class Counter:
    """A back end that recognises, and keeps what it was told and the graphs."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.modules: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        normal = normalize(module)
        self.messages += [remark.message for remark in recognise(normal, 1 << 60)]
        normal.graph.lint()
        self.modules.append(normal)
        forward: Callable[..., Any] = normal.forward
        return forward

    @property
    def count(self) -> int:
        return sum(
            node.target is torch.ops.lynx.attention.default
            and any(user.users for user in node.users)
            for module in self.modules
            for node in module.graph.nodes
        )


def evaluated(function: Callable[..., Any], given: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the results of a function and the gradients of its operands."""
    result = function(*given)
    results = list(result) if isinstance(result, tuple) else [result]
    leaves = [x for x in given if x.requires_grad]
    if not leaves or not results[0].requires_grad:
        return [x.detach() for x in results]
    weight = torch.arange(results[0].numel(), dtype=results[0].dtype).mul(0.7).sin()
    found = torch.autograd.grad(
        results[0], leaves, weight.view(results[0].shape), allow_unused=True
    )
    return [x.detach() for x in (*results, *(g for g in found if g is not None))]


def in_double(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def distance(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact.double()).norm() / (exact.double().norm() + 1e-30))


def assert_as_good(
    actual: list[torch.Tensor], expected: list[torch.Tensor], exact: list[torch.Tensor]
) -> None:
    """Compare errors: no result may have more than twice that of eager."""
    assert len(actual) == len(expected)
    for ours, theirs, truth in zip(actual, expected, exact, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert torch.equal(ours.isnan(), theirs.isnan())
        if not truth.isnan().any():
            least = torch.finfo(ours.dtype).eps
            assert distance(ours, truth) <= 2 * distance(theirs, truth) + least


def with_dynamic_sizes(given: tuple[torch.Tensor, ...]) -> None:
    for x in given:
        for dim, size in enumerate(x.shape):
            if size == LENGTH or (dim == 0 and size == BATCH and x.dim() > 1):
                torch._dynamo.mark_dynamic(x, dim)


def drawn(idiom: Idiom, dtype: torch.dtype, *, training: bool) -> tuple[torch.Tensor, ...]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = idiom.draw(BATCH, LENGTH, dtype)
    return given if training else tuple(x.detach() for x in given)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "bf16"])
@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.name)
def test_found(idiom: Idiom, dtype: torch.dtype, training: bool, dynamic: bool) -> None:
    given = drawn(idiom, dtype, training=training)
    expected = evaluated(idiom.function, given)
    exact = evaluated(idiom.function, tuple(map(in_double, given)))
    if dynamic:
        with_dynamic_sizes(given)
    counter = Counter()
    actual = evaluated(torch.compile(idiom.function, backend=counter), given)
    assert counter.count == idiom.count, counter.messages
    assert_as_good(actual, expected, exact)


@pytest.mark.parametrize(
    ("function", "draw", "reason"), MISSES, ids=lambda item: getattr(item, "__name__", "")
)
def test_left(function: Callable[..., Any], draw: Any, reason: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = draw(BATCH, LENGTH, torch.float32)
    counter = Counter()
    torch.manual_seed(1)
    actual = evaluated(torch.compile(function, backend=counter), given)
    torch.manual_seed(1)
    expected = evaluated(function, given)
    assert counter.count == 0
    torch.testing.assert_close(actual, expected, equal_nan=True)
    if reason and "exponentials" not in function.__name__:
        assert any(reason in message for message in counter.messages), counter.messages


def dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(q @ k.mT * 0.25, -1)
    return torch.dropout(weights, 0.3, True) @ v


def dropped_and_returned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    weights = torch.nn.functional.dropout(torch.softmax(q @ k.mT * 0.25, -1), 0.3)
    return weights @ v, weights


def dropped_by_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [dropped, dropped_and_returned, dropped_by_sdpa])
def test_dropout_draws_what_eager_draws(function: Callable[..., Any], dynamic: bool) -> None:
    given = drawn(IDIOMS[0], torch.float32, training=True)
    torch.manual_seed(3)
    expected = evaluated(function, given)
    after = torch.rand(3)
    if dynamic:
        with_dynamic_sizes(given)
    counter = Counter()
    torch.manual_seed(3)
    actual = evaluated(torch.compile(function, backend=counter), given)
    assert torch.equal(torch.rand(3), after)
    assert counter.count == 1, counter.messages
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    places = torch.arange(q.shape[2])
    scores = (q @ k.mT).masked_fill(places[:, None] < places, float("-inf"))
    return scores.softmax(-1) @ v


def from_a_table(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    places = torch.arange(1256)[1000:]
    scores = (q @ k.mT).masked_fill(places[:, None] < places, float("-inf"))
    return scores.softmax(-1) @ v


@pytest.mark.parametrize(("function", "is_small"), [(causal, True), (from_a_table, False)])
def test_large_places_are_checked_in_small(
    function: Callable[..., Any], is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def noted(computation: checking.Computation) -> None:
        counts.append(computation.scores.meta["example_value"].numel())
        checking.check(computation)

    monkeypatch.setattr(rewriting, "check", noted)
    torch._dynamo.reset()
    given = tuple(torch.randn(BATCH, 2, 256, 4, requires_grad=True) for _ in range(3))
    assert given[0][..., 0].numel() * 256 > checking.CHEAP
    counter = Counter()
    actual = evaluated(torch.compile(function, backend=counter), given)
    torch.testing.assert_close(actual, evaluated(function, given))
    assert counter.count == 1
    assert counts
    assert (max(counts) <= checking.CHEAP) == is_small


def test_graphs_without_attention_are_not_touched() -> None:
    torch._dynamo.reset()
    counter = Counter()
    x = torch.randn(3, 4)
    torch.compile(lambda x: torch.relu(x @ x.mT).add_(1), backend=counter)(x)
    assert counter.messages == []
    assert any(str(node.target) == "add_" for node in counter.modules[0].graph.nodes)


def test_left_on_devices_without_kernels() -> None:
    torch._dynamo.reset()
    found: list[int] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        normal = normalize(module)
        found.append(len(recognise(normal, 1 << 60, ("cuda",))))
        found.append(len(recognise(normal, 1 << 60, ("cpu",))))
        forward: Callable[..., Any] = normal.forward
        return forward

    x = torch.randn(BATCH, 4, LENGTH, 16)
    torch.compile(torch.nn.functional.scaled_dot_product_attention, backend=backend)(x, x, x)
    assert found == [0, 1]


@pytest.mark.parametrize(("option", "count"), [("auto", 1), ("none", 0)])
def test_the_option(option: str, count: int) -> None:
    torch._dynamo.reset()
    x = torch.randn(BATCH, 4, LENGTH, 16)
    compiled = torch.compile(dropless, backend="lynx", options={"attention": option})
    RECORDS.reset()
    torch.testing.assert_close(compiled(x), dropless(x))
    imported = [record.imported for record in RECORDS.graphs if record.imported is not None]
    ops = [op for graph in imported for op in graph.ops]
    assert sum(isinstance(op, Attention) for op in ops) == count


def dropless(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.mT, -1) @ x
