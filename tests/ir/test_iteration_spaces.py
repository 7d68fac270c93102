"""Every claim of an iteration space, checked by running the op whole and in parts.

A factor that is PARALLEL may be cut anywhere; a REDUCTION is combined from parts by its operation;
an op is linear in the operands that it says.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lynx.backends.reference import run
from lynx.backends.reference.dtypes import dtype_from_torch, torch_dtype
from lynx.ir.core import Op, Value
from lynx.ir.errors import CompileError
from lynx.ir.space import Axis, Factor, FactorKind, IterationSpace, Window
from lynx.ir.types import DType, ScalarType, TensorType, Type
from tests.samples import Sample
from tests.samples.inputs import BROKEN, SAMPLES, draw, random_tensor

UNDEFINED_CONTENTS = frozenset({"empty"})
"""Ops whose values nobody may rely on."""

COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.logical_and,
    "or": torch.logical_or,
}

Values = dict[Value, Any]


def spaces() -> Iterator[Any]:
    """One case for each sample whose op has a space."""
    for key, sample in SAMPLES.items():
        if sample.op.space() is not None:
            yield pytest.param(key, id=key)


def factors(*kinds: FactorKind) -> Iterator[Any]:
    """One case for each factor of these kinds of each sample."""
    for key, sample in SAMPLES.items():
        space = sample.op.space()
        for factor in space.factors if space is not None else ():
            if factor.kind in kinds:
                yield pytest.param(key, factor.name, id=f"{key}-{factor.name}")


def execute(op: Op, values: Values) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return run(op, values, {}, {})


def has_values(op: Op) -> bool:
    return not op.is_random and op.name not in UNDEFINED_CONTENTS


@functools.cache
def whole(key: str) -> tuple[Values, tuple[Any, ...]]:
    sample = SAMPLES[key]
    values = draw(key, sample)
    return values, execute(sample.op, values)


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    if not isinstance(expected, torch.Tensor):
        assert actual == expected
    elif expected.is_floating_point() or expected.is_complex():
        low = expected.dtype in (torch.float16, torch.bfloat16)
        error = max(tolerance, torch.finfo(expected.dtype).eps * 4) if low else tolerance
        torch.testing.assert_close(actual, expected, rtol=error, atol=error, equal_nan=True)
    else:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_sample_modules_import() -> None:
    assert not BROKEN


@pytest.mark.parametrize("key", list(SAMPLES))
def test_infer_says_what_the_reference_computes(key: str) -> None:
    op = SAMPLES[key].op
    _, results = whole(key)
    assert len(results) == len(op.results)
    for result, value in zip(op.results, results, strict=True):
        if isinstance(result.type, TensorType):
            assert isinstance(value, torch.Tensor)
            assert tuple(value.shape) == result.type.shape
            assert dtype_from_torch(value.dtype) is result.type.dtype
        elif isinstance(result.type, ScalarType):
            assert type(value).__name__ == result.type.kind


@pytest.mark.parametrize("key", spaces())
def test_sizes_agree_with_factors(key: str) -> None:
    op = SAMPLES[key].op
    space = op.space()
    assert space is not None
    assert len({factor.name for factor in space.factors}) == len(space.factors)
    assert len(space.operands) == len(op.operands)
    assert len(space.results) == len(op.results)
    for value, index_map in zip(
        (*op.operands, *op.results), (*space.operands, *space.results), strict=True
    ):
        shape = value.type.shape if isinstance(value.type, TensorType) else ()
        assert len(index_map) == len(shape), (value, index_map)
        for size, axis in zip(shape, index_map, strict=True):
            assert isinstance(size, int)
            check_axis(space, axis, size)
    for positions in space.linear:
        assert positions
        assert all(0 <= position < len(op.operands) for position in positions)


def check_axis(space: IterationSpace, axis: Axis, size: int) -> None:
    """A dimension is as long as its factors say; the last window must begin inside the padding."""
    if isinstance(axis, Window):
        position, offset = space.factor(axis.position), space.factor(axis.offset)
        reach = (position.size - 1) * axis.stride + (offset.size - 1) * axis.dilation + 1
        assert reach - 2 * axis.padding <= size or axis.padding or axis.size, (axis, reach, size)
        assert axis.size in (0, size)
    elif axis:
        assert math.prod(int(space.factor(name).size) for name in axis) == size, (axis, size)


def part(tensor: Any, index_map: tuple[Axis, ...], space: IterationSpace, cut: Factor) -> Any:
    """Return what the iterations `cut` (a factor with a start in `combine`) touch of a tensor."""
    start, size = int(cut.combine), int(cut.size)
    for dim, axis in enumerate(index_map):
        if isinstance(axis, Window):
            tensor = window_part(tensor, dim, axis, space, cut)
        elif cut.name in axis:
            sizes = [int(space.factor(name).size) for name in axis]
            place = dim + axis.index(cut.name)
            tensor = tensor.unflatten(dim, sizes) if len(sizes) > 1 else tensor
            tensor = tensor.narrow(place, start, size)
            tensor = tensor.flatten(dim, dim + len(sizes) - 1) if len(sizes) > 1 else tensor
    return tensor


def window_part(
    tensor: torch.Tensor, dim: int, axis: Window, space: IterationSpace, cut: Factor
) -> torch.Tensor:
    """Return the rows that part of a window's positions, or part of its offsets, read."""
    if cut.name not in (axis.position, axis.offset):
        return tensor
    start, size = int(cut.combine), int(cut.size)
    stride, dilation, padding = int(axis.stride), int(axis.dilation), int(axis.padding)
    if cut.name == axis.position:
        first = start * stride - padding
        reach = (size - 1) * stride + (int(space.factor(axis.offset).size) - 1) * dilation
    else:
        first = start * dilation - padding
        reach = (int(space.factor(axis.position).size) - 1) * stride + (size - 1) * dilation
    low, high = max(first, 0), min(first + reach + 1, tensor.shape[dim])
    return tensor.narrow(dim, min(low, tensor.shape[dim]), max(high - low, 0))


