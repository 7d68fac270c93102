"""Ops give the same values whatever the strides of their operands and of their output's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lynx.backends.reference import call_of, run
from lynx.ir.core import Op, Value
from tests.samples.inputs import SAMPLES, draw

UNDEFINED = frozenset({"empty"})

Layout = Callable[[torch.Tensor], torch.Tensor]


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous()


def column_major(tensor: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 3:
        return tensor.contiguous()
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


LAYOUTS: list[tuple[Layout, Layout]] = [
    (row_major, row_major),
    (row_major, column_major),
    (column_major, row_major),
    (column_major, column_major),
    (channels_last, row_major),
    (channels_last, channels_last),
    (row_major, channels_last),
]


def with_out() -> Iterator[Any]:
    for key, sample in SAMPLES.items():
        if call_of(sample.op).out is not None and sample.op.name not in UNDEFINED:
            yield pytest.param(key, id=key)


def apply(op: Op, values: dict[Any, Any], outputs: list[torch.Tensor]) -> None:
    call = call_of(op)

    def fill(item: Any) -> Any:
        if isinstance(item, tuple | list):
            return [fill(part) for part in item]
        return values[item] if isinstance(item, Value) else item

    arguments = [fill(argument) for argument in call.arguments]
    keywords = {name: fill(item) for name, item in call.keywords.items()}
    assert call.out is not None
    call.out(*arguments, **keywords, **dict(zip(call.out_names, outputs, strict=True)))


def laid_out(key: str, layout: Layout) -> dict[Any, Any]:
    return {
        value: layout(item) if isinstance(item, torch.Tensor) else item
        for value, item in draw(key, SAMPLES[key]).items()
    }


def execute(op: Op, values: dict[Any, Any]) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return run(op, values, {}, {})


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare up to rounding: kernels add in another order when strides differ."""
    if expected.is_floating_point():
        error = 1e-5 if expected.dtype in (torch.float32, torch.float64) else 2e-2
        torch.testing.assert_close(actual, expected, rtol=error, atol=error, equal_nan=True)
    else:
        assert torch.equal(actual, expected)


def has_values(key: str) -> bool:
    return not SAMPLES[key].op.is_random and SAMPLES[key].op.name not in UNDEFINED


@pytest.mark.filterwarnings("ignore:torch.searchsorted")
@pytest.mark.parametrize("key", [key for key in SAMPLES if has_values(key)])
def test_results_do_not_depend_on_strides(key: str) -> None:
    """Values have no strides, so an op may meet others than it would in eager."""
    op = SAMPLES[key].op
    expected = execute(op, laid_out(key, row_major))
    for layout in (column_major, channels_last):
        for actual, result in zip(execute(op, laid_out(key, layout)), expected, strict=True):
            if isinstance(result, torch.Tensor):
                assert_close(actual, result)


@pytest.mark.filterwarnings("ignore:torch.searchsorted")
@pytest.mark.parametrize("key", with_out())
def test_results_are_written_where_they_should_be(key: str) -> None:
    op = SAMPLES[key].op
    expected = execute(op, laid_out(key, row_major))
    for given, wanted in LAYOUTS:
        outputs = [wanted(torch.full_like(result, 1)) for result in expected]
        places = [(output.data_ptr(), output.stride()) for output in outputs]
        torch.manual_seed(0)
        apply(op, laid_out(key, given), outputs)
        assert [(output.data_ptr(), output.stride()) for output in outputs] == places
        for output, result in zip(outputs, expected, strict=True):
            if given is row_major and wanted is row_major:
                torch.testing.assert_close(output, result, rtol=0, atol=0, equal_nan=True)
            elif has_values(key):
                assert_close(output, result)
