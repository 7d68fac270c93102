"""Draw random numbers to check attention on: operands, masks, noise, and places or lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lynx.recognise.nodes import Node, Refusal, tensor_of

from .tracing import FULL, computing_dtype
from .truths import is_truth

_MANY = -1
"""What stands for more than there are scores."""


@dataclass(frozen=True)
class Masks:
    """Which sources are drawn as masks that leave nothing of some rows, and what hides those.

    Masks of a single row leave something of it, unless they are `all_empty`. Integers, such as
    lengths, are all `integer`, if that is not None.
    """

    nodes: frozenset[Node]
    is_finite: bool = False
    all_empty: bool = False
    integer: int | None = None


def masks_for(sources: Sequence[Node], numbers: Sequence[Node]) -> Iterator[Masks | None]:
    """Yield what to try: ordinary numbers; all masks that there may be; and each that is added.

    What only seems to be a mask makes NaN of everything, behind which other differences hide.
    """
    yield None
    added = [node for node in sources if _may_be_added(node, numbers)]
    yield Masks(frozenset(added))
    if added:
        yield Masks(frozenset(added), is_finite=True)
    if any(_has_one_row(node) for node in sources):
        yield Masks(frozenset(added), all_empty=True)
        yield Masks(frozenset(added), is_finite=True, all_empty=True)
    if any(_is_integer(node) for node in sources):
        yield from (Masks(frozenset(), integer=number) for number in (0, _MANY))
    for node in added if len(added) > 1 else []:
        yield Masks(frozenset([node]))
        yield Masks(frozenset([node]), is_finite=True)


def _is_integer(node: Node) -> bool:
    """Whether a source holds integers."""
    traced = node.meta.get("example_value")
    if not isinstance(traced, torch.Tensor) or is_truth(node):
        return False
    return not (traced.is_floating_point() or traced.is_complex() or traced.dtype is torch.bool)


def _has_one_row(node: Node) -> bool:
    """Whether a source is a row that is the same for all queries."""
    traced = node.meta.get("example_value")
    return (
        isinstance(traced, torch.Tensor)
        and traced.dim() > 0
        and all(isinstance(size, int) and size == 1 for size in traced.shape[:-1])
    )


def _may_be_added(node: Node, numbers: Sequence[Node]) -> bool:
    """Whether a source may be a mask of numbers that are added to scores."""
    traced = node.meta.get("example_value")
    if not isinstance(traced, torch.Tensor) or traced.requires_grad or traced.dim() == 0:
        return False
    return traced.is_floating_point() and node not in numbers


def number_of(size: Any, values: Mapping[str, int]) -> Any:
    """Return a size of which symbols have values."""
    if not isinstance(size, torch.SymInt | torch.SymFloat):
        return size
    expr = size.node.expr
    found = expr.subs({symbol: values[str(symbol)] for symbol in expr.free_symbols})
    return int(found) if isinstance(size, torch.SymInt) else float(found)


class Draw:
    """Draws tensors like traced ones, the same for the same order, whatever their width."""

    def __init__(
        self, values: Mapping[str, int], masks: Masks | None, width: int, most: int
    ) -> None:
        self.most = most
        self.values = values
        self.masks = masks
        self.width = width
        self.generator = torch.Generator().manual_seed(0)

    def value(self, node: Node) -> Any:
        """Return what a source might hold."""
        traced = node.meta.get("example_value")
        if not isinstance(traced, torch.Tensor):
            return self._constant(node) if traced is None else number_of(traced, self.values)
        shape = [number_of(size, self.values) for size in traced.shape]
        strides = [number_of(stride, self.values) for stride in traced.stride()]
        if not isinstance(tensor_of(node), torch.Tensor):
            raise Refusal(f"'{node}' is no ordinary dense tensor")
        kept = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]
        drawn = self._truth(kept, traced) if is_truth(node) else self._drawn(kept, node)
        held = torch.empty_strided(kept, strides, dtype=drawn.dtype, device=traced.device)
        return held.copy_(drawn).expand(shape)

    def _truth(self, shape: list[int], traced: torch.Tensor) -> torch.Tensor:
        truth = torch.rand(shape, generator=self.generator) < 0.7
        return self._with_empty_rows(truth, False, True).to(self._computing(traced.dtype))

    def _drawn(self, shape: list[int], node: Node) -> torch.Tensor:
        traced = node.meta["example_value"]
        uniform = torch.rand(shape, generator=self.generator)
        if not traced.is_floating_point():
            if self.masks is not None and self.masks.integer is not None:
                number = self.most if self.masks.integer == _MANY else self.masks.integer
                return torch.full(shape, number).to(traced.dtype)
            return self._with_empty_rows((uniform * 2).to(traced.dtype), 0, 1)
        wide = self._computing(traced.dtype)
        if self.masks is not None and node in self.masks.nodes:
            least = torch.finfo(traced.dtype).min
            masked = torch.where(uniform < 0.2, -math.inf, torch.where(uniform < 0.4, least, 0.0))
            empty = least if self.masks.is_finite else -math.inf
            return self._with_empty_rows(masked.to(wide), empty, 0.0)
        return torch.randn(shape, generator=self.generator).to(wide)

    def _with_empty_rows(self, mask: torch.Tensor, least: Any, most: Any) -> torch.Tensor:
        """Let masks leave nothing of some rows, whichever of two values stands for that."""
        if self.masks is None or not mask.numel() or mask.dim() == 0:
            return mask
        if self.masks.all_empty and mask.shape[:-1].numel() == 1:
            mask.fill_(least)
        elif mask.dim() > 1:
            mask[-1] = least
            mask[(0,) * (mask.dim() - 1)] = most
        return mask

    def noise(self, node: Node) -> torch.Tensor:
        """Return what a dropout might multiply by."""
        traced = node.meta["example_value"]
        shape = [number_of(size, self.values) for size in traced.shape]
        probability = float(node.args[1])  # type: ignore[arg-type]
        kept = torch.rand(shape, generator=self.generator) >= probability
        wide = self._computing(traced.dtype)
        return (kept.to(wide) / (1 - probability)).to(traced.device)

    def _computing(self, dtype: torch.dtype) -> torch.dtype:
        if not dtype.is_floating_point:
            return dtype
        wide = torch.float64 if self.width > FULL else computing_dtype(dtype)
        return wide if self.width else dtype

    @staticmethod
    def _constant(node: Node) -> Any:
        module: Any = node.graph.owning_module
        if node.op != "get_attr" or module is None:
            raise Refusal(f"'{node}' is no tensor and no number")
        for part in str(node.target).split("."):
            module = getattr(module, part)
        return module


__all__ = ["Draw", "Masks", "masks_for", "number_of"]
