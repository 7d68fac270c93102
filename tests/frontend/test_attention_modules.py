"""Modules of torch that attend are written out, and compute what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.frontend.test_recognise_attention import Counter, distance

WIDTH, HEADS, LENGTH = 64, 4, 9
Tensor = torch.Tensor


def rows(batch: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randn(batch, length, WIDTH)


def padding() -> Tensor:
    mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    mask[1, 6:] = True
    return mask


def above(length: int = LENGTH) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 96, batch_first=True, **options)


def decoder(**options: Any) -> nn.Module:
    return nn.TransformerDecoderLayer(WIDTH, HEADS, 96, batch_first=True, **options)


Case = tuple[Callable[..., nn.Module], dict[str, Any], Callable[[nn.Module, Tensor], Any], int]
CASES: dict[str, Case] = {
    "plain": (attention, {}, lambda m, x: m(x, x, x, need_weights=False)[0], 1),
    "weights": (attention, {}, lambda m, x: m(x, x, x), 1),
    "weights of heads": (
        attention, {}, lambda m, x: m(x, x, x, average_attn_weights=False), 1),
    "no bias": (attention, {"bias": False}, lambda m, x: m(x, x, x, need_weights=False)[0], 1),
    "dropout": (attention, {"dropout": 0.3}, lambda m, x: m(x, x, x, need_weights=False)[0], 1),
    "dropped weights": (attention, {"dropout": 0.3}, lambda m, x: m(x, x, x), 1),
    "cross": (attention, {}, lambda m, x: m(x, x[:, :5] * 2, x[:, :5] * 2)[0], 1),
    "three sources": (attention, {}, lambda m, x: m(x, x * 2, x * 3)[0], 1),
    "other widths": (
        attention, {"kdim": 32, "vdim": 16}, lambda m, x: m(x, x[..., :32], x[..., :16])[0], 1),
    "padding": (attention, {}, lambda m, x: m(x, x, x, key_padding_mask=padding())[0], 1),
    "mask": (attention, {}, lambda m, x: m(x, x, x, attn_mask=above(), need_weights=False)[0], 1),
    "mask of heads": (
        attention, {}, lambda m, x: m(x, x, x, attn_mask=above().repeat(8, 1, 1))[0], 1),
    "both masks": (
        attention, {},
        lambda m, x: m(x, x, x, attn_mask=above(), key_padding_mask=padding(),
                       need_weights=False)[0], 1),
    "causal": (
        attention, {},
        lambda m, x: m(x, x, x, attn_mask=above(), is_causal=True, need_weights=False)[0], 1),
    "additive mask": (
        attention, {},
        lambda m, x: m(x, x, x, attn_mask=torch.arange(81.0).view(9, 9).sin())[0], 1),
    "no batch": (attention, {}, lambda m, x: m(x[0], x[0], x[0])[0], 0),
    "more keys": (attention, {"add_bias_kv": True}, lambda m, x: m(x, x, x)[0], 0),
    "zero keys": (attention, {"add_zero_attn": True}, lambda m, x: m(x, x, x)[0], 0),
    "encoder": (encoder, {}, lambda m, x: m(x), 1),
    "encoder, norm first": (
        encoder, {"norm_first": True, "activation": "gelu"}, lambda m, x: m(x), 1),
    "encoder, padding": (encoder, {}, lambda m, x: m(x, src_key_padding_mask=padding()), 1),
    "encoder, causal": (encoder, {}, lambda m, x: m(x, src_mask=above()), 1),
    "encoder, both": (
        encoder, {}, lambda m, x: m(x, src_mask=above(), src_key_padding_mask=padding()), 1),
    "encoder, all hidden": (
        encoder, {}, lambda m, x: m(x, src_key_padding_mask=padding() | padding().flip(1)), 1),
    "decoder": (
        decoder, {}, lambda m, x: m(x, x[:, :4], tgt_mask=above(), tgt_is_causal=True), 2),
}  # fmt: skip


def outcome(module: nn.Module, run: Callable[..., Any], x: Tensor) -> list[Tensor]:
    """Return results and, where gradients are recorded, those of everything."""
    torch.manual_seed(5)
    found = run(module, x)
    results = list(found) if isinstance(found, tuple) else [found]
    if not results[0].requires_grad:
        return [*results, torch.rand(3)]
    leaves = [x, *module.parameters()]
    incoming = torch.arange(results[0].numel(), dtype=x.dtype).mul(0.7).sin()
    gradients = torch.autograd.grad(
        results[0], leaves, incoming.view(results[0].shape), allow_unused=True
    )
    return [r.detach() for r in (*results, *(g for g in gradients if g is not None))] + [
        torch.rand(3)
    ]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_modules(name: str, training: bool) -> None:
    make, options, call, count = CASES[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = make(**options).train(training)
    x = rows().requires_grad_(training)

    def run(module: nn.Module, x: Tensor) -> Any:
        return call(module, x)

    with torch.set_grad_enabled(training):
        expected = outcome(module, run, x)
        counter = Counter()
        actual = outcome(module, torch.compile(run, backend=counter), x)
    assert counter.count == count, counter.messages
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert distance(ours.nan_to_num(), theirs.nan_to_num()) < 3e-6
    assert torch.equal(actual[-1], expected[-1])


def test_what_is_not_recognised_stays_a_call() -> None:
    """Of a module whose attention is left, nothing is written out."""
    torch._dynamo.reset()
    module = attention(add_zero_attn=True)
    counter = Counter()
    torch.compile(lambda x: module(x, x, x)[0], backend=counter)(rows())
    names = [getattr(node.target, "__name__", "") for node in counter.modules[0].graph.nodes]
    assert "multi_head_attention_forward" in names
    assert "softmax" not in names
