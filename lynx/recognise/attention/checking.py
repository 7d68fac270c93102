"""Make sure that attention computes what it takes the place of, forward and backward.

Both are run on random numbers: some ordinary ones, and masks with rows of which nothing is left.
Sizes that are not known are small ones. Conversions to less precision are left out on both sides,
so that what remains are differences in meaning.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from lynx.compat import outside_tracing, size_hint
from lynx.recognise.nodes import Node, Refusal, expression, tensor_of

from .tracing import Replay, computing_dtype

TOLERANCE = 1e-4
"""How much results may differ, relative to the greatest of them."""

ROUGH = 4e-2
"""The same where results are rounded to less precision on the way."""

LARGEST = 1 << 21
"""How many scores at most are computed in a check."""

_SIZES = ((3, 5, 4, 7, 6, 2, 9), (4, 2, 6, 3, 8, 5, 10))
"""Sizes to try, for symbols in order."""


@dataclass(frozen=True)
class Computation:
    """Two ways to compute one thing: nodes in order, from the same sources.

    `noise` is what a dropout among the nodes multiplies by, which both are given.
    """

    sources: tuple[Node, ...]
    before: tuple[Node, ...]
    output: Node
    after: tuple[Node, ...]
    result: Node
    dropouts: Mapping[Node, Node]
    scores: Node


def closure(output: Node, sources: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Return the nodes from sources to an output, in order, and all that they need besides."""
    known = set(sources)
    inside: dict[Node, None] = {}
    leaves: dict[Node, None] = dict.fromkeys(sources)
    stack = [output]
    while stack:
        node = stack.pop()
        if node in inside or node in leaves:
            continue
        if node in known or node.op not in ("call_function", "call_method") or _is_size(node):
            leaves[node] = None
            continue
        inside[node] = None
        stack += node.all_input_nodes
    places = {node: n for n, node in enumerate(output.graph.nodes)}
    return sorted(inside, key=places.__getitem__), sorted(leaves, key=places.__getitem__)


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.SymInt | torch.SymFloat | int)


def check(computation: Computation) -> None:
    """Raise `Refusal` if the two ways differ on random numbers."""
    tried = 0
    for values in _assignments(computation):
        if _score_count(computation, values) > LARGEST:
            continue
        tried += any(_is_compared(computation, values, precise) for precise in (True, False))
    if not tried:
        raise Unchecked("no sizes were found for which it could be checked")


def _is_compared(computation: Computation, values: Mapping[str, int], precise: bool) -> bool:
    """Compare both ways at some sizes; whether that was possible.

    If not `precise`, element types are those of the model, and so are conversions.
    """
    try:
        with _quietly():
            for is_masked in (False, True):
                _compare(computation, values, is_masked, precise)
    except _Unsuitable:
        return False
    return True


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Compute with real numbers, and leave generators and modes as they are."""
    autocast = torch.autocast("cpu", enabled=False)
    with outside_tracing(), torch.enable_grad(), autocast, torch.random.fork_rng(devices=[]):
        yield


class Unchecked(Refusal):
    """That nothing could be compared."""


class _Unsuitable(Exception):  # noqa: N818 - no error: other sizes may do
    """That what a model computes cannot be computed for some sizes."""


def _symbols(computation: Computation) -> dict[str, int | None]:
    """Return the symbols of sizes, with the values that they had when they were traced."""
    found: dict[str, int | None] = {}
    for node in (*computation.sources, *computation.before):
        value = node.meta.get("example_value")
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                free = expression(size).free_symbols
                for symbol in sorted(free, key=str):
                    same = str(symbol) == str(expression(size))
                    found[str(symbol)] = size_hint(size) if same else found.get(str(symbol))
    return found


def _assignments(computation: Computation) -> Iterator[dict[str, int]]:
    symbols = _symbols(computation)
    if not symbols:
        yield {}
        return
    for sizes in _SIZES:
        yield dict(zip(symbols, itertools.cycle(sizes), strict=False))
    if all(hint is not None for hint in symbols.values()):
        yield {name: hint for name, hint in symbols.items() if hint is not None}


def _number(size: Any, values: Mapping[str, int]) -> Any:
    if not isinstance(size, torch.SymInt | torch.SymFloat):
        return size
    expr = size.node.expr
    found = expr.subs({symbol: values[str(symbol)] for symbol in expr.free_symbols})
    return int(found) if isinstance(size, torch.SymInt) else float(found)


def _score_count(computation: Computation, values: Mapping[str, int]) -> int:
    shape = computation.scores.meta["example_value"].shape
    return math.prod(_number(size, values) for size in shape)


def _compare(
    computation: Computation, values: Mapping[str, int], is_masked: bool, precise: bool
) -> None:
    draw = _Draw(values, is_masked, precise)
    known = {node: draw.value(node) for node in computation.sources}
    noises = set(computation.dropouts.values())
    for node in noises:
        known[node] = draw.noise(node)
    drops = computation.dropouts
    try:
        expected, wanted = _run(
            computation.before, computation.output, known, noises,
            lambda node, x: x * known[drops[node]], precise=precise,
        )  # fmt: skip
    except Exception as error:  # whatever a model does with such sizes
        raise _Unsuitable from error
    actual, found = _run(
        computation.after, computation.result, known, noises, None, precise=precise
    )
    tolerance = TOLERANCE if precise else ROUGH
    if not _is_close(actual, expected, tolerance):
        raise Refusal("it would not compute the same")
    if expected.isnan().any():
        return
    for ours, theirs in zip(found, wanted, strict=True):
        if not _is_close(ours, theirs, tolerance):
            raise Refusal("its gradients would not be the same")


def _run(
    nodes: Sequence[Node],
    output: Node,
    known: Mapping[Node, Any],
    noises: set[Node],
    drop: Any,
    *,
    precise: bool,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the result of nodes, and the gradients of sources for a gradient that is fixed."""
    given = dict(known)
    leaves: list[torch.Tensor] = []
    for node, value in known.items():
        if node in noises or not isinstance(value, torch.Tensor):
            continue
        if value.is_floating_point() and node.meta["example_value"].requires_grad:
            given[node] = value.detach().requires_grad_()
            leaves.append(given[node])
    Replay(nodes, drop, keeps_precision=precise).run(nodes, given)
    result = given[output]
    if not leaves or not result.requires_grad:
        return result.detach(), [torch.zeros_like(leaf) for leaf in leaves]
    count = torch.arange(result.numel(), dtype=result.dtype, device=result.device)
    incoming = (count * 0.7).sin().reshape(result.shape)
    found = torch.autograd.grad(result, leaves, incoming, allow_unused=True)
    return result.detach(), [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, found, strict=True)
    ]