def chunks(size: int, count: int) -> Iterator[tuple[int, int]]:
    """Cut a size in chunks of equal length, the last one shorter; empty ones are left out."""
    length = -(-size // count)
    for start in range(0, size, max(length, 1)):
        yield start, min(length, size - start)


def run_part(key: str, factor: Factor, start: int, size: int) -> tuple[Any, ...]:
    """Run the localized op on its parts of the operands."""
    op, (values, _) = SAMPLES[key].op, whole(key)
    space = op.space()
    assert space is not None
    cut = Factor(factor.name, size, combine=str(start))
    local_values: Values = {}
    operands = []
    for operand, index_map in zip(op.operands, space.operands, strict=True):
        given = values[operand]
        type_ = operand.type
        if isinstance(given, torch.Tensor) and isinstance(type_, TensorType):
            given = part(given, index_map, space, cut)
            type_ = type_.with_shape(tuple(given.shape))
        operands.append(Value(type_, name=f"o{len(operands)}"))
        local_values[operands[-1]] = given
    local = op.localized(tuple(operands), factor.name, start, size)
    results = execute(local, local_values)
    for result, value in zip(local.results, results, strict=True):
        if isinstance(result.type, TensorType):
            assert tuple(value.shape) == result.type.shape
            assert value.dtype is torch_dtype(result.type.dtype)
    return results


def check_parallel(key: str, factor: Factor, count: int) -> None:
    sample, (_, full) = SAMPLES[key], whole(key)
    space = sample.op.space()
    assert space is not None
    for start, size in chunks(int(factor.size), count):
        cut = Factor(factor.name, size, combine=str(start))
        results = run_part(key, factor, start, size)
        for actual, expected, index_map in zip(results, full, space.results, strict=True):
            wanted = part(expected, index_map, space, cut)
            if has_values(sample.op):
                assert_close(actual, wanted, sample.tolerance)
            else:
                assert actual.shape == wanted.shape


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("key", "name"), factors(FactorKind.PARALLEL))
def test_parallel_factors_can_be_cut(key: str, name: str, count: int) -> None:
    space = SAMPLES[key].op.space()
    assert space is not None
    try:
        check_parallel(key, space.factor(name), count)
    except CompileError as error:
        if error.code != "no-local-form":
            raise
        pytest.skip(error.message)


