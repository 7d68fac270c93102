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
from lynx.recognise.nodes import Node, Refusal, expression

from .drawing import Draw, Masks, masks_for, number_of
from .tracing import FULL, Replay
from .vocabulary import kind_of

TOLERANCE = 1e-4
"""How much results may differ, relative to the greatest of them."""

PRECISE = 1e-7
"""The same with twice the digits."""

ROUGH = 4e-2
"""The same where results are rounded to less precision on the way."""

LARGEST = 1 << 21
"""How many scores at most are computed in a check."""

CHEAP = 1 << 15
"""Up to so many scores a check takes less memory than what it is a part of."""

_COUNT = 0.25
"""How much of a logarithm rounding may take, as large as the numbers that it is added to are."""

_RESULTS, _GRADIENTS = "it would not compute", "its gradients would not be"

_SIZES = ((3, 5, 4, 7, 6, 2, 9), (4, 2, 6, 3, 8, 5, 10))
"""Sizes to try, for symbols in order."""


@dataclass(frozen=True)
class Computation:
    """Two ways to compute one thing: nodes in order, from the same sources.

    `dropouts` are given with what they multiply by, which both are given. `numbers` hold
    ordinary ones, other sources may be masks. With `hides_nan`, zeros take the place of NaN.
    """

    sources: tuple[Node, ...]
    before: tuple[Node, ...]
    output: Node
    after: tuple[Node, ...]
    result: Node
    dropouts: Mapping[Node, Node]
    scores: Node
    numbers: tuple[Node, ...]
    hides_nan: bool = False


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
    """Raise `Refusal` if the two ways differ on random numbers, or may on others."""
    if _may_lose_the_count(computation):
        raise Refusal(
            "weights from logarithms would not be the same in rows of the least number, which "
            "loses the number of keys"
        )
    tried = 0
    seen = _Seen()
    for values in _assignments(computation):
        if _score_count(computation, values) > LARGEST:
            continue
        ways = (_is_compared(computation, values, precise, seen) for precise in (True, False))
        tried += any(ways)
    if not tried:
        raise Unchecked("no sizes were found for which it could be checked")
    if _hides_gradients(computation) and seen.infinity and not seen.nan:
        raise Refusal("its gradients may be NaN in rows of which nothing is left")


def _hides_gradients(computation: Computation) -> bool:
    """Whether NaN of rows that masks leave nothing of is hidden, but perhaps not in gradients.

    Of masks by positions alone the sizes that are tried tell.
    """
    if not computation.hides_nan or not computation.scores.meta["example_value"].requires_grad:
        return False
    others = (node for node in computation.sources if node not in computation.numbers)
    values = (node.meta.get("example_value") for node in others)
    return any(isinstance(value, torch.Tensor) and not value.requires_grad for value in values)


def _may_lose_the_count(computation: Computation) -> bool:
    """Whether weights are `exp(s - logsumexp(s))`, and whole rows of `s` may be a large number.

    Next to that the logarithm of the number of keys is nothing, so that weights are 1 and not 1/n.
    Which rows numbers leave nothing of, such as lengths, no draw of them tells.
    """
    logarithms = [node for node in computation.before if kind_of(node) in ("logsumexp", "log")]
    precisions = [
        torch.finfo(value.dtype).eps
        for node in logarithms
        if isinstance(value := node.meta.get("example_value"), torch.Tensor)
    ]
    if not precisions:
        return False
    counted = any(
        isinstance(value := node.meta.get("example_value"), torch.Tensor)
        and not value.is_floating_point()
        and value.dim() > 0
        for node in computation.sources
    )
    limit = _COUNT / max(precisions)
    return counted and (
        any(_is_large(item, limit) for node in computation.before for item in _items(node))
        or any(_may_be_large(node, limit) for node in computation.sources)
    )


def _items(node: Node) -> Iterator[Any]:
    yield from node.args
    yield from node.kwargs.values()


def _is_large(item: Any, limit: float) -> bool:
    return isinstance(item, int | float) and limit < abs(item) < math.inf


