"""Convolutions into given memory give the very bits of torch's, whatever the layouts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from lynx.backends.reference import call_of
from lynx.backends.reference.convolution import _convolution_backward
from lynx.backends.reference.torch_internals import convolve_into
from lynx.ir.core import Value
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.types import DType, TensorType
from lynx.passes.layouts import allocated_strides

LAST = torch.channels_last
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 8, 9, 9), (16, 8, 3, 3), {"padding": (1, 1)}),
    ((2, 8, 9, 7), (16, 8, 3, 2), {"stride": (2, 1), "dilation": (1, 2)}),
    ((2, 8, 9, 9), (16, 4, 3, 3), {"groups": 2}),
    ((2, 8, 9, 9), (8, 1, 7, 7), {"groups": 8, "padding": (3, 3)}),
    ((1, 3, 32, 32), (8, 3, 16, 16), {"stride": (16, 16)}),
    ((1, 1, 3, 3), (1, 1, 3, 3), {}),
    ((2, 8, 9), (16, 8, 3), {"stride": (2,), "padding": (2,)}),
    ((2, 4, 5, 6, 7), (6, 4, 3, 3, 3), {"padding": (1, 0, 1)}),
    ((0, 8, 9, 9), (16, 8, 3, 3), {}),
]


def operator(x: tuple[int, ...], weight: tuple[int, ...], given: dict[str, Any]) -> Convolution:
    bias = Value(TensorType(DType.F32, weight[:1]))
    values = (Value(TensorType(DType.F32, shape)) for shape in (x, weight))
    return Convolution(*values, bias, **given)


def convolved(op: Convolution, x: Any, weight: Any, bias: Any, out: Any = None) -> Any:
    call = call_of(op)
    rest = [list(a) if isinstance(a, tuple) else a for a in call.arguments[3:]]
    if out is None:
        return call.function(x, weight, bias, *rest)
    assert call.out is not None
    return call.out(x, weight, bias, *rest, out=out)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_into_given_memory(case: Any) -> None:
    op = operator(*case)
    x, weight, bias = (torch.randn(v.shape) for v in op.operands)  # type: ignore[arg-type]
    expected = convolved(op, x, weight, bias)
    out = torch.full_like(expected, float("nan"))
    assert convolved(op, x, weight, bias, out) is out
    assert torch.equal(out, expected)
    assert convolve_into(out, x, weight, bias, *call_of(op).arguments[3:6], op.groups) == (
        out.numel() > 0 and torch.backends.mkldnn.is_available()
    )


@pytest.mark.parametrize(
    "formats", list(itertools.product((torch.contiguous_format, LAST), repeat=3))
)
def test_layouts(formats: tuple[torch.memory_format, ...]) -> None:
    op = operator(*CASES[0])
    x, weight, out = (
        torch.randn(v.shape).contiguous(memory_format=item)  # type: ignore[arg-type]
        for v, item in zip((op.x, op.weight, op.out), formats, strict=True)
    )
    bias = torch.randn(16)
    strides = out.stride()
    convolved(op, x, weight, bias, out)
    assert out.stride() == strides
    assert torch.equal(out, convolved(op, x, weight, bias))


def test_views_of_inputs() -> None:
    op = operator(*CASES[0])
    weight, bias = torch.randn(16, 8, 3, 3), torch.randn(16)
    for x in (torch.randn(2, 8, 9, 18)[..., ::2], torch.randn(9, 8, 2, 9).permute(2, 1, 0, 3)):
        out = torch.empty(2, 16, 9, 9)
        assert torch.equal(convolved(op, x, weight, bias, out), convolved(op, x, weight, bias))


def test_without_the_library() -> None:
    op = operator(*CASES[0])
    x, weight, bias = (torch.randn(v.shape) for v in op.operands)  # type: ignore[arg-type]
    out = torch.full((2, 16, 9, 9), 7.0)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not convolve_into(out, x, weight, bias, [1, 1], [1, 1], [1, 1], 1)
        assert bool((out == 7).all())
        convolved(op, x, weight, bias, out)
        assert torch.equal(out, convolved(op, x, weight, bias))


def test_infinities_and_nan() -> None:
    op = operator(*CASES[0])
    x, weight, bias = (torch.randn(v.shape) for v in op.operands)  # type: ignore[arg-type]
    x[0, 0, 0, 0], x[1, 3, 4, 4] = float("nan"), float("inf")
    out = torch.empty(2, 16, 9, 9)
    expected = convolved(op, x, weight, bias)
    torch.testing.assert_close(convolved(op, x, weight, bias, out), expected, rtol=0, atol=0,
                               equal_nan=True)  # fmt: skip


def test_what_has_no_form_into_memory() -> None:
    x, weight = (Value(TensorType(DType.F64, shape)) for shape in CASES[0][:2])
    assert call_of(Convolution(x, weight, None)).out is None
    x, weight = (Value(TensorType(DType.F32, s)) for s in ((2, 8, 9, 9), (8, 4, 3, 3)))
    assert call_of(Convolution(x, weight, None, transposed=True)).out is None
    padded = Convolution(x, Value(TensorType(DType.F32, (4, 8, 3, 3))), None, end_padding=(1, 2))
    assert call_of(padded).out is None


def test_gradients_of_depthwise_weights() -> None:
    grad, x, weight = torch.randn(2, 8, 9, 9), torch.randn(2, 8, 9, 9), torch.randn(8, 1, 7, 7)
    rest = ([8], [1, 1], [3, 3], [1, 1], False, [0, 0], 8, (False, True, True))
    expected = torch.ops.aten.convolution_backward.default(grad, x, weight, *rest)[1:]
    for got, wanted in zip(_convolution_backward(grad, x, weight, *rest), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


GRADIENTS = [
    ((2, 8, 9, 9), (16, 8, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    ((2, 8, 9, 9), (16, 8, 3, 3), ([2, 2], [0, 1], [1, 1], False, [0, 0], 1)),
    ((2, 8, 9, 9), (8, 1, 7, 7), ([1, 1], [3, 3], [1, 1], False, [0, 0], 8)),
    ((2, 8, 9, 9), (8, 6, 3, 3), ([2, 2], [1, 1], [1, 1], True, [1, 1], 1)),
    ((2, 8, 9, 9), (16, 8, 1, 1), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
    ((2, 1, 9, 9), (4, 1, 3, 3), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
    ((2, 4, 1, 1), (4, 4, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    ((2, 8, 9), (16, 8, 3), ([1], [1], [1], False, [0], 1)),
    ((2, 4, 5, 6, 7), (6, 4, 3, 3, 3), ([1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1)),
]


@pytest.mark.parametrize("case", GRADIENTS, ids=str)
@pytest.mark.parametrize("last", list(itertools.product((False, True), repeat=3)))
def test_layouts_of_gradients_are_known(case: Any, last: tuple[bool, ...]) -> None:
    """What the lowering takes for granted is what comes out."""
    shapes, (stride, padding, dilation, transposed, output_padding, groups) = case[:2], case[2]
    x, weight = torch.randn(shapes[0]), torch.randn(shapes[1])
    y = torch.ops.aten.convolution.default(x, weight, None, *case[2])
    tensors = [torch.randn(y.shape), x, weight]
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for index, is_last in enumerate(last):
        if is_last and x.dim() in formats:
            tensors[index] = tensors[index].contiguous(memory_format=formats[x.dim()])
    values = [Value(TensorType(DType.F32, tuple(t.shape))) for t in tensors]
    strides = {v: tuple(t.stride()) for v, t in zip(values, tensors, strict=True)}
    given = {
        "stride": tuple(stride),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
        "output_padding": tuple(output_padding),
        "transposed": transposed,
        "groups": groups,
    }
    ops = [
        ConvolutionBackwardInput(*values, **given),
        ConvolutionBackwardWeight(*values, **given, of_bias=True),
    ]
    for op in ops:
        call = call_of(op)
        rest = [list(a) if isinstance(a, tuple) else a for a in call.arguments[3:]]
        results = call.function(*tensors, *rest)
        results = results if isinstance(results, tuple) else (results,)
        laid_out = allocated_strides(op, strides.get)
        for result, expected in zip(results, laid_out, strict=True):
            assert tuple(result.stride()) == expected
