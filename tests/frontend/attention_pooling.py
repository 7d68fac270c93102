"""Attention of latents, pools and pairs, and guards of its weights: all of it is found."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use

from tests.frontend.attention_idioms import (
    DEPTH,
    HEADS,
    Idiom,
    Tensor,
    drawn,
    forms_in,
    heads,
)

WIDTH = HEADS * DEPTH
POOLING: list[Idiom] = []


form = forms_in(POOLING)


@form(lambda b, n, d: (drawn(d, 5, WIDTH), drawn(d, b, n, WIDTH), drawn(d, b, n, WIDTH)))
def perceiver(lat: Tensor, k: Tensor, v: Tensor) -> Any:
    q = lat.view(5, HEADS, DEPTH).transpose(0, 1)
    k, v = (x.view(x.shape[0], -1, HEADS, DEPTH).transpose(1, 2) for x in (k, v))
    return ((q @ k.mT * 0.25).softmax(-1) @ v).transpose(1, 2).flatten(2)


@form(lambda b, n, d: (drawn(d, 1, 5, WIDTH), drawn(d, b, n, WIDTH)))
def set_transformer(seed: Tensor, x: Tensor) -> Any:
    q = seed.repeat(x.shape[0], 1, 1)
    q_ = torch.cat(q.split(DEPTH, 2), 0)
    k_ = torch.cat(x.split(DEPTH, 2), 0)
    v_ = k_
    a = torch.softmax(q_.bmm(k_.transpose(1, 2)) / math.sqrt(WIDTH), 2)
    return torch.cat((q_ + a.bmm(v_)).split(q.size(0), 0), 2)


@form(lambda b, n, d: (drawn(d, b, WIDTH), drawn(d, b, n, WIDTH)))
def pointer_glimpse(q: Tensor, refs: Tensor) -> Any:
    s = torch.bmm(refs, q.unsqueeze(2)).squeeze(2) * 0.1
    p = F.softmax(s, -1)
    return torch.bmm(p.unsqueeze(1), refs).squeeze(1), p


@form(lambda b, n, d: (drawn(d, WIDTH), drawn(d, b, n, WIDTH)))
def pool_learned_query(q: Tensor, x: Tensor) -> Any:
    s = x @ q * 0.1
    return (s.softmax(-1).unsqueeze(1) @ x).squeeze(1)


@form(lambda b, n, d: (drawn(d, WIDTH), drawn(d, b, n, WIDTH)))
def pool_learned_einsum(q: Tensor, x: Tensor) -> Any:
    a = torch.einsum("bnd,d->bn", x, q) * 0.1
    return torch.einsum("bn,bnd->bd", a.softmax(1), x)


@form(lambda b, n, d: (drawn(d, WIDTH), drawn(d, b, n, WIDTH)))
def pool_learned_mul(q: Tensor, x: Tensor) -> Any:
    a = torch.matmul(x, q * 0.1)
    a = torch.softmax(a, 1)
    return torch.sum(x * a.unsqueeze(-1), dim=1)


@form(lambda b, n, d: (drawn(d, b, n, WIDTH), drawn(d, WIDTH), drawn(d, WIDTH, WIDTH)))
def bahdanau(x: Tensor, w: Tensor, u: Tensor) -> Any:
    a = torch.tanh(x @ u) @ w
    return (a.softmax(-1)[:, None] @ x)[:, 0]


@form(lambda b, n, d: (*heads(b, n, d), drawn(d, HEADS)))
def whisper_like(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Any:
    _b, _h, n, dd = q.shape
    q = q.permute(0, 2, 1, 3) * (dd**-0.25)
    k = k.permute(0, 2, 1, 3) * (dd**-0.25)
    q = q.permute(0, 2, 1, 3)
    k = k.permute(0, 2, 3, 1)
    qk = q @ k
    qk = qk + torch.empty(n, n).fill_(-math.inf).triu_(1)[:n, :n]
    qk = qk.float()
    w = F.softmax(qk, -1).to(q.dtype)
    return (w @ v).permute(0, 2, 1, 3).flatten(2)


@form(
    lambda b, n, d: (
        drawn(d, n, b, WIDTH),
        drawn(d, n, b, WIDTH),
        drawn(d, n, b, WIDTH),
        torch.arange(n)[None].repeat(b, 1) >= n - 2,
    )
)
def fairseq(q: Tensor, k: Tensor, v: Tensor, pad: Tensor) -> Any:
    n, b, _ = q.shape
    q, k, v = (x.contiguous().view(n, b * HEADS, DEPTH).transpose(0, 1) for x in (q * 0.25, k, v))
    w = torch.bmm(q, k.transpose(1, 2))
    w = (
        w.view(b, HEADS, n, n)
        .masked_fill(pad.unsqueeze(1).unsqueeze(2).to(torch.bool), float("-inf"))
        .view(b * HEADS, n, n)
    )
    wf = F.softmax(w, dim=-1, dtype=torch.float32)
    w = wf.type_as(w)
    o = torch.bmm(w, v).transpose(0, 1).contiguous().view(n, b, WIDTH)
    return o, wf.view(b, HEADS, n, n).transpose(1, 0).mean(0)


@form(lambda b, n, d: (*heads(b, n, d), drawn(d, HEADS, n, n)))
def evoformer_gate(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    q = q.movedim(1, -2)
    k = k.movedim(1, -2)
    v = v.movedim(1, -2)
    a = torch.matmul(q.transpose(-2, -3), k.permute(0, 2, 3, 1))
    a += bias
    a = torch.nn.functional.softmax(a * 0.25, -1)
    o = torch.matmul(a, v.transpose(-2, -3)).transpose(-2, -3)
    return o * torch.sigmoid(o)


@form(lambda b, n, d: (drawn(d, b, n, WIDTH), drawn(d, b, n, WIDTH)))
def bidaf(c: Tensor, q: Tensor) -> Any:
    s = torch.bmm(c, q.transpose(1, 2)) * 0.05
    s1 = s.softmax(2)
    return torch.bmm(s1, q)


@form(lambda b, n, d: (drawn(d, b, n, WIDTH), drawn(d, b, n, WIDTH)), 2)
def bidaf_both(c: Tensor, q: Tensor) -> Any:
    s = torch.bmm(c, q.transpose(1, 2)) * 0.05
    return torch.bmm(s.softmax(2), q) + torch.bmm(s.softmax(1).transpose(1, 2), c)


@form(lambda b, n, d: (*heads(b, n, d), drawn(d, 3, HEADS, DEPTH), drawn(d, 3, HEADS, DEPTH)))
def memory_tokens(q: Tensor, k: Tensor, v: Tensor, mk: Tensor, mv: Tensor) -> Any:
    b = q.shape[0]
    k = torch.cat([mk.transpose(0, 1)[None].expand(b, -1, -1, -1), k], 2)
    v = torch.cat([mv.transpose(0, 1)[None].expand(b, -1, -1, -1), v], 2)
    return (q @ k.mT * 0.25).softmax(-1) @ v


@form(lambda b, n, d: (*heads(b, n, d),))
def qk_norm(q: Tensor, k: Tensor, v: Tensor) -> Any:
    q = F.layer_norm(q, (DEPTH,))
    k = F.layer_norm(k, (DEPTH,))
    return (q @ k.mT / 4).softmax(-1) @ v


@form(lambda b, n, d: (*heads(b, n, d), drawn(d, HEADS)), 2)
def differential_like(q: Tensor, k: Tensor, v: Tensor, lam: Tensor) -> Any:
    a = (q[..., :8] @ k[..., :8].mT * 0.3).softmax(-1)
    b = (q[..., 8:] @ k[..., 8:].mT * 0.3).softmax(-1)
    return (a - lam[:, None, None] * b) @ v


@form(lambda b, n, d: (*heads(b, n, d),))
def kerple_log(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[-2]
    i = torch.arange(n, dtype=torch.float32)
    bias = -torch.log1p((i[:, None] - i).abs() * 0.5)
    return ((q @ k.mT * 0.25) + bias.to(q.dtype)).softmax(-1) @ v


@form(lambda b, n, d: (*heads(b, n, d), drawn(d, b, HEADS, n)))
def forgetting(q: Tensor, k: Tensor, v: Tensor, f: Tensor) -> Any:
    c = F.logsigmoid(f).cumsum(-1)
    n = q.shape[-2]
    s = q @ k.mT * 0.25 + (c[..., :, None] - c[..., None, :])
    return s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf).softmax(-1) @ v


@form(lambda b, n, d: (*heads(b, n, d),))
def stick_temperature_log_n(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[-2]
    s = q @ k.mT * (0.25 * math.log(n))
    return s.softmax(-1) @ v


@form(lambda b, n, d: (*heads(b, n, d),))
def causal_by_where_scalar(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[-2]
    bias = torch.tril(torch.ones((n, n), dtype=torch.bool)).view(1, 1, n, n)
    s = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], v.size(-1) ** 0.5, dtype=q.dtype)
    s = torch.where(bias, s.to(q.dtype), torch.full([], torch.finfo(s.dtype).min, dtype=s.dtype))
    return torch.matmul(F.softmax(s, -1).type(v.dtype), v)


@form(lambda b, n, d: (*heads(b, n, d), torch.ones(b, n, dtype=d)))
def one_minus_mask(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Any:
    e = (1.0 - m[:, None, None, :]) * -10000.0
    return ((q @ k.mT) / 4 + e).softmax(-1) @ v


@form(lambda b, n, d: (*heads(b, n, d), torch.ones(b, n, dtype=torch.int64)))
def xlm_mask(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Any:
    s = q @ k.mT / 4
    mm = (m == 0).view(m.shape[0], 1, 1, -1).expand_as(s)
    s.masked_fill_(mm, torch.finfo(s.dtype).min)
    return F.softmax(s.float(), -1).type_as(s) @ v


@form(
    lambda b, n, d: (
        drawn(d, b, 6, n, HEADS, DEPTH),
        drawn(d, b, 6, n, HEADS, DEPTH),
        drawn(d, b, 6, n, HEADS, DEPTH),
    )
)
def msa_column(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = torch.einsum("brnhd,bsnhd->bhnrs", q, k) * 0.25
    return torch.einsum("bhnrs,bsnhd->brnhd", s.softmax(-1), v)


@form(
    lambda b, n, d: (
        drawn(d, b, 6, n, HEADS, DEPTH),
        drawn(d, b, 6, n, HEADS, DEPTH),
        drawn(d, b, 6, n, HEADS, DEPTH),
    )
)
def msa_tied_rows(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = torch.einsum("brihd,brjhd->bhij", q, k) * 0.1
    return torch.einsum("bhij,brjhd->brihd", s.softmax(-1), v)


@form(lambda b, n, d: (*heads(b, n, d), drawn(d, HEADS)))
def softmax_off_by_one_pad(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Any:
    s = F.pad(q @ k.mT * 0.25, (1, 0))
    return s.softmax(-1)[..., 1:] @ v


@form(lambda b, n, d: (*heads(b, n, d),))
def autocasted(q: Tensor, k: Tensor, v: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (q @ k.mT * 0.25).softmax(-1) @ v


@form(lambda b, n, d: (*heads(b, n, d), drawn(d, b, HEADS, n, n)))
def residual_scores(q: Tensor, k: Tensor, v: Tensor, prev: Tensor) -> Any:
    s = q @ k.mT * 0.25 + prev
    return s.softmax(-1) @ v, s


@form(lambda b, n, d: (*heads(b, n, d),))
def nan_guard(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[-2]
    s = (q @ k.mT * 0.25).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(), -math.inf)
    w = s.softmax(-1)
    w = torch.where(torch.isnan(w), torch.zeros_like(w), w)
    return w @ v


@form(lambda b, n, d: (*heads(b, n, d),))
def shifted_and_clamped(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = q @ k.mT * 0.25
    s = s - s.max(dim=-1, keepdim=True)[0].detach()
    s = s.clamp(min=-50000, max=50000)
    return s.softmax(-1) @ v


@form(
    lambda b, n, d: (
        drawn(d, b, n, HEADS, DEPTH),
        drawn(d, b, n, HEADS, DEPTH),
        drawn(d, b, n, HEADS, DEPTH),
    )
)
def rotary(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[1]
    f = torch.outer(
        torch.arange(n).float(), 1 / 10000 ** (torch.arange(0, DEPTH, 2).float() / DEPTH)
    )
    c, s = f.cos()[None, :, None], f.sin()[None, :, None]

    def r(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * c - b * s, a * s + b * c], -1).type_as(x)

    q, k = r(q), r(k)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@form(lambda b, n, d: (*heads(b, n, d),))
def scale_by_len_alibi_buffer(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[-2]
    al = (
        torch.tensor([0.5, 0.25, 0.125, 0.0625]).view(HEADS, 1, 1) * torch.arange(n).view(1, 1, n)
    ).to(q.dtype)
    s = torch.baddbmm(
        al.repeat(q.shape[0], 1, 1), q.flatten(0, 1), k.flatten(0, 1).mT, beta=1.0, alpha=0.25
    )
    n = q.shape[-2]
    s = s.view(*q.shape[:2], n, n).masked_fill(
        torch.ones(n, n, dtype=torch.bool).triu(1), torch.finfo(s.dtype).min
    )
    return (
        F.softmax(s, -1, dtype=torch.float32).to(q.dtype).view(-1, n, n) @ v.flatten(0, 1)
    ).view_as(q)


@form(lambda b, n, d: (*heads(b, n, d), drawn(d, HEADS, 1, 1)))
def cross_with_null_key(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Any:
    b, h, _n, dd = q.shape
    nk, nv = (
        torch.ones(1, 1, 1, dd, dtype=q.dtype).expand(b, h, 1, dd),
        torch.zeros(1, 1, 1, dd, dtype=q.dtype).expand(b, h, 1, dd),
    )
    return (q @ torch.cat([nk, k], 2).mT * 0.25).softmax(-1) @ torch.cat([nv, v], 2)


@form(lambda b, n, d: (*heads(b, n, d),))
def nan_fill(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[-2]
    s = (q @ k.mT * 0.25).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(), -math.inf)
    w = s.softmax(-1)
    return w.masked_fill(w.isnan(), 0) @ v
