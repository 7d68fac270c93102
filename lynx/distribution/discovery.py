"""Find out by trials how an operator can be cut that Lynx does not know and nobody has a rule for.

Dimensions that belong together are those that must change their size together for the operator to
run; what changes with them in the results is cut with them. Then pieces are tried (`trials`).
Nothing is communicated: all processes run the same trials, and the programs that come out are
compared before the first step as always. A rule of the user (`lynx.sharding_rule`) comes first, and
then nothing is tried.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch

from lynx.backends.reference import call_of
from lynx.compat import OpOverload, outside_tracing
from lynx.ir.core import Foreign, Op, Value
from lynx.ir.dims import is_static
from lynx.ir.errors import LynxError
from lynx.ir.ops.aten import Aten, integers
from lynx.ir.printer import format_op
from lynx.ir.space import IndexMap
from lynx.ir.space_rules import SpaceRule, parse_rule
from lynx.ir.types import OpaqueType, TensorType, Type
from lynx.passes.base import FoundRule

from .apart import Send, run_apart
from .trial_forms import (
    Budget,
    Factor,
    Form,
    GivingUpError,
    form_of,
    mapped,
    own_results,
    shrunk_forms,
)
from .trial_values import CHECKED
from .trials import Trials

_TRUSTED = ("aten", "prims")
"""Where torch's own operators are."""
_COMMUNICATING = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")
_LAYOUT = ("as_strided", "as_strided_copy", "as_strided_scatter", "set_", "resize")
_MOST_SECONDS = 30.0
_MOST_TRIED = 1 << 20
_MOST_CONFIRMED = 1 << 18
_MOST_LONG = 1 << 22
_MOST_GROUPS = 24
_SEEN = (5, 7)
"""Sizes that a dimension is given to see which others follow."""

_KNOWN: dict[str, FoundRule] = {}
_BROKEN: list[str] = []
_NOTHING = "in trials no pieces of its results were its results for pieces"


def find_rule(op: Op) -> FoundRule:
    """Return the rule that trials find for an `aten` op, or why there is none.

    They run on the CPU, in a process of their own (`apart`). What was found once is kept for all
    ops that differ in the values that they use alone.
    """
    assert isinstance(op, Aten)
    key = _key(op)
    if key not in _KNOWN:
        _KNOWN[key] = _found(op)
    return _KNOWN[key]


def reason_of(op: Op) -> str:
    """Return why trials have found no rule for an op; empty if there was no trial, or a rule."""
    known = _KNOWN.get(_key(op)) if isinstance(op, Aten) else None
    return "" if known is None else known.reason


def _key(op: Aten) -> str:
    """Return a text that is the same for ops that differ in the values that they use alone."""
    types = [_plain(value.type) for value in op.operands]
    operands = tuple(Value(type_, name=f"x{n}") for n, type_ in enumerate(types))
    return f"{format_op(op.with_operands(operands))} of {', '.join(map(str, types))}"


def _plain(type_: Type) -> Type:
    """Return a type without how it lies."""
    return type_.with_shape(type_.shape) if isinstance(type_, TensorType) else type_


def _found(op: Aten) -> FoundRule:
    reason = _refusal(op)
    if reason:
        return FoundRule(reason=reason)
    try:
        found = _searched(op)
        if found.rule:
            parse_rule(found.rule).space(op.operands, op.results)
        return found
    except (LynxError, OSError) as error:
        return FoundRule(reason=f"it cannot be tried out: {error}")


def _searched(op: Aten) -> FoundRule:
    """Search in another process, and go on in a new one without what made it crash."""
    known: dict[int, Factor | None] = {}
    end = time.monotonic() + _MOST_SECONDS
    while True:
        if _BROKEN:
            return FoundRule(reason=_BROKEN[0])
        finished = run_apart(functools.partial(_search, op, known), end - time.monotonic())
        if not finished.sent:  # not even that it has begun
            _BROKEN.append(f"processes for trials do not work here: {finished.failure}")
            continue
        started = -1
        for message in finished.sent:
            if isinstance(message, FoundRule):
                return message
            if isinstance(message, int):
                started = message
            else:
                known |= message
        if started <= 0 or started in known or time.monotonic() > end:
            return FoundRule(reason=f"{finished.failure} in trials")
        known[started] = None


