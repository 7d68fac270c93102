"""How people write attention: functions of queries, keys, values and more, all of them found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use

Tensor = torch.Tensor
Draw = Callable[[int, int, torch.dtype], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Idiom:
    """A function that attends, and how its operands are drawn from a batch and a length."""

    function: Callable[..., Any]
    draw: Draw
    count: int = 1

    @property
    def name(self) -> str:
        return self.function.__name__


IDIOMS: list[Idiom] = []
HEADS, SHARED, DEPTH = 4, 2, 16


def heads(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(drawn(dtype, batch, HEADS, length, DEPTH) for _ in range(3))


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def idiom(draw: Draw = heads) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        IDIOMS.append(Idiom(function, draw))
        return function

    return register


def forms_in(idioms: list[Idiom]) -> Callable[..., Callable[[Callable[..., Any]], Any]]:
    """Return a decorator that adds functions to a list of their own."""

    def form(draw: Draw = heads, count: int = 1) -> Callable[[Callable[..., Any]], Any]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            idioms.append(Idiom(function, draw, count))
            return function

        return register

    return form


def extra(*more: Callable[[int, int, torch.dtype], Tensor]) -> Draw:
    return lambda b, n, d: (*heads(b, n, d), *(one(b, n, d) for one in more))


def of_length(length: int) -> Draw:
    return lambda b, _, d: heads(b, length, d)


def with_padding(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - 3 :] = 0
    return (*heads(batch, length, dtype), mask)


def with_causal_bias(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    least = torch.finfo(dtype).min
    mask = torch.full((length, length), least, dtype=dtype).triu(1)
    return (*heads(batch, length, dtype), mask[None, None].repeat(batch, 1, 1, 1))


def rows(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(drawn(dtype, batch * HEADS, length, DEPTH) for _ in range(3))


def grouped(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    q = drawn(dtype, batch, HEADS, length, DEPTH)
    return (q, *(drawn(dtype, batch, SHARED, length, DEPTH) for _ in range(2)))


def grouped_with_bias(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (*grouped(batch, length, dtype), with_causal_bias(batch, length, dtype)[3])


@idiom()
def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v


@idiom()
def without_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(torch.matmul(q, k.transpose(-2, -1)), dim=-1).matmul(v)


@idiom(lambda b, n, d: (drawn(d, b, HEADS, n, DEPTH), drawn(d, b, HEADS, DEPTH, n),
                        drawn(d, b, HEADS, n, DEPTH)))  # fmt: skip
def keys_already_transposed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.matmul(q, k) * 0.25, dim=-1) @ v


@idiom(rows)
def plain_in_three_dimensions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(DEPTH)
    return torch.bmm(scores.softmax(-1), v)


@idiom()
def returns_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.transpose(-2, -1) * 0.25, dim=-1)
    return weights @ v, weights


@idiom()
def written_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * 0.25
    scores = scores - scores.max(dim=-1, keepdim=True).values
    weights = scores.exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v


def sequences(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(drawn(dtype, batch, length, HEADS, DEPTH) for _ in range(3))


@idiom(sequences)
def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


@idiom(with_padding)
def bert(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(DEPTH)
    extended = (1.0 - mask[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min
    weights = F.softmax(scores + extended, dim=-1)
    context = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous()
    return context.view(*context.shape[:-2], HEADS * DEPTH)


def rotated(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    angle = torch.arange(length)[:, None] * torch.logspace(0, -2, DEPTH // 2)
    angle = torch.cat([angle, angle], -1)
    return (*heads(batch, length, dtype), angle.cos().to(dtype), angle.sin().to(dtype))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., : DEPTH // 2], x[..., DEPTH // 2 :]
    return x * cos + torch.cat((-b, a), dim=-1) * sin


@idiom(rotated)
def hugging_face_rotary(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    weights = torch.matmul(q, k.transpose(2, 3)) * DEPTH**-0.5
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


@idiom(with_causal_bias)
def hugging_face_llama(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = torch.matmul(q, k.transpose(2, 3)) * DEPTH**-0.5
    weights = weights + mask[:, :, :, : k.shape[-2]]
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    weights = F.dropout(weights, p=0.0, training=True)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def repeat_kv(x: Tensor, count: int) -> Tensor:
    batch, shared, length, depth = x.shape
    x = x[:, :, None, :, :].expand(batch, shared, count, length, depth)
    return x.reshape(batch, shared * count, length, depth)


@idiom(grouped_with_bias)
def hugging_face_grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = repeat_kv(k, HEADS // SHARED), repeat_kv(v, HEADS // SHARED)
    weights = torch.matmul(q, k.transpose(2, 3)) * DEPTH**-0.5 + mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


@idiom(grouped_with_bias)
def gemma_softcap(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = repeat_kv(k, HEADS // SHARED), repeat_kv(v, HEADS // SHARED)
    weights = torch.matmul(q, k.transpose(2, 3)) * 0.25
    weights = torch.tanh(weights / 5.0) * 5.0 + mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def for_meta(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    mask = torch.full((length, length), float("-inf"), dtype=dtype).triu(1)
    return (*sequences(batch, length, dtype), mask)


@idiom(for_meta)
def meta_llama(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(DEPTH)
    scores = scores + mask
    scores = F.softmax(scores.float(), dim=-1).type_as(q)
    out = torch.matmul(scores, v)
    return out.transpose(1, 2).contiguous().view(q.shape[0], q.shape[2], -1)


def packed(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    x = drawn(dtype, batch, length, 3 * HEADS * DEPTH)
    return x, torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32)


@idiom(packed)
def nano_gpt(x: Tensor, bias: Tensor) -> Tensor:
    batch, length, width = x.shape
    parts = x.split(width // 3, dim=2)
    q, k, v = (p.view(batch, length, HEADS, DEPTH).transpose(1, 2) for p in parts)
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(bias[:, :, :length, :length] == 0, float("-inf"))
    y = F.softmax(att, dim=-1) @ v
    return y.transpose(1, 2).contiguous().view(batch, length, width // 3)


@idiom(lambda b, n, d: (*heads(b, n, d), torch.ones(1, 1, 32, 32, dtype=torch.bool).tril()))
def old_gpt2(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    weights = torch.matmul(q, k.transpose(-1, -2))
    weights = weights / torch.full([], DEPTH**0.5, dtype=weights.dtype, device=weights.device)
    n, m = q.size(-2), k.size(-2)
    causal = bias[:, :, m - n : m, :m]
    least = torch.full([], torch.finfo(weights.dtype).min, dtype=weights.dtype)
    weights = torch.where(causal, weights.to(weights.dtype), least)
    weights = F.softmax(weights, dim=-1).type(v.dtype)
    return torch.matmul(weights, v)


@idiom(lambda b, n, d: (*heads(b, n, d), torch.ones(1, 1, 32, 32, dtype=torch.bool).tril()))
def gpt_neox(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    batch, count, n, depth = q.size()
    m = k.size(-2)
    causal = bias[:, :, m - n : m, :m]
    q, k = q.reshape(batch * count, n, depth), k.reshape(batch * count, m, depth)
    scores = torch.zeros(batch * count, n, m, dtype=q.dtype, device=q.device)
    scores = torch.baddbmm(scores, q, k.transpose(1, 2), beta=1.0, alpha=depth**-0.5)
    scores = scores.view(batch, count, n, m)
    least = torch.tensor(torch.finfo(scores.dtype).min, dtype=scores.dtype)
    scores = torch.where(causal, scores, least)
    return torch.matmul(F.softmax(scores, dim=-1).to(v.dtype), v)


def with_alibi(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    slopes = 2.0 ** -torch.arange(1, HEADS + 1)
    alibi = (slopes[:, None, None] * torch.arange(length)[None, None, :]).to(dtype)
    return (*with_causal_bias(batch, length, dtype), alibi.repeat(batch, 1, 1))


@idiom(with_alibi)
def falcon_alibi(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, alibi: Tensor) -> Tensor:
    batch, count, n, depth = q.shape
    scores = (q @ k.transpose(-1, -2)).view(batch, count, n, -1)
    logits = scores + alibi.view(batch, count, 1, -1)
    logits = logits * (1.0 / math.sqrt(depth))
    weights = F.softmax(logits + mask, dim=-1, dtype=q.dtype)
    out = (weights.view(batch, count, n, -1) @ v).view(batch, count, n, depth)
    return out.permute(0, 2, 1, 3).reshape(batch, n, count * depth)


@idiom(lambda b, n, d: (*with_padding(b, n, d), drawn(d, 1, HEADS, n, n)))
def t5(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, position_bias: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(3, 2))
    extended = (1.0 - mask[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min
    scores += position_bias + extended
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    out = torch.matmul(weights, v).transpose(1, 2).contiguous()
    return out.view(q.shape[0], -1, HEADS * DEPTH)


@idiom(lambda b, n, d: (drawn(d, b, n, 3 * HEADS * DEPTH),))
def timm_vit(x: Tensor) -> Tensor:
    batch, n, width = x.shape
    qkv = x.reshape(batch, n, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    q = q * DEPTH**-0.5
    attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
    return (attn @ v).transpose(1, 2).reshape(batch, n, width // 3)


def windows(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    parts = tuple(drawn(dtype, batch * 4, HEADS, length, DEPTH) for _ in range(3))
    mask = torch.zeros(4, length, length)
    mask[1:, : length // 2, length // 2 :] = -100.0
    return (*parts, drawn(dtype, HEADS, length, length), mask.to(dtype))


@idiom(windows)
def swin(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    rows, _, n, _ = q.shape
    count = mask.shape[0]
    attn = (q * DEPTH**-0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    attn = attn.view(rows // count, count, HEADS, n, n) + mask.unsqueeze(1).unsqueeze(0)
    attn = attn.view(-1, HEADS, n, n).softmax(dim=-1)
    return (attn @ v).transpose(1, 2).reshape(rows, n, HEADS * DEPTH)


@idiom(rows)
def stable_diffusion(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    empty = torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype, device=q.device)
    scores = torch.baddbmm(empty, q, k.transpose(-1, -2), beta=0, alpha=DEPTH**-0.5)
    return torch.bmm(scores.softmax(dim=-1).to(q.dtype), v)


def projected(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    width = HEADS * DEPTH
    weights = tuple((torch.randn(width, width) / 8).to(dtype).requires_grad_() for _ in range(3))
    return (drawn(dtype, batch, length, width), *weights)


@idiom(projected)
def whisper(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    batch, n, width = x.shape

    def split(y: Tensor) -> Tensor:
        return y.view(batch, n, HEADS, DEPTH).transpose(1, 2).contiguous()

    q = split(F.linear(x, a) * DEPTH**-0.5)
    k, v = split(F.linear(x, b)), split(F.linear(x, c))
    weights = F.softmax(torch.matmul(q, k.transpose(2, 3)), dim=-1)
    out = torch.matmul(weights, v)
    return out.transpose(1, 2).contiguous().reshape(batch, n, width)
