"""The torch names of element types, for generated programs."""

from __future__ import annotations

import torch

from lynx.ir.types import DType

_FAMILIES = {"bf": "bfloat", "f8": "float8_", "f": "float", "i": "int", "u": "uint", "c": "complex"}


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return torch's object for an element type: `bfloat16` for `bf16`."""
    name = dtype.value
    for short, family in _FAMILIES.items():
        if name.startswith(short):
            name = family + name.removeprefix(short)
            break
    found: torch.dtype = getattr(torch, name)
    return found
