"""What a pass is, what it is told, and the table of all passes by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from lynx.ir.core import Number, Op
from lynx.ir.location import UNKNOWN, Location

from .target import Target


@dataclass(frozen=True, slots=True)
class Remark:
    """A decision that a pass took or refused, with its reason; `lynx.explain` prints them."""

    subject: str
    message: str
    loc: Location = UNKNOWN


@dataclass(frozen=True, slots=True)
class ConstantInfo:
    """What a pass must know of a concrete tensor, without looking into it.

    `uniform` is the number that every element equals bit for bit (the sign of zero included), None
    if there is none; it is 0 for a tensor without elements. `digest` is a hash of the element type,
    the shape and the bits of all elements, in hexadecimal; `nbytes` the size of a dense copy.
    """

    uniform: Number | None
    digest: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class FoundRule:
    """What was found out of how an op can be cut: a rule in text, or the reason why there is none.

    See `ir/space_rules.py` for the text.
    """

    rule: str = ""
    reason: str = ""


@dataclass
class PassContext:
    """What passes are told from outside.

    `evaluate` runs one op on concrete operands (used to fold constants) and `constant_info` looks
    into what it returns; without both, nothing is folded. `can_write_into` says whether the back
    end can compute an op into given memory, `may_alias` whether a result of an `aten` op may share
    memory with an operand, `supports` whether it can run an op as it is, `find_rule` how an op can
    be cut that nobody has a rule for; without it such ops stay whole. `target` is the machine;
    where it is one of many in a mesh, `machine` names the description of them and their links, as
    `read_target` takes it, and is empty for a usual one.
    `remarks` collects what passes have to say; with `reasons`, also why each rule that was offered
    an op refused it.
    """

    evaluate: Callable[[Op, Sequence[Any]], Sequence[Any]] | None = None
    can_write_into: Callable[[Op], bool] = lambda op: False
    may_alias: Callable[[Op], bool] = lambda op: True
    supports: Callable[[type[Op]], bool] = lambda kind: True
    remarks: list[Remark] = field(default_factory=list)
    constant_info: Callable[[Any], ConstantInfo] | None = None
    reasons: bool = False
    target: Target = field(default_factory=Target)
    find_rule: Callable[[Op], FoundRule] | None = None
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a requirement does not hold, and where."""

    message: str
    loc: Location = UNKNOWN


@dataclass(frozen=True, slots=True)
class Requirement:
    """A form that a pass needs, with a name that reads after "requires": "a graph".

    `find` returns the first violation in a module, None if the requirement holds.
    """

    name: str
    find: Callable[[Any], Violation | None]


class Pass(Protocol):
    """A frozen dataclass whose fields are its options; `run` is pure but for `context.remarks`.

    Options are of type bool, int, str or `tuple[str, ...]`. `run` takes and returns a `Graph`, a
    `Program`, or goes from the first to the second, as its `requires` predicates say. It returns
    the very object that it was given when there is nothing to do.
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[Requirement, ...]]

    def run(self, module: Any, context: PassContext) -> Any:
        """Return the improved program; the one given is not changed."""
        ...


PASSES: dict[str, type[Any]] = {}
_P = TypeVar("_P")


def register_pass(kind: type[_P]) -> type[_P]:
    """Enter a pass class into `PASSES` under its `name`; used as a decorator."""
    name: str = kind.name  # type: ignore[attr-defined]  # the protocol asks for it
    if name in PASSES:
        raise TypeError(f"two passes are called {name!r}")
    PASSES[name] = kind
    return kind