def _may_be_large(node: Node, limit: float) -> bool:
    """Whether a source may be one large number: it is made of such a one, or nobody knows."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    if node.op == "call_function" and not node.all_input_nodes:
        return any(_is_large(item, limit) for item in _items(node))
    return value.dim() == 0 and not value.requires_grad


def _is_compared(
    computation: Computation, values: Mapping[str, int], precise: bool, seen: _Seen
) -> bool:
    """Compare both ways at some sizes; whether that was possible.

    If not `precise`, element types are those of the model, and so are conversions. Note
    in `seen` what there was on the way.
    """
    with _quietly():
        for masks in masks_for(computation.sources, computation.numbers):
            try:
                _compare(_Trial(computation, values, masks, seen), precise)
            except _Unsuitable:
                if masks is not None and masks.integer is not None:
                    continue  # integers may be places to read at, which there are not
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


def is_costly(computation: Computation) -> bool:
    """Whether sizes are known, and so large that a small version had better be checked."""
    return not _symbols(computation) and _score_count(computation, {}) > CHEAP


def _score_count(computation: Computation, values: Mapping[str, int]) -> int:
    shape = computation.scores.meta["example_value"].shape
    return math.prod(number_of(size, values) for size in shape)


Results = Sequence[torch.Tensor]
"""What is computed, and the gradients of what it is computed of."""


@dataclass
class _Seen:
    """What there was among the numbers of all trials."""

    infinity: bool = False
    nan: bool = False

    def note(self, value: Any) -> None:
        """Look at a value that a model computes."""
        if isinstance(value, torch.Tensor):
            self.infinity |= bool(value.isinf().any())
            self.nan |= bool(value.isnan().any())


@dataclass(frozen=True)
class _Trial:
    """A computation at some sizes, with masks that leave nothing of some rows or without."""

    computation: Computation
    values: Mapping[str, int]
    masks: Masks | None
    seen: _Seen

    def results(self, width: int) -> tuple[Results, Results]:
        """Return what both ways compute with elements of so many bytes; 0: those of the model."""
        computation = self.computation
        most = _score_count(computation, self.values) + 1
        draw = Draw(self.values, self.masks, width, most)
        known = {node: draw.value(node) for node in computation.sources}
        drops = computation.dropouts
        noises = set(drops.values())
        for node in noises:
            known[node] = draw.noise(node)
        try:
            theirs = _run(
                computation.before, computation.output, known, noises,
                lambda node, x: x * known[drops[node]], width, self.seen,
            )  # fmt: skip
        except Exception as error:  # whatever a model does with such sizes
            raise _Unsuitable from error
        return theirs, _run(computation.after, computation.result, known, noises, None, width)

    def reason(self, place: int) -> str:
        """Return why it is refused, if the results at a place differ."""
        where = " in rows of which masks leave nothing" if self.masks else ""
        return f"{_GRADIENTS if place else _RESULTS} the same{where}"


def _compare(trial: _Trial, precise: bool) -> None:
    theirs, ours = trial.results(FULL if precise else 0)
    place = _difference(ours, theirs, TOLERANCE if precise else ROUGH)
    if place is not None and not (precise and _is_as_exact(trial, theirs, ours)):
        raise Refusal(trial.reason(place))


def says_difference(reason: str) -> bool:
    """Whether a reason only says that other numbers came out."""
    return reason.startswith((_RESULTS, _GRADIENTS))


def _is_as_exact(trial: _Trial, theirs: Results, ours: Results) -> bool:
    """Whether both ways compute the same with twice the digits, and ours loses no more of them."""
    try:
        exact, more = trial.results(2 * FULL)
    except (_Unsuitable, RuntimeError):
        return False
    if _difference(more, exact, PRECISE) is not None:
        return False
    is_rounded = trial.computation.scores.meta["example_value"].dtype.itemsize < FULL
    tolerance = ROUGH if is_rounded else TOLERANCE
    return all(
        torch.equal(a.isnan(), b.isnan())
        and _error(a, x) <= max(tolerance * _scale_of(x), _error(b, x))
        for a, b, x in zip(ours, theirs, exact, strict=True)
    )


def _difference(ours: Results, theirs: Results, tolerance: float) -> int | None:
    """Return the place of the first results that differ: 0 is no gradient."""
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not _is_close(a, b, tolerance):
            return place
        if b.isnan().any() and not place:
            return None
    return None


def _error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest difference; infinity where one is a number and the other is none."""
    apart = torch.where(actual == exact, 0.0, (actual.double() - exact).abs())
    apart = torch.where(actual.isnan() & exact.isnan(), 0.0, apart).nan_to_num(nan=math.inf)
    return float(apart.max()) if apart.numel() else 0.0


def _run(
    nodes: Sequence[Node],
    output: Node,
    known: Mapping[Node, Any],
    noises: set[Node],
    drop: Any,
    width: int,
    seen: _Seen | None = None,
) -> Results:
    """Return the result of nodes, and the gradients of sources for a gradient that is fixed.

    Note in `seen` what there was on the way.
    """
    given = dict(known)
    leaves: list[torch.Tensor] = []
    for node, value in known.items():
        if node in noises or not isinstance(value, torch.Tensor):
            continue
        if value.is_floating_point() and node.meta["example_value"].requires_grad:
            given[node] = value.detach().requires_grad_()
            leaves.append(given[node])
    Replay(nodes, drop, least=width).run(nodes, given)
    if seen is not None:
        for node in nodes:
            seen.note(given[node])
    result = given[output]
    if not leaves or not result.requires_grad:
        return [result.detach(), *(torch.zeros_like(leaf) for leaf in leaves)]
    count = torch.arange(result.numel(), dtype=result.dtype, device=result.device)
    incoming = (count * 0.7).sin().reshape(result.shape)
    found = torch.autograd.grad(result, leaves, incoming, allow_unused=True)
    return [result.detach()] + [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, found, strict=True)
    ]


def _is_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    if actual.shape != expected.shape:
        return False
    actual, expected = actual.double(), expected.double()
    atol = tolerance * _scale_of(expected)
    return bool(torch.isclose(actual, expected, rtol=0, atol=atol, equal_nan=True).all())


def _scale_of(expected: torch.Tensor) -> float:
    finite = expected[expected.isfinite()].abs()
    return max(1.0, float(finite.max())) if finite.numel() else 1.0


__all__ = ["Computation", "Unchecked", "check", "closure", "is_costly", "says_difference"]