def _search(op: Aten, known: dict[int, Factor | None], send: Send) -> None:
    """Send the rule that trials find; before that, the number of each candidate, and what it is."""
    with (
        outside_tracing(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            rule = _Search(op, known, send).run()
            text = "" if rule is None else str(rule)
            send(FoundRule(text, "" if text else _NOTHING))
        except GivingUpError as error:
            send(FoundRule(reason=str(error)))
        except Exception as error:  # what an operator gives may be something that nobody foresaw
            send(FoundRule(reason=f"it cannot be tried out ({type(error).__name__})"))


def _refusal(op: Aten) -> str:
    """Return why an operator must not be tried; empty if nothing speaks against it."""
    namespace, _, rest = op.target.partition(".")
    if op.random or op.effect:
        return "it draws random numbers" if op.random else "it has an effect"
    if namespace in _COMMUNICATING:
        return "it communicates"
    if rest.partition(".")[0] in _LAYOUT:
        return "it depends on where its operand lies in memory"
    function = call_of(op).function
    while isinstance(function, functools.partial):
        function = function.args[0]
    if namespace in ("python", "higher_order") or not isinstance(function, OpOverload):
        return "it is no operator of torch with a schema"
    if function._schema.is_mutable:
        return "it changes its operands"
    if _holds_resource((op.arguments, op.keywords)):
        return "it takes something that is no tensor and no number"
    return _unfit(op)


def _unfit(op: Aten) -> str:
    """Return what operands and results say against trials."""
    for value in op.operands:
        if not isinstance(value.type, TensorType):
            return "it takes a number that is known only when it runs"
        if not is_static(value.shape):
            return "its sizes are symbolic"
        if value.type.dtype.is_integer and op.target not in CHECKED:
            return "it takes integers, and nobody knows which ones are allowed"
    for result in op.results:
        if isinstance(result.type, TensorType):
            if not is_static(result.shape):
                return "its sizes are symbolic"
        elif result.type != OpaqueType("none"):
            return "it gives something that is no tensor"
    return ""


def _holds_resource(item: object) -> bool:
    if isinstance(item, tuple):
        return any(map(_holds_resource, item))
    return isinstance(item, Foreign) and item.kind == "resource"


class _Search:
    """Looks for the factors of one operator."""

    def __init__(self, op: Aten, known: Mapping[int, Factor | None], send: Send) -> None:
        self.op, self.known, self.send = op, known, send
        self.own = form_of(op, Budget())
        self.count = 0
        self.send(self.count)
        self.trials = self._start()
        self.factors: list[tuple[Factor, int]] = []

    def run(self) -> SpaceRule | None:
        """Return a rule with all factors; None if there are none."""
        for position, shape in enumerate(self.own.shapes):
            for dim, size in enumerate(shape):
                if size > 1 and not self._is_taken(position, dim):
                    self._try(position, dim)
        return self._rule() if self.factors else None

    def _start(self) -> Trials:
        """Return trials of the smallest form that runs and is like the operator's own."""
        forms = shrunk_forms(self.own)
        for form in forms:
            if form.numel > _MOST_TRIED:
                continue
            trials = Trials(form)
            shapes = trials.shapes(form)
            if shapes is None or not self._is_like(form, shapes):
                continue
            if not trials.repeats():
                raise GivingUpError("it gives something else each time that it runs")
            return trials
        raise GivingUpError("it does not run on numbers and sizes with which it could be tried")

    def _is_like(self, form: Form, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether results have shrunk as the operands have."""
        own = own_results(self.own)
        return len(own) == len(shapes) and all(
            len(one) == len(other)
            and all(form.sizes.get(a, b) == b for a, b in zip(one, other, strict=True))
            for one, other in zip(own, shapes, strict=True)
        )

    def _is_taken(self, position: int, dim: int) -> bool:
        return any(factor.operands[position] == dim for factor, _ in self.factors)

    def _try(self, position: int, dim: int) -> None:
        """Add the factor to which a dimension belongs, if there is one."""
        size = self.own.shapes[position][dim]
        for operands in itertools.islice(self._groups(position, dim), _MOST_GROUPS):
            for places in self._places(size):
                factor = self._judged(Factor(operands, (), places), size)
                if factor is not None:
                    self.factors.append((factor, size))
                    return

    def _judged(self, candidate: Factor, size: int) -> Factor | None:
        """Return a candidate with what follows it in the results, if it can be cut."""
        self.count += 1
        if self.count in self.known:
            return self.known[self.count]
        self.send(self.count)
        factor = self._measured(candidate, size)
        if factor is not None and not self._holds(factor, size):
            factor = None
        self.send({self.count: factor})
        return factor

    def _groups(self, position: int, dim: int) -> Iterator[tuple[int | None, ...]]:
        """Yield dimensions of one size that may belong together, fewer ones first."""
        size = self.own.shapes[position][dim]
        choices: list[list[int | None]] = []
        for other, shape in enumerate(self.own.shapes):
            if other == position:
                choices.append([dim])
                continue
            free = [n for n, m in enumerate(shape) if m == size and not self._is_taken(other, n)]
            choices.append([None, *free])
        most = 1 << 12
        groups = list(itertools.islice(itertools.product(*choices), most))
        yield from sorted(groups, key=lambda group: sum(one is not None for one in group))

    def _places(self, size: int) -> Iterator[tuple[str, ...]]:
        """Yield integer arguments that may be the size of a factor: none, one, or all."""
        found = [place for place, number in integers(self.op).items() if number == size]
        yield ()
        for place in found[:4]:
            yield (place,)
        if len(found) > 1:
            yield tuple(found)

    def _measured(self, factor: Factor, size: int) -> Factor | None:
        """Return the factor with the dimensions of results that follow; None if it is none."""
        seen = [self.trials.shapes(self.trials.form.resized(factor, n)) for n in _SEEN]
        first, second = seen
        if first is None or second is None:
            return None
        results: list[int | None] = []
        for one, other, own in zip(first, second, own_results(self.own), strict=True):
            changed = [n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
            if not changed:
                results.append(None)
                continue
            (dim, *more) = changed
            if more or (one[dim], other[dim], own[dim]) != (*_SEEN, size):
                return None
            if any(known.results[len(results)] == dim for known, _ in self.factors):
                return None
            results.append(dim)
        return Factor(factor.operands, tuple(results), factor.places)

    def _holds(self, factor: Factor, size: int) -> bool:
        types = [r.type for r in self.op.results if isinstance(r.type, TensorType)]
        for type_, dim in zip(types, factor.results, strict=True):
            if dim is None and not (type_.dtype.is_floating or type_.dtype.is_complex):
                return False
        if not self.trials.holds(factor):
            return False
        if not all(self.trials.agree(known, (factor, 4)) for known in self._in_small()):
            return False
        return self._holds_in_large(factor, size)

    def _holds_in_large(self, factor: Factor, size: int) -> bool:
        """Whether a factor can be cut in the operator's own sizes, or in each if all are too much.

        Of torch's own operators it is believed that they do the same in all sizes.
        """
        is_trusted = self.op.target.partition(".")[0] in _TRUSTED
        numel = self.own.numel + sum(map(math.prod, own_results(self.own)))
        if numel <= (_MOST_CONFIRMED if is_trusted else _MOST_TRIED):
            return self.trials.confirms(self.own, factor, size)
        if is_trusted:
            return True
        small = self.trials.form.sizes
        for one in small:
            others = {large: less for large, less in small.items() if large != one}
            form = mapped(self.own, others)
            if form.numel > _MOST_LONG:
                return False
            if not self.trials.confirms(form, factor, others.get(size, size)):
                return False
        return True

    def _in_small(self) -> list[tuple[Factor, int]]:
        return [(factor, 3) for factor, _ in self.factors]

    def _rule(self) -> SpaceRule:
        tensors = [r for r in self.op.results if isinstance(r.type, TensorType)]
        operands = [self._map(n, len(shape)) for n, shape in enumerate(self.own.shapes)]
        results = [
            self._map(n, value.tensor_type.rank, is_result=True) for n, value in enumerate(tensors)
        ]
        kinds = [(f"d{n}", "sum") for n, (one, _) in enumerate(self.factors) if one.is_sum]
        arguments = [
            (place, f"d{n}") for n, (one, _) in enumerate(self.factors) for place in one.places
        ]
        return SpaceRule(tuple(operands), tuple(results), tuple(kinds), tuple(arguments))

    def _map(self, position: int, rank: int, *, is_result: bool = False) -> IndexMap:
        """Return the factor of each dimension of a tensor."""
        names: list[tuple[str, ...]] = [()] * rank
        for number, (factor, _) in enumerate(self.factors):
            dim = (factor.results if is_result else factor.operands)[position]
            if dim is not None:
                names[dim] = (f"d{number}",)
        return tuple(names)
