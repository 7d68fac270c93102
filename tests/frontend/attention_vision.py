"""Attention as published models of images compute it, in few lines each: all of it is found."""

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
    of_length,
)

WIDTH = HEADS * DEPTH
VISION: list[Idiom] = []


form = forms_in(VISION)


@form(
    lambda b, n, d: (
        drawn(d, b, 9, 3 * WIDTH),
        drawn(d, 25, HEADS),
        torch.arange(81).reshape(9, 9) % 25,
    )
)
def swin_relpos(x: Tensor, table: Tensor, idx: Tensor) -> Any:
    b, n, _ = x.shape
    qkv = x.reshape(b, n, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    s = (q * 0.25) @ k.transpose(-2, -1)
    bias = table[idx.view(-1)].view(n, n, -1).permute(2, 0, 1).contiguous()
    return (s + bias.unsqueeze(0)).softmax(-1) @ v


@form(
    lambda b, n, d: (
        drawn(d, 4 * b, 9, 3 * WIDTH),
        torch.where(torch.rand(4, 9, 9) > 0.7, -100.0, 0.0).to(d),
    )
)
def swin_shift_mask(x: Tensor, mask: Tensor) -> Any:
    b, n, _ = x.shape
    q, k, v = x.reshape(b, n, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4).unbind(0)
    s = (q * 0.25) @ k.mT
    s = s.view(-1, 4, HEADS, n, n) + mask[None, :, None]
    s = s.view(-1, HEADS, n, n)
    return (s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1)


@form(lambda b, n, d: (drawn(d, b, 8, 8, WIDTH),))
def maxvit_grid(x: Tensor) -> Any:
    b, h, w, c = x.shape
    x = x.view(b, 2, 4, 2, 4, c).permute(0, 2, 4, 1, 3, 5).reshape(-1, 4, c)
    q = x.view(-1, 4, HEADS, DEPTH).transpose(1, 2)
    return (
        ((q @ q.mT * 0.25).softmax(-1) @ q)
        .transpose(1, 2)
        .reshape(b, 4, 4, 2, 2, c)
        .permute(0, 3, 1, 4, 2, 5)
        .reshape(b, h, w, c)
    )


@form(
    lambda b, n, d: (
        drawn(d, b, HEADS, 12, DEPTH),
        drawn(d, b, HEADS, 12, DEPTH),
        drawn(d, b, HEADS, 12, DEPTH),
        drawn(d, 3, 3, DEPTH),
        drawn(d, 4, 4, DEPTH),
    )
)
def sam_decomposed(q: Tensor, k: Tensor, v: Tensor, rh: Tensor, rw: Tensor) -> Any:
    b, h, n, dd = q.shape
    s = (q * 0.25) @ k.transpose(-2, -1)
    rq = q.reshape(b * h, 3, 4, dd)
    a = torch.einsum("bhwc,hkc->bhwk", rq, rh)
    c = torch.einsum("bhwc,wkc->bhwk", rq, rw)
    s = s.view(b * h, 3, 4, 3, 4) + a[:, :, :, :, None] + c[:, :, :, None, :]
    s = s.view(b, h, n, n)
    return s.softmax(-1) @ v


@form(
    lambda b, n, d: (
        drawn(d, b, WIDTH, 4, 4),
        drawn(d, 8, WIDTH, 1, 1),
        drawn(d, 8, WIDTH, 1, 1),
        drawn(d, WIDTH, WIDTH, 1, 1),
    )
)
def nonlocal_block(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> Any:
    b, c, h, w = x.shape
    q = F.conv2d(x, wq).view(b, 8, -1).permute(0, 2, 1)
    k = F.conv2d(x, wk).view(b, 8, -1)
    v = F.conv2d(x, wv).view(b, c, -1)
    a = torch.bmm(q, k).mul(0.05).softmax(-1)
    return torch.bmm(v, a.permute(0, 2, 1)).view(b, c, h, w) + x


@form(lambda b, n, d: (drawn(d, b, WIDTH, 4, 4),))
def danet_channel(x: Tensor) -> Any:
    b, c, h, w = x.shape
    q = x.view(b, c, -1)
    e = torch.bmm(q, q.permute(0, 2, 1)) * 0.1
    e = torch.max(e, -1, keepdim=True)[0].expand_as(e) - e
    return torch.bmm(e.softmax(-1), q).view(b, c, h, w)


@form(lambda b, n, d: (drawn(d, b, WIDTH, n), drawn(d, b, WIDTH, n), drawn(d, b, WIDTH, n)))
def sagan_1d(f: Tensor, g: Tensor, h: Tensor) -> Any:
    s = torch.bmm(f.transpose(1, 2), g) * 0.05
    beta = F.softmax(s, dim=1)
    return torch.bmm(h, beta)


@form(
    lambda b, n, d: (
        drawn(d, b * HEADS, n, DEPTH),
        drawn(d, b * HEADS, 7, DEPTH),
        drawn(d, b * HEADS, 7, DEPTH),
    )
)
def sd_cross(q: Tensor, k: Tensor, v: Tensor) -> Any:
    dt = q.dtype
    s = torch.baddbmm(
        torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype),
        q,
        k.transpose(-1, -2),
        beta=0,
        alpha=0.25,
    )
    p = s.float().softmax(-1).to(dt)
    return torch.bmm(p, v)


@form(lambda b, n, d: (drawn(d, b, 3 * WIDTH, 16),))
def sd_qkv_legacy(qkv: Tensor) -> Any:
    bs, w, length = qkv.shape
    ch = w // (3 * HEADS)
    q, k, v = qkv.reshape(bs * HEADS, ch * 3, length).split(ch, dim=1)
    sc = 1 / math.sqrt(math.sqrt(ch))
    wt = torch.einsum("bct,bcs->bts", q * sc, k * sc)
    wt = torch.softmax(wt.float(), dim=-1).type(wt.dtype)
    return torch.einsum("bts,bcs->bct", wt, v).reshape(bs, -1, length)


@form(
    lambda b, n, d: (drawn(d, b, WIDTH, 4, 4), drawn(d, b, WIDTH, 4, 4), drawn(d, b, WIDTH, 4, 4))
)
def vae_attn(q: Tensor, k: Tensor, v: Tensor) -> Any:
    b, c, h, w = q.shape
    q = q.reshape(b, c, h * w).permute(0, 2, 1)
    k = k.reshape(b, c, h * w)
    w_ = torch.bmm(q, k) * (int(c) ** (-0.5))
    w_ = F.softmax(w_, dim=2)
    v = v.reshape(b, c, h * w)
    w_ = w_.permute(0, 2, 1)
    return torch.bmm(v, w_).reshape(b, c, h, w)


@form(lambda b, n, d: (drawn(d, b, 8, 8, HEADS * DEPTH),))
def window_partition(x: Tensor) -> Any:
    b, h, w, c = x.shape
    x = x.view(b, 2, 4, 2, 4, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 16, c)
    q = x.reshape(-1, 16, HEADS, DEPTH).permute(0, 2, 1, 3)
    o = (q * 0.25 @ q.transpose(-2, -1)).softmax(-1) @ q
    return (
        o.transpose(1, 2)
        .reshape(-1, 16, c)
        .view(b, 2, 2, 4, 4, c)
        .permute(0, 1, 3, 2, 4, 5)
        .reshape(b, h, w, c)
    )


@form(
    lambda b, n, d: (
        drawn(d, b, 5, HEADS * DEPTH),
        drawn(d, b, HEADS * DEPTH, 6, 6),
        drawn(d, HEADS * DEPTH, HEADS * DEPTH),
    )
)
def mask2former_masked(q: Tensor, f: Tensor, w: Tensor) -> Any:
    _b, _n, _c = q.shape
    m = torch.einsum("bqc,bchw->bqhw", q.detach(), f.detach()).flatten(2).sigmoid() < 0.5
    m = torch.where(m.sum(-1, keepdim=True) == m.shape[-1], False, m)
    k = f.flatten(2).transpose(1, 2)
    s = (q @ w) @ k.mT * 0.01
    return s.masked_fill(m, -math.inf).softmax(-1) @ k


@form(lambda b, n, d: (*heads(b, n, d),))
def axial(q: Tensor, k: Tensor, v: Tensor) -> Any:
    # rows of an image as batch: einsum over 5d
    q, k, v = (x.unflatten(2, (3, -1)) for x in (q, k, v))
    a = torch.einsum("bhxid,bhxjd->bhxij", q, k).mul(0.25).softmax(-1)
    return torch.einsum("bhxij,bhxjd->bhxid", a, v)


@form(of_length(12), 3)
def chunked_queries(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return torch.cat([(c @ k.mT * 0.25).softmax(-1) @ v for c in q.split(4, 2)], 2)


@form(of_length(12), 3)
def chunked_preallocated(q: Tensor, k: Tensor, v: Tensor) -> Any:
    out = torch.zeros_like(q)
    for i in range(0, 12, 4):
        s = q[:, :, i : i + 4] @ k.mT * 0.25
        out[:, :, i : i + 4] = s.softmax(-1) @ v
    return out


@form(of_length(12), 3)
def chunked_list_causal(q: Tensor, k: Tensor, v: Tensor) -> Any:
    o = []
    for i in range(0, 12, 4):
        s = q[:, :, i : i + 4] @ k[:, :, : i + 4].mT * 0.25
        m = torch.arange(i, i + 4)[:, None] >= torch.arange(i + 4)
        o.append(s.masked_fill(~m, -math.inf).softmax(-1) @ v[:, :, : i + 4])
    return torch.cat(o, 2)
