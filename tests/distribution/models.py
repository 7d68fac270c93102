"""Small models that are laid out on meshes in tests: of uneven sizes, with what real ones do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

import lynx

Made = tuple[nn.Module, Mapping[str, Any] | Sequence[Any]]


@dataclass(frozen=True)
class Shape:
    """Sizes and variants of a transformer."""

    vocabulary: int = 64
    width: int = 32
    heads: int = 4
    shared: int = 0
    layers: int = 2
    batch: int = 8
    length: int = 16
    fused: bool = False
    bias: bool = True
    tied: bool = False
    post_norm: bool = False
    dropout: float = 0.0
    mask: bool = False
    residual: str = ""
    """How what goes from layer to layer lies."""


class Block(nn.Module):
    """A layer of a transformer, with separate or fused projections; heads of keys may be shared."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, self.depth = shape.width, shape.width // shape.heads
        inner = (shape.shared or shape.heads) * self.depth
        self.sizes = (shape.heads * self.depth, inner, inner)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        if shape.fused:
            self.qkv = nn.Linear(width, sum(self.sizes), bias=shape.bias)
        else:
            self.q = nn.Linear(width, self.sizes[0], bias=shape.bias)
            self.k = nn.Linear(width, inner, bias=shape.bias)
            self.v = nn.Linear(width, inner, bias=shape.bias)
        self.o = nn.Linear(self.sizes[0], width, bias=shape.bias)
        self.up = nn.Linear(width, 4 * width, bias=shape.bias)
        self.down = nn.Linear(4 * width, width, bias=shape.bias)

    def attend(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return what heads see, projected."""
        batch, length, _ = x.shape
        parts = (
            self.qkv(x).split(self.sizes, -1)
            if self.shape.fused
            else (self.q(x), self.k(x), self.v(x))
        )
        q, k, v = (p.view(batch, length, -1, self.depth).transpose(1, 2) for p in parts)
        seen = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=bool(self.shape.shared)
        )
        return self.o(seen.transpose(1, 2).reshape(batch, length, -1))

    def drop(self, x: torch.Tensor) -> torch.Tensor:
        """Drop some."""
        return F.dropout(x, self.shape.dropout, self.training) if self.shape.dropout else x

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the next layer's input."""
        if self.shape.post_norm:
            x = self.norm1(x + self.drop(self.attend(x, mask)))
            return self.norm2(x + self.drop(self.down(F.gelu(self.up(x)))))
        x = self.constrained(x + self.drop(self.attend(self.norm1(x), mask)))
        return self.constrained(x + self.drop(self.down(F.gelu(self.up(self.norm2(x))))))

    def constrained(self, x: torch.Tensor) -> torch.Tensor:
        """Say how the residual lies."""
        return lynx.constrain(x, self.shape.residual) if self.shape.residual else x


class Transformer(nn.Module):
    """A GPT: tokens and targets in, the loss out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def forward(
        self, ids: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the mean loss of tokens."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, mask)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def transformer(**fields: Any) -> Made:
    """Make a transformer and a batch of tokens."""
    shape = Shape(**fields)
    torch.manual_seed(0)
    model = Transformer(shape)
    ids = torch.randint(0, shape.vocabulary, (2, shape.batch, shape.length))
    inputs = [ids[0], ids[1]]
    inputs[1][:, -1] = -100
    if shape.mask:
        mask = torch.rand(shape.batch, 1, shape.length, shape.length) < 0.7
        inputs.append(mask | torch.eye(shape.length, dtype=torch.bool))
    return model, inputs


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, channels: int, to: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(channels, to, 3, stride, 1, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(to), nn.BatchNorm2d(to)
        self.b = nn.Conv2d(to, to, 3, 1, 1, groups=2)
        self.skip = nn.Conv2d(channels, to, 1, stride) if to != channels else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next block's input."""
        y = F.relu(self.norm_a(self.a(x)), inplace=True)
        y = self.norm_b(self.b(y))
        y += self.skip(x)
        return F.relu(y)


class ConvNet(nn.Module):
    """A small residual network; its batch norms change buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.blocks = nn.Sequential(Residual(6, 6, 1), Residual(6, 10, 2))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(10, 7)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of images."""
        x = self.pool(self.blocks(self.stem(images)))
        x = F.dropout(x.mean((2, 3)), 0.1, self.training)
        return F.cross_entropy(self.head(x), labels)


def conv_net(batch: int = 5) -> Made:
    """Make a ConvNet and a batch of images."""
    torch.manual_seed(0)
    return ConvNet(), [torch.randn(batch, 3, 12, 12), torch.randint(0, 7, (batch,))]


class Odd(nn.Module):
    """Changed buffers and inputs, outputs that are inputs, integers, truth values, order."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(10))
        self.table = nn.Parameter(torch.randn(21, 10))
        self.scale = nn.Parameter(torch.randn(10))

    def forward(self, x: torch.Tensor, ids: torch.Tensor, cache: torch.Tensor) -> Any:
        """Return a number to differentiate, and much else."""
        self.seen += 1
        with torch.no_grad():
            self.average.lerp_(x.mean(0), 0.1)
            cache[:, 1:3].copy_(x[:, :2])
            cache.mul_(2)
        rows = self.table[ids]
        weights = torch.softmax(x @ self.table.t(), -1)
        best, places = weights.topk(3, -1)
        ordered = rows.sort(-1)
        y = (weights @ self.table * self.scale + rows).cumsum(0)
        y = torch.where(x > 0, y, ordered.values.flip(-1)).masked_fill(ids[:, None] > 9, 0.5)
        y = torch.cat([y, best, x[:, 3:]], 1).roll(2, 1)
        counts = torch.zeros(21, dtype=torch.int64).index_add(0, ids, torch.ones_like(ids))
        total = y.pow(2).mean() + best.sum() * 0.1 + y.amax(1).sum()
        return total, x, x[1:], x.t(), places, counts, x > 0, ordered.indices, y.argmax(-1), cache


def odd(batch: int = 7) -> Made:
    """Make an `Odd` and what it takes."""
    torch.manual_seed(0)
    return Odd(), [
        torch.randn(batch, 10), torch.randint(0, 21, (batch,)), torch.randn(batch, 4),
    ]  # fmt: skip


MADE: dict[str, Callable[[], Made]] = {
    "gpt": lambda: transformer(batch=4, length=6),
    "uneven gpt": lambda: transformer(
        vocabulary=101, width=36, heads=6, batch=5, length=7, layers=1
    ),
    "fused gpt": lambda: transformer(fused=True, bias=False, tied=True, batch=3, length=5),
    "post-norm gpt": lambda: transformer(post_norm=True, mask=True, batch=3, length=5, layers=1),
    "dropout gpt": lambda: transformer(dropout=0.3, batch=4, length=5, layers=1),
    "grouped gpt": lambda: transformer(shared=2, heads=6, width=36, batch=3, length=5, layers=1),
    "fused grouped gpt": lambda: transformer(
        shared=2, fused=True, batch=3, length=5, layers=1, mask=True
    ),
    "conv net": conv_net,
    "odd": odd,
}
"""Models of our own, by name."""
