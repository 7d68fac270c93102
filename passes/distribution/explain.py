"""Why a program over a mesh communicates, and why its values lie as they do, in a user's words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lynx.ir.core import Op, Value
from lynx.ir.location import Location
from lynx.ir.ops.aten import Aten
from lynx.ir.ops.collective import AllGather, AllReduce, AllToAll, Collective, ReduceScatter
from lynx.ir.ops.constraint import Constrain
from lynx.ir.sharding import Sharding
from lynx.ir.space import Axis, FactorKind, IterationSpace, Window
from lynx.ir.types import TensorType

from .distribute import Distributed
from .partition import Cause
from .report import Because, sent_by, why
from .strategy import is_divisible

_STEPS = 3
_VERBS = {
    "sum": "adds up",
    "product": "multiplies",
    "max": "takes the maximum of",
    "min": "takes the minimum of",
    "and": "takes 'and' of",
    "or": "takes 'or' of",
}


@dataclass(frozen=True)
class Words:
    """How values are called in a text, and what more there is to say of operators without a rule.

    `names` are those of inputs and outputs; other values are called by what makes them.
    """

    names: Mapping[Value, str] = field(default_factory=dict)
    note: Callable[[Aten], str] = lambda op: ""

    def name(self, value: Value) -> str:
        """Return the name of an input or output, or what makes a value."""
        known = self.names.get(value)
        if known is not None:
            return known
        if value.op is None:
            return f"'{value.name}'"
        number = f" (result {value.index})" if len(value.op.results) > 1 else ""
        return described(value.op) + number


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective: what it brings where, and why.

    `value` says what is moved, `before` and `after` how it lies, `sent` how many bytes each device
    sends, `loc` the place in the model that needs it.
    """

    kind: str
    axes: tuple[str, ...]
    value: str
    before: str
    after: str
    reason: str
    loc: Location
    sent: float

    def __str__(self) -> str:
        return (
            f"{self.kind} over {', '.join(self.axes)} of {self.value}, {self.before} -> "
            f"{self.after}: {self.reason}"
        )


def exchanges(found: Distributed, words: Words) -> Iterator[Exchange]:
    """Yield all collectives of a program that communicate, in order."""
    mesh = found.layouts.mesh
    for op in found.graph.ops:
        cause = found.partitioned.causes.get(op)
        if not isinstance(op, Collective) or not op.needs_communication or cause is None:
            continue
        yield Exchange(
            op.name,
            op.axes,
            words.name(source_of(cause.value)),
            str(op.x.type),
            str(op.out.tensor_type.sharding),
            _reason(op, cause, found, words),
            op.loc,
            sent_by(op, mesh),
        )


def source_of(value: Value) -> Value:
    """Return the input of which a value is only a view; the value itself if it is none."""
    current = value
    while current.op is not None and current.op.is_view and current.op.operands:
        current = current.op.operands[0]
    return current if current.op is None else value


def place(loc: Location) -> str:
    """Return ` at model.py:12`; nothing where the place is not known."""
    if loc.file:
        return f" at {loc.file.replace(chr(92), '/').rpartition('/')[2]}:{loc.line}"
    return f" in {loc.module}" if loc.module else ""


def described(op: Op) -> str:
    """Return what an op is, and where in the model."""
    kind = f"'{op.target.removesuffix('.default')}'" if isinstance(op, Aten) else op.name
    return f"{kind}{place(op.loc)}"


def _reason(op: Collective, cause: Cause, found: Distributed, words: Words) -> str:
    if isinstance(op, AllReduce | ReduceScatter):
        text = _summed(op, found)
        if isinstance(op, ReduceScatter):
            return f"{text}; each device needs its piece of dimension {op.dim}"
        return text
    dim = op.source if isinstance(op, AllToAll) else op.dim if isinstance(op, AllGather) else 0
    if cause.order:
        dim = cause.order.index(dim)
    text = _needed(op, cause, dim, found, words)
    if isinstance(op, AllToAll):
        target = cause.order.index(op.target) if cause.order else op.target
        return f"{text}, and is cut along dimension {target} instead"
    return text


def _summed(op: AllReduce | ReduceScatter, found: Distributed) -> str:
    """Return which op left partial results over an axis, and along what."""
    axis, current = op.axes[0], op.x
    while current.op is not None:
        above = [one for one in current.op.operands if _is_partial(one, axis)]
        if not above:
            break
        current = above[0]
    maker = current.op
    origin = found.partitioned.origins.get(maker) if maker is not None else None
    if origin is None:
        return f"parts over {axis} are combined by '{op.reduction}'"
    space, splits = found.partitioned.spaces[origin], found.partitioned.splits[origin]
    along = ""
    for factor in [name for name, split in splits.items() if axis in split.axes]:
        along = _where_factor(space, factor, origin) if space is not None else ""
    return f"{described(origin)} {_VERBS[op.reduction]} {along or 'parts'}, which {axis} cuts"


