"""The samples of all families, and random inputs for them."""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from pathlib import Path

import torch

from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir.core import Value
from lynx.ir.types import DType, ScalarType, TensorType
from tests.samples import Sample


def load() -> tuple[dict[str, Sample], dict[str, str]]:
    """Return all samples by a readable key, and the errors of modules that cannot be imported."""
    found: dict[str, Sample] = {}
    broken: dict[str, str] = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if info.name == "inputs":
            continue
        try:
            module = importlib.import_module(f"tests.samples.{info.name}")
        except Exception as error:  # one broken family must not hide the others
            broken[info.name] = repr(error)
            continue
        for index, sample in enumerate(module.SAMPLES):
            found[f"{info.name}-{index}-{sample.op.name}"] = sample
    return found, broken


SAMPLES, BROKEN = load()


def draw(key: str, sample: Sample) -> dict[Value, object]:
    """Return a random tensor or number for each operand value of a sample."""
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    values: dict[Value, object] = {}
    for position, operand in enumerate(sample.op.operands):
        bounds = sample.bounds.get(position)
        type_ = operand.type
        if isinstance(type_, ScalarType):
            values[operand] = 2 if bounds is None else bounds[0]
        elif isinstance(type_, TensorType):
            positive = position in sample.positive
            values[operand] = random_tensor(type_, generator, positive, bounds)
    return values


def random_tensor(
    type_: TensorType,
    generator: torch.Generator,
    positive: bool = False,
    bounds: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Return a tensor of static shape; integers of small size, unless bounded."""
    shape = tuple(int(dim) for dim in type_.shape)
    dtype = torch_dtype(type_.dtype)
    if type_.dtype is DType.BOOL or type_.dtype.is_integer:
        low = 0 if type_.dtype is DType.BOOL or type_.dtype.value.startswith("u") else -8
        low, high = bounds or (low, 2 if type_.dtype is DType.BOOL else 8)
        return torch.randint(low, high, shape, generator=generator).to(dtype)
    if bounds is not None:
        low, high = bounds
        share = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (share * (high - low) + low).to(dtype)
    if bounds is not None:
        low, high = bounds
        return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)
    if positive:
        return (torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5).to(dtype)
    if type_.dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex128).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
