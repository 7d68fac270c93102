"""Score functions that models have, as text and in torch, for tests of attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from .attentions import Example

LEAST = torch.finfo(torch.float32).min

QUERY = """%qi = iota 0, 1 {length = QUERIES, dtype = i64} : i64[QUERIES]
%q = reshape %qi {shape = [QUERIES, 1]} : i64[QUERIES, 1]
%k = iota 0, 1 {length = KEYS, dtype = i64} : i64[KEYS]
"""
SCALED = "%a = mul %dot, 0.25 : REALSHAPE\n"


def positions(dot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of queries, as a column, and of keys."""
    return torch.arange(dot.shape[2])[:, None], torch.arange(dot.shape[3])


def plain(**more: Any) -> Example:
    return Example(**more)


def scaled(**more: Any) -> Example:
    return Example(text=SCALED + "return %a", score=lambda dot: dot * 0.25, **more)


def _filled(condition: str, keeps: Any, fill: str = "-inf", number: float = -math.inf,
            **more: Any) -> Example:  # fmt: skip
    text = f"{SCALED}{QUERY}{condition}%s = where %m, %a, {fill} : REALSHAPE\nreturn %s"

    def score(dot: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        return torch.where(keeps(*positions(dot), *operands), dot * 0.25, number)

    return Example(text=text, score=score, **more)


def causal(**more: Any) -> Example:
    return _filled("%m = le %k, %q : bool[QUERIES, KEYS]\n", lambda q, k: k <= q, **more)


def causal_from_the_end(**more: Any) -> Example:
    example = _filled("", lambda q, k: k <= q, **more)
    offset = example.sizes[4] - example.sizes[3]
    condition = (
        f"%o = add %q, {offset} : i64[QUERIES, 1]\n%h = gt %k, %o : bool[QUERIES, KEYS]\n"
        "%m = logical_not %h : bool[QUERIES, KEYS]\n"
    )
    return _filled(condition, lambda q, k: k <= q + offset, **more)


def causal_with_least(**more: Any) -> Example:
    condition = "%m = le %k, %q : bool[QUERIES, KEYS]\n"
    return _filled(condition, lambda q, k: k <= q, repr(LEAST), LEAST, **more)


def window(width: int = 20, **more: Any) -> Example:
    condition = f"""%d = sub %q, %k : i64[QUERIES, KEYS]
%u = ge %d, 0 : bool[QUERIES, KEYS]
%w = lt %d, {width} : bool[QUERIES, KEYS]
%m = logical_and %u, %w : bool[QUERIES, KEYS]
"""
    return _filled(condition, lambda q, k: (q - k >= 0) & (q - k < width), **more)


def hidden_rows(**more: Any) -> Example:
    """The first queries see no key."""
    condition = """%o = sub %q, 9 : i64[QUERIES, 1]
%m = le %k, %o : bool[QUERIES, KEYS]
"""
    return _filled(condition, lambda q, k: k <= q - 9, **more)


def hidden_rows_with_least(fill: float = LEAST, **more: Any) -> Example:
    condition = """%o = sub %q, 9 : i64[QUERIES, 1]
%m = le %k, %o : bool[QUERIES, KEYS]
"""
    return _filled(condition, lambda q, k: k <= q - 9, repr(fill), fill, **more)


def prefix(**more: Any) -> Example:
    condition = """%u = le %k, %q : bool[QUERIES, KEYS]
%p = lt %k, 33 : bool[KEYS]
%m = logical_or %u, %p : bool[QUERIES, KEYS]
"""
    return _filled(condition, lambda q, k: (k <= q) | (k < 33), **more)


def blocks_of_keys(**more: Any) -> Example:
    condition = """%u = div_rounded %q, 7 {rounding = "floor"} : i64[QUERIES, 1]
%w = div_rounded %k, 7 {rounding = "floor"} : i64[KEYS]
%m = eq %u, %w : bool[QUERIES, KEYS]
"""
    return _filled(condition, lambda q, k: q // 7 == k // 7, **more)


def documents(**more: Any) -> Example:
    b, _, _, q, k, _, _ = Example(**more).sizes
    ids = (torch.arange(max(q, k))[None] + 40 * torch.arange(b)[:, None]) // 37
    text = f"""{SCALED}%u = reshape %x0 {{shape = [{b}, 1, {q}, 1]}} : i64[{b}, 1, {q}, 1]
%w = reshape %x1 {{shape = [{b}, 1, 1, {k}]}} : i64[{b}, 1, 1, {k}]
%m = eq %u, %w : bool[{b}, 1, {q}, {k}]
%s = where %m, %a, -inf : REALSHAPE
return %s"""
    operands = (ids[:, :q].contiguous(), ids[:, :k].contiguous())
    return Example(
        text=text,
        operands=operands,
        score=lambda dot, u, w: torch.where(
            u[:, None, :, None] == w[:, None, None], dot * 0.25, -math.inf
        ),
        **more,
    )


def padding(**more: Any) -> Example:
    b, _, _, _, k, _, _ = Example(**more).sizes
    mask = torch.arange(k) < (torch.arange(b)[:, None] + 1) * k // (b + 1)
    text = f"""{SCALED}%m = reshape %x0 {{shape = [{b}, 1, 1, {k}]}} : bool[{b}, 1, 1, {k}]
%s = where %m, %a, -inf : REALSHAPE
return %s"""
    return Example(
        text=text,
        operands=(mask,),
        score=lambda dot, m: torch.where(m[:, None, None], dot * 0.25, -math.inf),
        **more,
    )


def lengths(**more: Any) -> Example:
    b, _, _, _, k, _, _ = Example(**more).sizes
    text = f"""{SCALED}{QUERY}%l = reshape %x0 {{shape = [{b}, 1, 1, 1]}} : i64[{b}, 1, 1, 1]
%m = lt %k, %l : bool[{b}, 1, 1, {k}]
%s = where %m, %a, -inf : REALSHAPE
return %s"""
    return Example(
        text=text,
        operands=(torch.arange(b) * 11 + 3,),
        score=lambda dot, n: torch.where(
            positions(dot)[1] < n[:, None, None, None], dot * 0.25, -math.inf
        ),
        **more,
    )


def softcap(**more: Any) -> Example:
    text = (
        SCALED
        + """%t = div %a, 3.0 : REALSHAPE
%u = tanh %t : REALSHAPE
%s = mul %u, 3.0 : REALSHAPE
return %s"""
    )
    return Example(text=text, score=lambda dot: torch.tanh(dot * 0.25 / 3) * 3, **more)


def softcap_causal(**more: Any) -> Example:
    text = (
        SCALED
        + """%t = div %a, 3.0 : REALSHAPE
%u = tanh %t : REALSHAPE
%s = mul %u, 3.0 : REALSHAPE
"""
        + QUERY
        + """%m = le %k, %q : bool[QUERIES, KEYS]
%z = where %m, %s, -inf : REALSHAPE
return %z"""
    )

    def score(dot: torch.Tensor) -> torch.Tensor:
        q, k = positions(dot)
        return torch.where(k <= q, torch.tanh(dot * 0.25 / 3) * 3, -math.inf)

    return Example(text=text, score=score, **more)


def slopes(**more: Any) -> Example:
    """Attention with linear biases."""
    h = Example(**more).sizes[1]
    text = f"""{SCALED}{QUERY}%d = sub %k, %q : i64[QUERIES, KEYS]
%f = cast %d {{dtype = REAL}} : REAL[QUERIES, KEYS]
%l = reshape %x0 {{shape = [{h}, 1, 1]}} : f32[{h}, 1, 1]
%w = cast %l {{dtype = REAL}} : REAL[{h}, 1, 1]
%g = mul %f, %w : REAL[{h}, QUERIES, KEYS]
%s = add %a, %g : REALSHAPE
return %s"""

    def score(dot: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        q, k = positions(dot)
        return dot * 0.25 + (k - q) * x[:, None, None]

    return Example(text=text, score=score, operands=(0.5 ** torch.arange(1.0, h + 1),), **more)


def bias(shape: str = "1hqk", **more: Any) -> Example:
    """A term of which some dimensions are 1."""
    b, h, _, q, k, _, _ = Example(**more).sizes
    sizes = [n if name in shape else 1 for name, n in zip("bhqk", (b, h, q, k), strict=True)]
    text = (
        SCALED
        + """%w = cast %x0 {dtype = REAL} : REALBIAS
%s = add %a, %w : REALSHAPE
return %s""".replace("BIAS", str(sizes))
    )
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(5))
    return Example(text=text, score=lambda dot, x: dot * 0.25 + x, operands=(x,), **more)


def additive(fill: float = LEAST, **more: Any) -> Example:
    """A mask of numbers that are added, causal and with padding at the beginning."""
    b, _, _, m, n, _, _ = Example(**more).sizes
    q, k = torch.arange(m)[:, None], torch.arange(n)
    begin = torch.arange(b)[:, None, None, None] * 5
    hidden = (k > q) | (k < begin)
    x = torch.zeros(b, 1, m, n).masked_fill(hidden, fill)
    text = (
        SCALED
        + """%w = cast %x0 {dtype = REAL} : REALMASK
%s = add %a, %w : REALSHAPE
return %s""".replace("MASK", str([b, 1, m, n]))
    )
    return Example(text=text, score=lambda dot, x: dot * 0.25 + x, operands=(x,), **more)


def one_minus(fill: float = -1e9, **more: Any) -> Example:
    """`(1 - mask) * number`, added."""
    text = f"""{SCALED}{QUERY}%m = le %k, %q : bool[QUERIES, KEYS]
%f = cast %m {{dtype = REAL}} : REAL[QUERIES, KEYS]
%n = sub 1.0, %f : REAL[QUERIES, KEYS]
%w = mul %n, {fill!r} : REAL[QUERIES, KEYS]
%s = add %a, %w : REALSHAPE
return %s"""

    def score(dot: torch.Tensor) -> torch.Tensor:
        q, k = positions(dot)
        return dot * 0.25 + (1 - (k <= q).to(dot.dtype)) * fill

    return Example(text=text, score=score, **more)


ALL = {
    "plain": plain,
    "scaled": scaled,
    "causal": causal,
    "causal_from_the_end": causal_from_the_end,
    "causal_with_least": causal_with_least,
    "window": window,
    "hidden_rows": hidden_rows,
    "hidden_rows_with_least": hidden_rows_with_least,
    "hidden_rows_with_1e4": lambda **more: hidden_rows_with_least(-1e4, **more),
    "prefix": prefix,
    "blocks_of_keys": blocks_of_keys,
    "documents": documents,
    "padding": padding,
    "lengths": lengths,
    "softcap": softcap,
    "softcap_causal": softcap_causal,
    "slopes": slopes,
    "bias_1hqk": bias,
    "bias_b11k": lambda **more: bias("b11k", **more),
    "bias_1h1k": lambda **more: bias("1h1k", **more),
    "bias_1hq1": lambda **more: bias("1hq1", **more),
    "bias_1111": lambda **more: bias("", **more),
    "bias_bhqk": lambda **more: bias("bhqk", **more),
    "additive": additive,
    "additive_1e4": lambda **more: additive(-1e4, **more),
    "additive_infinite": lambda **more: additive(-math.inf, **more),
    "one_minus": one_minus,
}
"""Functions that make an example of a kind, given its sizes and more."""