def _is_partial(value: Value, axis: str) -> bool:
    type_ = value.type
    sharding = type_.sharding if isinstance(type_, TensorType) else None
    return sharding is not None and any(partial.axis == axis for partial in sharding.partial)


def _where_factor(space: IterationSpace, factor: str, op: Op) -> str:
    """Return where an op has a factor: the dimension of the first tensor that it indexes."""
    for maps, what in ((space.operands, "operand"), (space.results, "result")):
        for position, index_map in enumerate(maps):
            for dim, axis in enumerate(index_map):
                if not isinstance(axis, Window) and factor in axis:
                    own = f" of {what} {position}" if len(maps) > 1 else ""
                    return f"dimension {dim}{own}"
    return ""


def _needed(op: Collective, cause: Cause, dim: int, found: Distributed, words: Words) -> str:
    """Return why a value must not stay cut along a dimension."""
    axes = " and ".join(op.axes)
    if cause.user is None:
        return {
            "output": "an output is to lie so",
            "input": "it is written into an input that lies so",
        }.get(cause.end, _own_place(cause, found, words))
    user, position = cause.user, cause.position
    if isinstance(user, Constrain):
        who = f"lynx.constrain{place(user.loc)}" if user.loc.is_known else "the plan"
        return f"{who} says '{user.sharding}'"
    text = described(user)
    space = found.partitioned.spaces.get(user)
    if space is None:
        return f"{text} needs the whole of it ({_without_space(user, words)})"
    axis = space.operands[position][dim]
    if isinstance(axis, Window):
        return f"{text} slides windows along dimension {dim}"
    if not axis or any(not is_divisible(space, factor) for factor in axis):
        tried = " (its rule was found by trials)" if isinstance(user, Aten) and user.rule else ""
        return f"{text} needs the whole of dimension {dim}{_kind(space, axis)}{tried}"
    splits = found.partitioned.splits[user]
    for factor, split in splits.items():
        if factor not in axis and set(op.axes).intersection(split.axes):
            return f"{text} runs cut by {axes} along {_where_factor(space, factor, user)}"
    if len(axis) > 1:
        return f"{text} takes dimension {dim} as ({' '.join(axis)}), whose pieces {axes} cuts apart"
    if set(op.axes).issubset(cause.wanted.axes):
        return f"{text} needs it cut at other places along dimension {dim}"
    return f"{text} is not cut along dimension {dim}"


def _without_space(op: Op, words: Words) -> str:
    if op.is_random:
        return "it draws random numbers as one device does"
    if isinstance(op, Aten):
        return words.note(op) or "Lynx has no rule for how to cut it"
    return "it cannot run on parts"


def _kind(space: IterationSpace, axis: Axis) -> str:
    if isinstance(axis, tuple) and any(
        space.factor(factor).kind is FactorKind.SCAN for factor in axis
    ):
        return ", in order"
    return ""


def _own_place(cause: Cause, found: Distributed, words: Words) -> str:
    wanted = cause.wanted
    if wanted.is_replicated:
        return "it is to lie whole"
    because = lies_because(found, cause.value, wanted, words)
    return f"it is to lie as {wanted}" + (f", {because}" if because else "")


def lies_because(found: Distributed, value: Value, sharding: Sharding, words: Words) -> str:
    """Return in a line why a value is cut by each of its axes; empty if it is not cut."""
    texts: dict[str, list[str]] = {}
    for axis in dict.fromkeys(axis for dim in sharding.dims for axis in dim):
        steps = list(why(found.layouts, value, axis))
        if steps:
            texts.setdefault(chain(steps, words), []).append(axis)
    if len(texts) == 1:
        return next(iter(texts))
    return "; ".join(f"{' and '.join(axes)} {text}" for text, axes in texts.items())


def chain(steps: Sequence[Because], words: Words) -> str:
    """Return a way from a value back to an annotation: `as up.weight, through matmul at m.py:3`."""
    last = steps[-1]
    if len(steps) == 1:
        return "as annotated" if last.value.op is None or last.is_annotated else ""
    passed = dict.fromkeys(described(step.op) for step in steps if step.op is not None)
    shown = list(passed)[:_STEPS]
    more = f" and {len(passed) - _STEPS} more" if len(passed) > _STEPS else ""
    return f"as {words.name(last.value)}, through {', '.join(shown)}{more}"
