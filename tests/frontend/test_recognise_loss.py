"""Losses of projections are found however they are written, and left where they must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F  # noqa: N812 - the name that models use
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lynx.normalize import normalize
from lynx.operators import linear_cross_entropy
from lynx.recognise import recognise
from tests.frontend import projected_losses as losses
from tests.frontend.projected_losses import CLASSES, FEATURES, MISSES, WRITTEN, Written

OPERATORS = (linear_cross_entropy, torch.ops.lynx.linear_cross_entropy.default)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, FEATURES, generator=generator)
    weight = torch.randn(CLASSES, FEATURES, generator=generator)
    bias = torch.randn(CLASSES, generator=generator)
    target = torch.randint(0, CLASSES, (2, 5), generator=generator)
    parameters = [torch.nn.Parameter(tensor.to(dtype)) for tensor in (weight, bias)]
    return (x.to(dtype).requires_grad_(), *parameters, target)


def recognised(
    function: Callable[..., Any], *given: Any, minimum: int = 0, dynamic: bool = False
) -> tuple[list[torch.fx.GraphModule], list[str]]:
    """Return the graphs of a function after recognition, and what was said of them."""
    modules: list[torch.fx.GraphModule] = []
    messages: list[str] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        normal = normalize(module)
        messages.extend(remark.message for remark in recognise(normal, minimum))
        normal.graph.lint()
        modules.append(normal)
        return normal.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=keep, dynamic=dynamic or None)
    actual, gradients = evaluated(compiled, *given)
    expected, wanted = evaluated(function, *given)
    if given[1].dtype is torch.float32:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-5)
        return modules, messages
    precise, exact = evaluated(function, *map(in_double, given))
    for ours, theirs, truth in zip(
        [actual, *gradients], [expected, *wanted], [precise, *exact], strict=True
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours.dtype == theirs.dtype
            assert distance(ours, truth) <= 1.1 * distance(theirs, truth) + 4e-3
    return modules, messages


def in_double(item: torch.Tensor) -> torch.Tensor:
    if not item.is_floating_point():
        return item
    return item.detach().double().requires_grad_(item.requires_grad)


def distance(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the greatest difference, relative to the greatest element."""
    actual, exact = actual.detach().double(), exact.detach()
    difference = (actual - exact).abs().max() / exact.abs().max()
    return float(difference)


def evaluated(function: Callable[..., Any], *given: Any) -> tuple[Any, list[Any]]:
    """Return what a function gives, and its gradients, twice over to see that none is destroyed."""
    result = function(*given)
    first = result[0] if isinstance(result, tuple) else result
    if not first.requires_grad:
        return result, []
    sources = [item for item in given if item.is_floating_point()]
    found = []
    for factor in (1.5, 0.5):
        total = (first * torch.arange(1.0, 1.0 + first.numel()).view(first.shape)).sum() * factor
        found += torch.autograd.grad(total, sources, retain_graph=True, allow_unused=True)
    return result, found


def operators_in(modules: list[torch.fx.GraphModule]) -> int:
    return sum(node.target in OPERATORS for module in modules for node in module.graph.nodes)


@pytest.mark.parametrize("function", WRITTEN, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_found(function: Written, dynamic: bool) -> None:
    modules, messages = recognised(function, *inputs(), dynamic=dynamic)
    count = 2 if function is losses.two_heads else 1
    assert operators_in(modules) == count, messages
    assert all(message.startswith("fused: ") for message in messages)
    written = [str(node.target) for module in modules for node in module.graph.nodes]
    assert not any("softmax" in name or "linear at" in name for name in written)


@pytest.mark.parametrize("function", WRITTEN, ids=lambda f: f.__name__)
def test_found_in_low_precision(function: Written) -> None:
    modules, messages = recognised(function, *inputs(torch.bfloat16))
    assert operators_in(modules) >= 1, messages


@pytest.mark.parametrize(
    ("function", "reason"), MISSES, ids=lambda item: getattr(item, "__name__", "")
)
def test_left(function: Callable[..., Any], reason: str) -> None:
    modules, messages = recognised(function, *inputs())
    assert operators_in(modules) == 0
    if reason:
        assert any(m.startswith("not fused: ") and reason in m for m in messages), messages
    else:
        assert messages == []


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_hugging_face(kind: str, dynamic: bool) -> None:
    shared = {"vocab_size": 64, "bos_token_id": None, "eos_token_id": None}
    model: Any
    if kind == "llama":
        model = LlamaForCausalLM(
            LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                        num_attention_heads=2, num_key_value_heads=2, **shared)
        )  # fmt: skip
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, **shared)).eval()
        model.loss_type = "ForCausalLM"  # else a warning breaks the graph before the loss
    ids = torch.randint(0, 64, (2, 8))
    given = (ids, *model.parameters())

    def loss(tokens: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        return result

    modules, messages = recognised(loss, *given, dynamic=dynamic)
    assert operators_in(modules) == 1, messages


def test_small_logits_are_left() -> None:
    modules, messages = recognised(losses.nano_gpt, *inputs(), minimum=1 + 10 * CLASSES * 4)
    assert operators_in(modules) == 0
    assert messages == ["not fused: 760 bytes of logits are too few to be worth it"]
    modules, _ = recognised(losses.nano_gpt, *inputs(), minimum=10 * CLASSES * 4)
    assert operators_in(modules) == 1


def test_logits_that_are_computed_twice_must_be_large() -> None:
    for minimum, count in ((760 // 32, 1), (760 // 32 + 1, 0)):
        modules, _ = recognised(losses.of_each_token, *inputs(), minimum=minimum)
        assert operators_in(modules) == count
    with torch.no_grad():
        modules, _ = recognised(losses.of_each_token, *inputs(), minimum=760)
    assert operators_in(modules) == 1


def test_probabilities_inside_vmap_are_left() -> None:
    def each(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row, goal: F.cross_entropy(F.linear(row, w), goal))(x, t)

    modules, messages = recognised(each, *inputs())
    assert operators_in(modules) == 0
    assert "inside vmap" in messages[0]


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_only_gradients_that_are_needed(frozen: tuple[int, ...]) -> None:
    given = [t.detach().requires_grad_(n not in frozen and n < 3) for n, t in enumerate(inputs())]
    modules: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        normal = normalize(module)
        recognise(normal, 0)
        modules.append(normal)
        return normal.forward

    torch._dynamo.reset()
    torch.compile(losses.shifted, backend=keep)(*given)
    (call,) = [n for n in modules[0].graph.nodes if n.target in OPERATORS]
    assert call.args[-1] == tuple(n not in frozen for n in range(3))


@pytest.mark.parametrize("function", [losses.capped, losses.gathered, losses.of_each_token])
def test_autocast_rounds_as_in_eager(function: Written) -> None:
    def under_autocast(*given: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return function(*given)

    given = inputs()
    modules: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        normal = normalize(module)
        recognise(normal, 0)
        modules.append(normal)
        return normal.forward

    torch._dynamo.reset()
    actual = torch.compile(under_autocast, backend=keep)(*given)
    assert operators_in(modules) == 1
    expected = under_autocast(*given)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)


def test_functional_gradients() -> None:
    x, w, b, t = (item.detach() for item in inputs())
    gradient = torch.func.grad(losses.shifted, argnums=(0, 1, 2))
    torch._dynamo.reset()
    modules: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        normal = normalize(module)
        recognise(normal, 0)
        modules.append(normal)
        return normal.forward

    actual = torch.compile(gradient, backend=keep)(x, w, b, t)
    assert operators_in(modules) == 1
    torch.testing.assert_close(actual, gradient(x, w, b, t))
