"""Run something with eager and compiled, and compare all that a user could see of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

BACKEND = "lynx"
RELATIVE = 1e-3
# Of the largest value of a tensor: an element may be off by this much.
ABSOLUTE = 1e-4


def compiled(function: Any, **keywords: Any) -> Any:
    """Compile with Lynx, told to raise where it would otherwise go on in eager."""
    return torch.compile(function, backend=BACKEND, options={"strict": True}, **keywords)


def leaves_of(value: Any, path: str = "result") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested results with where they lie: tensors, numbers, text, None.

    Sequences, mappings and dataclasses are opened, and objects of other classes by their
    attributes (the key-value caches of transformers are such).
    """
    if isinstance(value, dict):
        for key in value:
            yield from leaves_of(value[key], f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from leaves_of(item, f"{path}[{position}]")
    elif hasattr(value, "__dict__") and not isinstance(value, torch.Tensor):
        for key, item in sorted(vars(value).items()):
            if isinstance(item, torch.Tensor | dict | list | tuple):
                yield from leaves_of(item, f"{path}.{key}")
    else:
        yield path, value


def assert_same(actual: Any, expected: Any, *, floor: float = 0.0, layout: bool = True) -> None:
    """Compare nested results: structure, dtype, shape, strides, device, `requires_grad`, values.

    `floor` is an absolute error that is always allowed: a gradient that is zero but for rounding
    has no digits to agree in. `layout` is whether strides count.
    """
    ours, theirs = dict(leaves_of(actual)), dict(leaves_of(expected))
    assert list(ours) == list(theirs)
    for path, value in theirs.items():
        if isinstance(value, torch.Tensor):
            _assert_same_tensor(path, ours[path], value, floor, layout)
        elif isinstance(value, int | float | complex):
            torch.testing.assert_close(ours[path], value, rtol=RELATIVE, atol=floor, equal_nan=True)
        else:
            assert ours[path] == value, path


def _assert_same_tensor(
    path: str, actual: Any, expected: torch.Tensor, floor: float, layout: bool
) -> None:
    assert isinstance(actual, torch.Tensor), path
    assert describe(actual, layout) == describe(expected, layout), path
    largest = largest_of(expected)
    torch.testing.assert_close(
        actual.detach(),
        expected.detach(),
        rtol=RELATIVE,
        atol=ABSOLUTE * largest + floor,
        equal_nan=True,
        msg=lambda text: f"{path} (largest value {largest:.3g}): {text}",
    )


def describe(tensor: torch.Tensor, layout: bool = True) -> dict[str, Any]:
    """Return what must agree exactly; the stride of a dimension of size 1 or of nothing is free."""
    seen = {
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "device": tensor.device,
        "requires_grad": tensor.requires_grad,
    }
    if layout and tensor.layout is torch.strided:
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        free = tensor.numel() == 0
        seen["strides"] = [None if free or size == 1 else stride for size, stride in pairs]
    return seen


def largest_of(tensor: torch.Tensor) -> float:
    """Return the largest magnitude among the finite elements, 0 if there is none."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return 0.0
    magnitude = tensor.detach().to_dense().abs().double()
    return float(torch.nan_to_num(magnitude, nan=0.0, posinf=0.0).max())


def assert_as_accurate(actual: Any, expected: Any, exact: Any) -> None:
    """Check that errors against results in `f64` are at most twice those of eager's, and an ulp.

    For models that amplify the rounding of eager itself, such as batch norm over two elements. What
    is zero, next to numbers that are not, may be a rounding of those.
    """
    ours, theirs, true = (dict(leaves_of(value)) for value in (actual, expected, exact))
    assert list(ours) == list(theirs) == list(true)
    floats = [x for x in true.values() if isinstance(x, torch.Tensor) and x.is_floating_point()]
    least = 1e-10 * max(map(largest_of, floats), default=0.0)
    for path, value in true.items():
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        assert describe(ours[path], layout=False) == describe(theirs[path], layout=False), path
        largest = largest_of(value)
        ulp = torch.finfo(theirs[path].dtype).eps * 2.0 ** (math.frexp(largest)[1] - 1)
        slack = max(1e-6 * largest, ulp if largest else 0.0) + least
        allowed = 2 * largest_of(theirs[path].double() - value) + slack
        error = largest_of(ours[path].double() - value)
        assert error <= allowed, f"{path}: an error of {error:.3g}, allowed are {allowed:.3g}"


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Return a copy of the gradient of each parameter, None where there is none."""
    return {
        name: None if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def assert_same_gradients(actual: torch.nn.Module, expected: torch.nn.Module) -> None:
    """Compare every gradient; noise of a millionth of the largest one anywhere is allowed."""
    theirs = gradients(expected)
    largest = max((largest_of(g) for g in theirs.values() if g is not None), default=0.0)
    assert_same(gradients(actual), theirs, floor=1e-6 * largest, layout=False)
