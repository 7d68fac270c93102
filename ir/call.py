"""How one op is run: a function with its arguments, as a back end describes it to the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A function and its arguments, in which `Value`s and dimensions stand for what they become.

    `arguments` and `keywords` may nest tuples (passed as lists). `out`, where there is one, takes
    the same arguments and writes its results to the tensors given under the names `out_names`, one
    for each result, in any dense layout; it must not allocate memory of the results' size. The
    results of `function` are one value, or a tuple with one entry a result.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    out: Callable[..., Any] | None = None
    out_names: tuple[str, ...] = ("out",)
