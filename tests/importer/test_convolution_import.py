"""Convolutions and pooling are imported to structured ops and give eager's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lynx.backends.reference import evaluate
from tests.importer.one_operator import (
    assert_imports_exactly,
    assert_same_bits,
    imported,
    operator,
    reasons,
)

GEOMETRIES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 9), (6, 4, 3), {}),
    ((2, 4, 9), (6, 4, 3), {"stride": [2], "padding": [2], "dilation": [2]}),
    ((2, 4, 7, 8), (6, 4, 3, 3), {"stride": [2, 1], "padding": [1, 0]}),
    ((2, 4, 7, 8), (6, 4, 1, 1), {}),
    ((2, 6, 7, 8), (9, 2, 3, 2), {"groups": 3}),
    ((2, 4, 7, 8), (8, 1, 3, 3), {"groups": 4, "dilation": [2, 2], "padding": [2]}),
    ((0, 4, 7, 8), (6, 4, 3, 3), {}),
    ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"padding": [1, 1, 1]}),
    ((2, 4, 5), (4, 3, 3), {"transposed": True}),
    ((2, 4, 5, 5), (4, 3, 3, 3), {"transposed": True, "groups": 2, "stride": [2, 2]}),
    (
        (2, 4, 5, 5),
        (4, 3, 3, 3),
        {"transposed": True, "stride": [3, 2], "padding": [1, 1], "output_padding": [2, 1]},
    ),
]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def slide(rank: int, given: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a convolution after the bias."""
    count = rank - 2
    return (
        given.get("stride", [1] * count),
        given.get("padding", [0] * count),
        given.get("dilation", [1] * count),
        given.get("transposed", False),
        given.get("output_padding", [0] * count),
        given.get("groups", 1),
    )


def bias_size(weight: torch.Tensor, given: dict[str, Any]) -> int:
    return weight.shape[1] * given.get("groups", 1) if "transposed" in given else weight.shape[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_convolution(geometry: tuple[Any, ...], with_bias: bool, dtype: torch.dtype) -> None:
    shape, kernel, given = geometry
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(kernel, dtype=dtype)
    bias = torch.randn(bias_size(weight, given), dtype=dtype) if with_bias else None
    assert assert_imports_exactly(
        "aten.convolution.default", x, weight, bias, *slide(x.dim(), given)
    )


MASKS = [(True, True, True), (True, True, False), (False, False, True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_convolution_backward(
    geometry: tuple[Any, ...], mask: tuple[bool, ...], dtype: torch.dtype
) -> None:
    """Cutting the operator in two, one for the input and one for the others, changes no bit."""
    shape, kernel, given = geometry
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(kernel, dtype=dtype)
    rest = slide(x.dim(), given)
    grad = torch.randn_like(torch.ops.aten.convolution.default(x, weight, None, *rest))
    arguments = (grad, x, weight, [bias_size(weight, given)], *rest, list(mask))
    target = operator("aten.convolution_backward.default")
    expected = target(*arguments)
    graph, inputs = imported(target, arguments, {})
    assert not reasons(graph)
    actual, _ = evaluate(graph, inputs)
    assert [gradient is not None for gradient in actual] == list(mask)
    for ours, theirs in zip(actual, expected, strict=True):
        if ours is not None:
            assert_same_bits(ours, theirs)


def test_channels_last_gives_the_same_values() -> None:
    x = torch.randn(2, 4, 7, 8).to(memory_format=torch.channels_last)
    weight = torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last)
    assert assert_imports_exactly("aten.convolution.default", x, weight, None, *slide(4, {}))


POOLS = [
    ([2, 2], [], 0),
    ([3, 2], [2, 1], [1, 1]),
    ([2], [1], [0]),
    ([3, 3], [2, 2], [1, 1]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), POOLS)
@pytest.mark.parametrize("shape", [(2, 3, 6, 7), (3, 6, 5), (0, 3, 6, 7), (1, 1, 3, 3)])
def test_pooling_of_planes(
    shape: tuple[int, ...],
    kernel: list[int],
    stride: list[int],
    padding: Any,
    ceil_mode: bool,
    dtype: torch.dtype,
) -> None:
    x = torch.randn(shape, dtype=dtype)
    windows = (kernel, stride, padding)
    name = "aten.max_pool2d_with_indices"
    assert assert_imports_exactly(f"{name}.default", x, *windows, 1, ceil_mode)
    values, places = operator(f"{name}.default")(x, *windows, 1, ceil_mode)
    grad = torch.randn_like(values)
    assert assert_imports_exactly(
        f"{name}_backward.default", grad, x, *windows, 1, ceil_mode, places
    )
    for counting in ((True, None), (False, None), (True, 3)):
        arguments = (*windows, ceil_mode, *counting)
        assert assert_imports_exactly("aten.avg_pool2d.default", x, *arguments)
        assert assert_imports_exactly("aten.avg_pool2d_backward.default", grad, x, *arguments)


def test_pooling_with_dilation_and_infinities() -> None:
    x = torch.randn(2, 3, 8, 8)
    x[0, 0, 2] = torch.nan
    x[0, 1, 3] = -torch.inf
    x[1] = -torch.inf
    assert assert_imports_exactly(
        "aten.max_pool2d_with_indices.default", x, [2, 2], [2, 1], [1, 1], [2, 3]
    )


def test_pooling_of_volumes() -> None:
    x = torch.randn(2, 3, 5, 6, 7)
    values, places = operator("aten.max_pool3d_with_indices.default")(x, [2, 2, 2])
    windows: tuple[Any, ...] = ([2, 2, 2], [2, 2, 2], [0, 0, 0])
    assert assert_imports_exactly("aten.max_pool3d_with_indices.default", x, *windows)
    assert assert_imports_exactly(
        "aten.max_pool3d_with_indices_backward.default",
        values, x, *windows, [1, 1, 1], False, places,
    )  # fmt: skip
    assert assert_imports_exactly("aten.avg_pool3d.default", x, [2, 3, 2], [1, 2, 2], [1, 1, 0])
    assert assert_imports_exactly(
        "aten.avg_pool3d_backward.default", values, x, *windows, False, True, None
    )


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 9), (6, 7)])
def test_adaptive_pooling(size: tuple[int, int]) -> None:
    for shape in ((2, 3, 6, 7), (3, 6, 7)):
        x = torch.randn(shape)
        grad = torch.randn(*shape[:-2], *size)
        assert assert_imports_exactly("aten._adaptive_avg_pool2d.default", x, list(size))
        assert assert_imports_exactly("aten._adaptive_avg_pool2d_backward.default", grad, x)
    volume = torch.randn(2, 3, 6, 7, 4)
    grad = torch.randn(2, 3, *size, 2)
    assert assert_imports_exactly("aten._adaptive_avg_pool3d.default", volume, [*size, 2])
    assert assert_imports_exactly("aten._adaptive_avg_pool3d_backward.default", grad, volume)
