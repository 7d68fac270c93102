"""Names and expressions of generated programs: values, dimensions, and constants they refer to."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch

from lynx.ir.core import Foreign, Value
from lynx.ir.dims import Dim, python_source
from lynx.ir.errors import CompileError

HELPERS = (
    *("args", "torch", "min", "max", "tuple", "list"),
    *("memory", "offsets", "start", "error"),
)
"""Names that generated programs use for themselves."""


class Names:
    """Gives out identifiers, each once."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {*taken, *HELPERS, *keyword.kwlist}

    def unique(self, wanted: str) -> str:
        """Return the wanted name, or that name with an underscore or more."""
        name = re.sub(r"\W", "_", wanted, flags=re.ASCII) or "value"
        name = f"_{name}" if name[0].isdigit() else name
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


class Constants:
    """Objects that a generated program refers to by name: its global variables."""

    def __init__(self, names: Names, resources: Mapping[str, Any]) -> None:
        self.names = names
        self.resources = resources
        self.globals: dict[str, Any] = {"torch": torch}
        self._by_id: dict[int, str] = {}

    def name(self, item: Any, wanted: str) -> str:
        """Return the global name of an object, made from the wanted one at the first time."""
        known = self._by_id.get(id(item))
        if known is None:
            known = self._by_id[id(item)] = self.names.unique(wanted)
            self.globals[known] = item  # which keeps the object, and so its id, alive
        return known

    def function(self, function: Any) -> str:
        """Return the name of a function, after the operator or function that it is."""
        text = str(getattr(function, "__name__", "") or type(function).__name__)
        packet = getattr(function, "_schema", None)
        if packet is not None:
            text = f"{packet.name.replace('::', '_')}_{packet.overload_name or 'default'}"
        return self.name(function, text.strip("<>"))

    def resource(self, key: str) -> Any:
        """Return a constant that the graph holds."""
        if key not in self.resources:
            raise CompileError("missing-resource", f"the program holds no constant '{key}'")
        return self.resources[key]


class Expressions:
    """Writes arguments as Python source."""

    def __init__(self, constants: Constants, locals_: Mapping[Value, str]) -> None:
        self.constants = constants
        self.locals = locals_

    def argument(self, item: Any) -> str:
        """Return the source of an argument of a call."""
        if isinstance(item, Value):
            return self.locals[item]
        if isinstance(item, tuple | list):
            return f"[{', '.join(map(self.argument, item))}]"
        if isinstance(item, sympy.Expr):
            return python_source(item)
        if item is None or isinstance(item, bool | int | str):
            return repr(item)
        if isinstance(item, float) and math.isfinite(item):
            return repr(item)
        if isinstance(item, torch.dtype | torch.memory_format | torch.layout):
            return str(item)
        if isinstance(item, Foreign) and item.kind == "resource":
            return self.constants.name(self.constants.resource(item.text), f"constant_{item.text}")
        return self.constants.name(item, f"constant_{type(item).__name__}")

    def dims(self, dims: Iterable[Dim]) -> str:
        """Return the source of a tuple of dimensions."""
        texts = [python_source(dim) for dim in dims]
        return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