def check_reduction(key: str, factor: Factor, count: int) -> None:
    """Parts of a result that the factor indexes are slices of it, those of the others combine."""
    sample, (_, full) = SAMPLES[key], whole(key)
    space = sample.op.space()
    assert space is not None
    combine = COMBINE[factor.combine]
    partial: dict[int, Any] = {}
    for start, size in chunks(int(factor.size), count):
        cut = Factor(factor.name, size, combine=str(start))
        for index, result in enumerate(run_part(key, factor, start, size)):
            if any(factor.name in axis for axis in space.results[index]):
                wanted = part(full[index], space.results[index], space, cut)
                assert_close(result, wanted, sample.tolerance)
            elif index in partial and result is not None:
                partial[index] = combine(partial[index], result).to(result.dtype)
            else:
                partial[index] = result
    if has_values(sample.op):
        for index, actual in partial.items():
            assert_close(actual, full[index], sample.tolerance)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("key", "name"), factors(FactorKind.REDUCTION))
def test_reductions_combine_from_parts(key: str, name: str, count: int) -> None:
    space = SAMPLES[key].op.space()
    assert space is not None
    factor = space.factor(name)
    if factor.combine not in COMBINE:
        pytest.skip(f"no operation on tensors combines by '{factor.combine}'")
    try:
        check_reduction(key, factor, count)
    except CompileError as error:
        if error.code != "no-local-form":
            raise
        pytest.skip(error.message)


def in_double(op: Op) -> Op:
    """Return the op over f64 operands where it has such a form, or the op itself."""
    mapping = {
        operand: Value(operand.type.with_dtype(DType.F64))
        for operand in op.operands
        if isinstance(operand.type, TensorType) and operand.type.dtype.is_floating
    }
    try:
        return op.replace_operands(mapping)
    except CompileError:
        return op


