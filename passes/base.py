"""What a pass is, what it is told, and the table of all passes by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from lynx.ir.core import Op
from lynx.ir.location import UNKNOWN, Location


@dataclass(frozen=True, slots=True)
class Remark:
    """A decision that a pass took or refused, with its reason; `lynx.explain` prints them."""

    subject: str
    message: str
    loc: Location = UNKNOWN


@dataclass
class PassContext:
    """What passes are told from outside.

    `evaluate` runs one op on concrete operands (used to fold constants), `can_write_into` says
    whether the back end can compute an op into given memory, `supports` whether it can run an op as
    it is. `remarks` collects what passes have to say.
    """

    evaluate: Callable[[Op, Sequence[Any]], Sequence[Any]] | None = None
    can_write_into: Callable[[Op], bool] = lambda op: False
    supports: Callable[[type[Op]], bool] = lambda kind: True
    remarks: list[Remark] = field(default_factory=list)


class Pass(Protocol):
    """A frozen dataclass whose fields are its options; `run` is pure but for `context.remarks`.

    `run` takes and returns a `Graph`, a `Program`, or goes from the first to the second, as its
    `requires` predicates say.
    """

    name: ClassVar[str]

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
