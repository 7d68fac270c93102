"""Calls of flex_attention: all of them are found."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.frontend.attention_idioms import (
    DEPTH,
    HEADS,
    SHARED,
    Idiom,
    Tensor,
    drawn,
    forms_in,
    of_length,
)

WIDTH = HEADS * DEPTH
FLEX: list[Idiom] = []


form = forms_in(FLEX)


@form(of_length(16))
def flex_rel(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j).abs() * -0.1)


@form(of_length(16))
def flex_causal(q: Tensor, k: Tensor, v: Tensor) -> Any:
    m = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")
    return flex_attention(q, k, v, block_mask=m)


@form(of_length(16))
def flex_soft_window(q: Tensor, k: Tensor, v: Tensor) -> Any:
    m = create_block_mask(
        lambda b, h, i, j: (i >= j) & (i - j < 5), None, None, 16, 16, device="cpu"
    )
    return flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s / 2) * 2, block_mask=m, scale=0.3
    )


@form(
    lambda b, n, d: (
        drawn(d, b, HEADS, 16, DEPTH),
        drawn(d, b, SHARED, 16, DEPTH),
        drawn(d, b, SHARED, 16, DEPTH),
        torch.randn(HEADS),
    )
)
def flex_gqa_slopes(q: Tensor, k: Tensor, v: Tensor, sl: Tensor) -> Any:
    return flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: s + sl[h] * (j - i), enable_gqa=True
    )


@form(
    lambda b, n, d: (
        *(drawn(d, b, HEADS, 16, DEPTH) for _ in range(3)),
        torch.arange(16).div(4, rounding_mode="floor"),
    )
)
def flex_docs(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Any:
    m = create_block_mask(lambda b, h, i, j: ids[i] == ids[j], None, None, 16, 16, device="cpu")
    return flex_attention(q, k, v, block_mask=m)


@form(lambda b, n, d: (*(drawn(d, b, HEADS, 16, DEPTH) for _ in range(3)), torch.randn(31)))
def flex_table(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + t[i - j + 15])