def distinct_operands(op: Op) -> Op:
    """Return the op with another value at each operand position."""
    operands = tuple(Value(operand.type, name=operand.name) for operand in op.operands)
    changed: dict[str, Any] = {}
    left = iter(operands)

    def refill(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(refill(entry) for entry in item)
        return next(left) if isinstance(item, Value) else item

    for name in op.operand_fields:
        changed[name] = refill(getattr(op, name))
    return dataclasses.replace(op, **changed)


def check_linear(key: str, sample: Sample, positions: tuple[int, ...]) -> None:
    op = in_double(distinct_operands(sample.op))
    values = draw(key, dataclasses.replace(sample, op=op))
    generator = torch.Generator().manual_seed(1)
    other, total = dict(values), dict(values)
    for position in positions:
        operand = op.operands[position]
        assert isinstance(operand.type, TensorType)
        assert operand.type.dtype.is_floating or operand.type.dtype.is_complex
        other[operand] = random_tensor(operand.type, generator)
        total[operand] = values[operand] + other[operand]
    for first, second, both, result in zip(
        execute(op, values), execute(op, other), execute(op, total), op.results, strict=True
    ):
        if not isinstance(result.type, TensorType):
            continue
        tolerance = 1e-9 if result.type.dtype is DType.F64 else sample.tolerance
        assert_close(both, first + second, tolerance)


def linear_claims() -> Iterator[Any]:
    for key, sample in SAMPLES.items():
        space = sample.op.space()
        for positions in space.linear if space is not None else ():
            types = [sample.op.operands[position].type for position in positions]
            if all(isinstance(t, TensorType) and _has_noise(t.dtype) for t in types):
                yield pytest.param(key, positions, id=f"{key}-{positions}")


def _has_noise(dtype: DType) -> bool:
    return dtype.is_floating or dtype.is_complex


@pytest.mark.parametrize(("key", "positions"), linear_claims())
def test_linear_operands(key: str, positions: tuple[int, ...]) -> None:
    check_linear(key, SAMPLES[key], positions)


def has_sums(type_: Type) -> bool:
    """Whether partial sums of such a result could be told from the whole."""
    return isinstance(type_, TensorType) and type_.dtype.is_floating and type_.numel != 0


def free_factors(key: str) -> Iterator[str]:
    """Say which factors of a sample could be parallel but are not declared so."""
    space = SAMPLES[key].op.space()
    assert space is not None
    for factor in space.factors:
        needs_all = factor.kind in (FactorKind.OPAQUE, FactorKind.SCAN) and factor.size > 1
        if needs_all and holds(check_parallel, key, factor, 2):
            yield f"{key}: factor {factor.name} could be parallel"


def free_operands(key: str) -> Iterator[str]:
    """Say in which operands a sample could be linear but is not declared so."""
    op = SAMPLES[key].op
    space = op.space()
    assert space is not None
    claimed = {position for positions in space.linear for position in positions}
    for position, operand in enumerate(op.operands):
        candidate = position not in claimed and has_sums(operand.type)
        if candidate and holds(check_linear, key, SAMPLES[key], (position,)):
            yield f"{key}: could be linear in operand {position}"


def holds(check: Callable[..., None], *arguments: Any) -> bool:
    """Whether a check passes; an op that cannot run so answers no."""
    try:
        check(*arguments)
    except (AssertionError, CompileError, RuntimeError, IndexError, ValueError, TypeError):
        return False
    return True


def test_missing_options_are_listed() -> None:
    """Print, with `-s` or `-rP`, where a space gives less freedom than it could; never fail."""
    for key, sample in SAMPLES.items():
        if sample.op.space() is None or not has_values(sample.op):
            continue
        for line in free_factors(key):
            print(line)
        if all(has_sums(result.type) for result in sample.op.results):
            for line in free_operands(key):
                print(line)


def key_of(name: str) -> str:
    return next(key for key, sample in SAMPLES.items() if sample.op.name == name)


def claim(monkeypatch: pytest.MonkeyPatch, name: str, **changed: Any) -> tuple[str, IterationSpace]:
    """Make the first sample of an op claim something else of all its factors, or of linearity."""
    key = key_of(name)
    op = SAMPLES[key].op
    space = op.space()
    assert space is not None
    linear = changed.pop("linear", space.linear)
    factors = tuple(dataclasses.replace(factor, **changed) for factor in space.factors)
    wrong = IterationSpace(factors, space.operands, space.results, linear)
    monkeypatch.setattr(type(op), "space", lambda self: wrong)
    return key, wrong


def test_a_wrong_parallel_claim_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    true_space = SAMPLES[key_of("softmax")].op.space()
    assert true_space is not None
    (along,) = true_space.of_kind(FactorKind.OPAQUE)
    key, wrong = claim(monkeypatch, "softmax", kind=FactorKind.PARALLEL)
    factor = wrong.factor(along.name)
    with pytest.raises(AssertionError):
        check_parallel(key, factor, 2)


def test_a_wrong_reduction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    key, wrong = claim(monkeypatch, "amax", combine="sum")
    (factor,) = wrong.of_kind(FactorKind.REDUCTION)
    with pytest.raises(AssertionError):
        check_reduction(key, factor, 2)


def test_a_wrong_linear_claim_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = claim(monkeypatch, "exp", linear=((0,),))
    with pytest.raises(AssertionError):
        check_linear(key, SAMPLES[key], (0,))


def test_a_wrong_size_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = claim(monkeypatch, "tanh", size=2)
    with pytest.raises(AssertionError):
        test_sizes_agree_with_factors(key)