def _is_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    if actual.shape != expected.shape:
        return False
    actual, expected = actual.double(), expected.double()
    finite = expected[expected.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return bool(
        torch.isclose(actual, expected, rtol=0, atol=tolerance * scale, equal_nan=True).all()
    )


class _Draw:
    """Draws tensors like traced ones, the same for the same order."""

    def __init__(self, values: Mapping[str, int], is_masked: bool, precise: bool) -> None:
        self.values = values
        self.is_masked = is_masked
        self.precise = precise
        self.generator = torch.Generator().manual_seed(0)

    def value(self, node: Node) -> Any:
        """Return what a source might hold."""
        traced = node.meta.get("example_value")
        if not isinstance(traced, torch.Tensor):
            return self._constant(node) if traced is None else _number(traced, self.values)
        shape = [_number(size, self.values) for size in traced.shape]
        strides = [_number(stride, self.values) for stride in traced.stride()]
        if not isinstance(tensor_of(node), torch.Tensor):
            raise Refusal(f"'{node}' is no ordinary dense tensor")
        kept = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]
        drawn = self._drawn(kept, traced)
        held = torch.empty_strided(kept, strides, dtype=drawn.dtype, device=traced.device)
        return held.copy_(drawn).expand(shape)

    def _drawn(self, shape: list[int], traced: torch.Tensor) -> torch.Tensor:
        uniform = torch.rand(shape, generator=self.generator)
        if traced.dtype is torch.bool:
            return self._with_empty_rows(uniform < 0.7, False)
        if not traced.is_floating_point():
            return (uniform * 2).to(traced.dtype)
        wide = self._computing(traced.dtype)
        if self.is_masked and not traced.requires_grad:
            least = torch.finfo(traced.dtype).min
            masked = torch.where(uniform < 0.2, -math.inf, torch.where(uniform < 0.4, least, 0.0))
            return self._with_empty_rows(masked.to(wide), -math.inf)
        return torch.randn(shape, generator=self.generator).to(wide)

    def _with_empty_rows(self, mask: torch.Tensor, value: Any) -> torch.Tensor:
        if self.is_masked and mask.dim() and mask.shape[0]:
            mask[-1] = value if mask.dim() > 1 else mask[-1]
        return mask

    def noise(self, node: Node) -> torch.Tensor:
        """Return what a dropout might multiply by."""
        traced = node.meta["example_value"]
        shape = [_number(size, self.values) for size in traced.shape]
        probability = float(node.args[1])  # type: ignore[arg-type]
        kept = torch.rand(shape, generator=self.generator) >= probability
        wide = self._computing(traced.dtype)
        return (kept.to(wide) / (1 - probability)).to(traced.device)

    def _computing(self, dtype: torch.dtype) -> torch.dtype:
        return computing_dtype(dtype) if self.precise else dtype

    @staticmethod
    def _constant(node: Node) -> Any:
        module: Any = node.graph.owning_module
        if node.op != "get_attr" or module is None:
            raise Refusal(f"'{node}' is no tensor and no number")
        for part in str(node.target).split("."):
            module = getattr(module, part)
        return module


__all__ = ["Computation", "Unchecked", "check", "closure"]
