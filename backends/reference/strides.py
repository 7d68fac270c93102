"""Corrections for operators that are particular about the strides of operands or of outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from lynx.ir.call import Call


def without_out(call: Call) -> Call:
    """Drop an `out` form that uses its output as scratch memory of another size."""
    return dataclasses.replace(call, out=None, out_names=("out",))


def contiguous_only(call: Call) -> Call:
    """Use an `out` form only among contiguous tensors.

    For others torch gives the output other strides, ignores those that it has, or refuses.
    """
    function, out, names = call.function, call.out, call.out_names
    if out is None:
        return call

    def into(*arguments: Any, **keywords: Any) -> Any:
        outputs = [keywords[name] for name in names]
        if all(item.is_contiguous() for item in (*arguments, *outputs) if _is_tensor(item)):
            return out(*arguments, **keywords)
        given = {name: item for name, item in keywords.items() if name not in names}
        results = function(*arguments, **given)
        results = results if isinstance(results, tuple) else (results,)
        for output, result in zip(outputs, results, strict=True):
            output.copy_(result)
        return outputs

    return dataclasses.replace(call, out=into)


def contiguous_operands(call: Call) -> Call:
    """Call an operator that refuses other tensors with contiguous ones."""
    function = call.function

    def on_contiguous(*arguments: Any, **keywords: Any) -> Any:
        return function(*(a.contiguous() if _is_tensor(a) else a for a in arguments), **keywords)

    return dataclasses.replace(call, function=on_contiguous)


def copying(call: Call, change: Callable[..., Any]) -> Call:
    """Give an `out` form to a call that copies its first argument and changes the copy in place.

    `change` is the operator that changes its first argument.
    """

    def into(x: torch.Tensor, *arguments: Any, out: torch.Tensor, **keywords: Any) -> Any:
        return change(out.copy_(x), *arguments, **keywords)

    return dataclasses.replace(call, out=into, out_names=("out",))


def _is_tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor)
