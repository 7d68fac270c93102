"""From a pair of products and what lies between them to what attention computes instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lynx.importer.dims import DimReader
from lynx.ir.core import Value
from lynx.ir.dims import Dim
from lynx.ir.kernel import Index
from lynx.ir.ops.elementwise_arithmetic import Cast, Copy
from lynx.ir.ops.factory import Full
from lynx.ir.ops.layout import Broadcast, Permute, Reshape, Squeeze, Unsqueeze
from lynx.ir.ops.layout_slicing import Slice
from lynx.ir.traversal import producers
from lynx.passes.fusion.coordinates import ZERO, Coordinates
from lynx.recognise.nodes import Node, Refusal, tensor_of

from .axes import Dims, Space, Tracker, along_axis, dims_of
from .contractions import Contraction, contraction_of
from .facts import Weight
from .operands import Cut, cheapest_cut, cut_at
from .peeling import Peeled, peeled
from .plans import Factor, Layout, Placed, Plan, layout_of
from .scores import score_of
from .sites import Site
from .tracing import Trace, dropout_probability, trace
from .truths import is_truth
from .weights import facts_of

_LAYOUT = (Reshape, Permute, Unsqueeze, Squeeze, Broadcast, Slice, Cast, Copy)


def plans_for(site: Site, is_written: Callable[[Node], bool]) -> Iterator[Plan | Refusal]:
    """Yield the ways to compute a site, the best first, and why others do not work.

    Ways differ in what the score function computes of masks, in whether repeated heads of keys are
    shared, and in whether weights that are masked afterwards count as masked before. Whoever takes
    one has to check that it computes the same.
    """
    try:
        products = _Products.of(site)
    except Refusal as refusal:
        yield refusal
        return
    roots = products.roots
    cheap = cheapest_cut(roots, is_written)
    for cut in [cheap, cut_at(roots)] if cheap.inside else [cheap]:
        try:
            reading = _Reading(products, cut)
        except Refusal as refusal:
            yield refusal
            continue
        yield from _plans(products, reading)


def _plans(products: _Products, reading: _Reading) -> Iterator[Plan | Refusal]:
    folds = [True, False] if reading.is_masked_later else [False]
    repeated = (*products.first.operands, products.v)
    found = {node: source for node in repeated if (source := peeled(node)) is not None}
    for sources in [found, {}] if found else [{}]:
        for fold in folds:
            try:
                yield _Planner(products, reading, sources, fold).plan()
            except Refusal as refusal:
                yield refusal


@dataclass(frozen=True)
class _Products:
    """Both products of a site."""

    site: Site
    first: Contraction
    second: Contraction

    @classmethod
    def of(cls, site: Site) -> _Products:
        first, second = contraction_of(site.scores), contraction_of(site.output)
        if second.added is not None:
            raise Refusal("something is added to the product of weights and values")
        if second.alpha != 1:
            raise Refusal("the product of weights and values is scaled")
        return cls(site, first, second)

    @property
    def roots(self) -> list[Node]:
        """What the way from scores to weights reads besides scores."""
        more = [n for n in (self.first.added, self.first.alpha, self.first.beta)
                if isinstance(n, Node)]  # fmt: skip
        return list(dict.fromkeys((*self.site.roots, *more)))

    @property
    def v(self) -> Node:
        """The values."""
        return self.second.operands[1 - self.site.side]

    def start(self, product: torch.Tensor, known: Callable[[Node], Any]) -> torch.Tensor:
        """Make what the first product computes of the plain product."""
        first = self.first
        alpha, beta = (known(n) if isinstance(n, Node) else n for n in (first.alpha, first.beta))
        scores = self.site.scores.meta["example_value"]
        if scores.dtype is torch.float16:
            product = product.to(torch.float16)
        result = product * alpha if alpha is not None and alpha != 1 else product.clone()
        if first.added is None:
            return result
        added: torch.Tensor = known(first.added).to(result.dtype)
        return result + (added if beta == 1 else added * beta)


class _Reading:
    """What is known of the weights of a site, when masks are cut at some place."""

    def __init__(self, products: _Products, cut: Cut) -> None:
        site = products.site
        self.cut = cut
        self.trace: Trace = trace(site.scores, site.path, cut.inside, cut.given, products.start)
        facts = facts_of(self.trace)
        self.others = [value for value, known in facts.items() if not isinstance(known, Weight)]
        fact = facts.get(self.trace.result)
        if not isinstance(fact, Weight):
            raise Refusal("what is multiplied by the values are no weights")
        if not fact.is_normalized:
            raise Refusal("the weights are not normalized")
        if fact.raw.sink is not None:
            raise Refusal("a column is added to the scores and multiplied by values")
        self.weight = fact

    @property
    def is_masked_later(self) -> bool:
        """Whether weights are masked after they are normalized."""
        return self.weight.masked.value is not self.weight.raw.value


class _Planner:
    """Makes one plan."""

    def __init__(
        self, products: _Products, reading: _Reading, sources: Mapping[Node, Peeled], fold: bool
    ) -> None:
        self.products = products
        self.reading = reading
        self.sources = sources
        self.fold = fold
        weight = reading.weight
        self.raw = weight.masked if fold else weight.raw
        self.shape = reading.trace.result.shape
        self.names = [f"w{n}" for n in range(len(self.shape))]
        self.axes: dict[str, Dim] = dict(zip(self.names, self.shape, strict=True))
        self.dims = DimReader()

    def plan(self) -> Plan:
        """Return the plan."""
        weight, trace_ = self.reading.weight, self.reading.trace
        key_axis = self._key_axis()
        origin = weight.origin
        assert origin is not None
        items = [item for item in weight.factors if isinstance(item, Value)]
        conditions = [condition for condition, _ in weight.masks]
        needed = [origin, *items, *conditions]
        tracker = Tracker(self.axes, [*needed, *self.reading.others])
        tracker.read(trace_.result, tuple(along_axis(name) for name in self.names))
        at = _only(tracker, origin, "weights are read at several places")
        if at[weight.axis] != along_axis(key_axis):
            raise Refusal("the softmax is not over the keys: the axis that is summed with values")
        inner = Tracker(self.axes, [trace_.scores])
        inner.read(self.raw.value, at)
        product_at = _only(inner, trace_.scores, "scores are read at several places")
        tracker.found = {value: tracker.found[value] for value in needed}
        return self._assembled(key_axis, tracker, at, product_at)

    def _key_axis(self) -> str:
        second, side = self.products.second, self.products.site.side
        summed = [
            name
            for name, label in zip(self.names, second.labels[side], strict=True)
            if label is not None and label not in second.result
        ]
        if len(summed) != 1:
            raise Refusal("the second product sums over more than keys")
        return summed[0]

    def _assembled(
        self, key_axis: str, tracker: Tracker, at: Coordinates, product_at: Coordinates
    ) -> Plan:
        first, second = self.products.first, self.products.second
        side, weight, trace_ = self.products.site.side, self.reading.weight, self.reading.trace
        where = dict(zip(first.result, product_at, strict=True))
        summed = {name: f"d{n}" for n, name in enumerate(first.summed)}
        where |= {name: along_axis(axis) for name, axis in summed.items()}
        self._enter(first.operands[1], first.labels[1], summed)
        coordinates = [_places(labels, where) for labels in first.labels]
        is_key = [any(_uses(c, key_axis) for c in places) for places in coordinates]
        if sum(is_key) != 1:
            raise Refusal("not exactly one operand of the first product runs along the keys")
        key = is_key.index(True)
        of_values = dict(zip(second.labels[side], map(along_axis, self.names), strict=True))
        only = [n for n in second.labels[1 - side] if n is not None and n not in of_values]
        own = {name: f"v{n}" for n, name in enumerate(only)}
        of_values |= {name: along_axis(axis) for name, axis in own.items()}
        self._enter(second.operands[1 - side], second.labels[1 - side], own)
        q = (first.operands[1 - key], coordinates[1 - key])
        k = self._peeled(first.operands[key], coordinates[key])
        v = self._peeled(self.products.v, _places(second.labels[1 - side], of_values))
        out = _places(second.result, of_values)
        space = Space(self.axes)
        extra = [c for places in tracker.found.values() for place in places for c in place]
        space.cut([*q[1], *k[1], *v[1], *out, *at, *product_at, *extra])
        placed = [Placed(node, dims_of(space, c, self._shape(node))) for node, c in (q, k, v)]
        layout = layout_of(
            tuple(space.atoms_of(name) for name in self.names),
            space.atoms_of(key_axis),
            placed[0].dims,
            placed[1].dims,
            placed[2].dims,
            depth=tuple(a for axis in summed.values() for a in space.atoms_of(axis)),
            values=tuple(a for axis in own.values() for a in space.atoms_of(axis)),
        )
        result_dims = dims_of(space, at, self.raw.value.shape)
        product_dims = dims_of(space, product_at, trace_.scores.shape)
        operands = list(trace_.inputs)
        text, sizes, used = score_of(
            layout, self.raw.value, result_dims, trace_.scores, product_dims, operands
        )
        plan = Plan(
            placed[0], placed[1], placed[2], layout, text, sizes,
            tuple(trace_.inputs[operands[n]] for n in used),
            dims_of(space, out, [self._size(self.axes, c) for c in out]),
            zero_empty=weight.zero_empty or (self.fold and self.reading.is_masked_later),
            hides_nan=weight.hides_nan,
            dtype=self.products.site.scores.meta["example_value"].dtype,
        )  # fmt: skip
        plan = dataclasses.replace(plan, sink=self._sink(space, at))
        return self._with_factors(plan, space, tracker)

    def _enter(self, node: Node, labels: Sequence[str | None], axes: dict[str, str]) -> None:
        """Note the sizes of axes that weights do not have."""
        for label, size in zip(labels, self._shape(node), strict=True):
            if label in axes:
                self.axes[axes[label]] = size

    def _shape(self, node: Node) -> tuple[Dim, ...]:
        value = tensor_of(node)
        assert value is not None
        return tuple(self.dims.read(size) for size in value.shape)

    @staticmethod
    def _size(axes: dict[str, Dim], coordinate: Index) -> Dim:
        if not coordinate.terms:
            return 1
        (term,) = coordinate.terms
        assert isinstance(term.of, str)
        return axes[term.of]

    def _peeled(self, node: Node, at: Coordinates) -> tuple[Node, Coordinates]:
        source = self.sources.get(node)
        if source is None:
            return node, at
        tracker = Tracker(self.axes, [])
        tracker.read(source.result, at)
        return source.node, _only(tracker, source.parameter, "keys are repeated in two ways")

    # what is beside the scores

    def _sink(self, space: Space, at: Coordinates) -> Placed | float | None:
        sink, axis = self.reading.weight.sink, self.reading.weight.axis
        if sink is None or isinstance(sink, int | float):
            return None if sink is None else float(sink)
        rank = len(sink.shape)
        row = tuple(ZERO if n == axis else c for n, c in enumerate(at))
        if rank < len(row):
            row = tuple(c for n, c in enumerate(at) if n != axis)
            row = row[len(row) - rank :]
        return self._given(space, sink, row, "the sink")

    def _given(self, space: Space, value: Value, at: Coordinates, what: str) -> Placed | float:
        """Return the node that a value is, up to its layout, with its atoms."""
        full = value.defined_by(Full)
        if full is not None and isinstance(full.value, int | float):
            return float(full.value)
        if any(not isinstance(op, _LAYOUT) for op in producers([value])):
            raise Refusal(f"{what} is computed of other things")
        inputs = self.reading.trace.inputs
        tracker = Tracker(self.axes, [])
        at = tuple(
            ZERO if isinstance(size, int) and size == 1 else c
            for c, size in zip(at, value.shape, strict=True)
        )
        tracker.read(value, at)
        ((parameter, places),) = tracker.found.items()
        if parameter not in inputs or len(places) != 1:
            raise Refusal(f"{what} depends on the scores")
        space.cut(places[0])
        return Placed(inputs[parameter], dims_of(space, places[0], parameter.shape))

    def _with_factors(self, plan: Plan, space: Space, tracker: Tracker) -> Plan:
        weight, trace_ = self.reading.weight, self.reading.trace
        keys = set(plan.layout.keys)
        kept: list[Placed] = []
        factors: list[Factor] = []
        for item in weight.factors:
            if not isinstance(item, Value):
                factors.append(Factor(float(item)))
                continue
            at = _only(tracker, item, "weights are multiplied in several ways")
            if item in trace_.dropped:
                node = trace_.dropped[item]
                kept.append(Placed(node, dims_of(space, at, item.shape)))
                chance = 1 - dropout_probability(node)
                if chance <= 0:
                    raise Refusal(f"'{node}' drops everything")
                plan = dataclasses.replace(plan, is_dropout=True, keep_scale=1 / chance)
                continue
            placed = self._given(space, item, at, "what weights are multiplied by")
            if isinstance(placed, float):
                factors.append(Factor(placed))
            elif not {atom for dim in placed.dims for atom in dim} & keys:
                factors.append(Factor(placed.node, placed.dims))
            elif not self.fold:
                plan = self._with_uneven(plan, placed, kept)
        for condition, keeps in () if self.fold else weight.masks:
            kept.append(self._mask(space, tracker, condition))
            plan = dataclasses.replace(plan, keep_inverted=not keeps)
        if len(kept) > 1:
            raise Refusal("weights are masked several times")
        return dataclasses.replace(plan, keep=kept[0] if kept else None, factors=tuple(factors))

    @staticmethod
    def _with_uneven(plan: Plan, factor: Placed, kept: list[Placed]) -> Plan:
        """Return a plan with a factor of normalized weights that is not the same for all keys."""
        if is_truth(factor.node):
            kept.append(factor)
            return plan
        if plan.layout.is_of_values(factor.dims):
            return dataclasses.replace(plan, value_factors=(*plan.value_factors, factor))
        raise Refusal("weights are multiplied by numbers after they are normalized")

    def _mask(self, space: Space, tracker: Tracker, condition: Value) -> Placed:
        at = _only(tracker, condition, "weights are masked in several ways")
        found = self._given(space, condition, at, "the mask of the weights")
        if not isinstance(found, Placed):
            raise Refusal("the mask of the weights is a number")
        return found


def _only(tracker: Tracker, value: Value, reason: str) -> Coordinates:
    places = tracker.found.get(value, [])
    if len(places) != 1:
        raise Refusal(reason if places else "its scores do not reach its weights")
    return places[0]


def _places(labels: Sequence[str | None], where: dict[Any, Index]) -> Coordinates:
    return tuple(ZERO if label is None else where[label] for label in labels)


def _uses(coordinate: Index, axis: str) -> bool:
    return any(term.of == axis for term in coordinate.terms)


__all__ = ["Dims", "Layout", "plans_for"]
