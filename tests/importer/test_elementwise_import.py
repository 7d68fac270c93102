"""Imported elementwise, factory and random operators give eager's bits for every mix of types."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lynx.backends.reference import call_of, run
from lynx.importer.promotion import promote, result_type
from lynx.ir.core import Value
from lynx.ir.types import DType, TensorType
from tests.importer.one_operator import (
    assert_imports_exactly,
    assert_same_bits,
    imported,
    operator,
    reasons,
)
from tests.samples import Sample
from tests.samples.inputs import SAMPLES, draw

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGER = (torch.int64, torch.int8, torch.uint8)
ALL = (*FLOATING, *INTEGER, torch.bool)
FEW = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.5, 1e-40, 3e38, -7.0, 100.5, torch.inf, -torch.inf)
WHOLE = (0, 1, -1, 2, -2, 3, -7, 7, 100, -128, 127, 5, -5)


@functools.cache
def numbers(dtype: torch.dtype, shift: int = 0, zero: bool = True) -> torch.Tensor:
    """Return 41 elements: enough for vectors and what is left over, and all the special ones."""
    generator = torch.Generator().manual_seed(7)
    if dtype.is_floating_point:
        special = torch.tensor((*SPECIAL, torch.nan), dtype=torch.float64)
        drawn = torch.randn(41 - len(special), generator=generator, dtype=torch.float64) * 3
        whole = torch.cat([special, drawn])
    elif dtype is torch.bool:
        whole = torch.arange(41) % 3 == 0
    else:
        low, high = (0, 200) if dtype is torch.uint8 else (-100, 100)
        drawn = torch.randint(low, high, (41 - len(WHOLE),), generator=generator)
        whole = torch.cat([torch.tensor(WHOLE), drawn])
        whole = whole.clamp(low, high) if dtype is torch.uint8 else whole
    whole = whole.roll(shift).to(dtype)
    return whole if zero or dtype is torch.bool else torch.where(whole == 0, 3, whole).to(dtype)


SCALARS = {
    torch.float32: 0.3,
    torch.float64: 2.5,
    torch.bfloat16: 1.7,
    torch.int64: 3,
    torch.bool: True,
}

UNARY = (
    *("abs", "neg", "sign", "sgn", "floor", "ceil", "round", "trunc", "frac", "reciprocal"),
    *("square", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
    *("atanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma", "digamma", "logical_not"),
    *("bitwise_not", "isnan", "isinf", "signbit", "positive", "lift_fresh_copy", "clone"),
    *("silu", "relu", "relu6", "hardswish", "hardsigmoid", "mish", "gelu", "leaky_relu", "elu"),
    *(
        "celu",
        "selu",
        "softplus",
        "hardtanh",
        "log_sigmoid_forward",
        "alias",
        "detach",
        "nan_to_num",
    ),
)
TORCHS_OWN = {
    ("square", torch.bool),
    ("hardtanh", "integer"),
    ("relu6", "integer"),
    ("leaky_relu", "integer"),
    ("threshold", "integer"),
}
"""Calls that eager has and Lynx leaves to it."""


def is_torchs_own(name: str, dtype: torch.dtype) -> bool:
    kind = "integer" if not dtype.is_floating_point else "floating"
    return (name, dtype) in TORCHS_OWN or (name, kind) in TORCHS_OWN


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    ran = 0
    for dtype in ALL:
        if is_torchs_own(name, dtype):
            continue
        for x in (numbers(dtype), numbers(dtype)[5], numbers(dtype)[:0]):
            ran += assert_imports_exactly(f"aten.{name}.default", x)
    assert ran


PROMOTING = (
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "rsub.Tensor", "eq.Tensor"),
    *("lt.Tensor", "ge.Tensor", "maximum.default", "pow.Tensor_Tensor"),
)
OTHER_BINARY = (
    *("remainder.Tensor", "fmod.Tensor", "minimum.default", "fmax.default", "fmin.default"),
    *("atan2.default", "hypot.default", "copysign.Tensor", "nextafter.default"),
    *("logaddexp.default", "xlogy.Tensor", "heaviside.default", "ne.Tensor", "le.Tensor"),
    *("gt.Tensor", "logical_and.default", "logical_or.default", "logical_xor.default"),
    *("bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor", "floor_divide.default"),
)
NO_ZERO = ("remainder", "fmod", "floor_divide", "pow")


def pairs(name: str, dtypes: tuple[torch.dtype, ...]) -> Iterator[tuple[Any, Any]]:
    """Yield operands of all mixes of types, with dimensions and without."""
    zero = not name.startswith(NO_ZERO)
    for index, (a, b) in enumerate(itertools.product(dtypes, dtypes)):
        x, y = numbers(a), numbers(b, 3, zero)
        mixes = [(x, y), (x, y[5]), (x[14], y), (x[14], y[20]), (x.unsqueeze(1), y[:3])]
        yield from mixes if len(dtypes) < 6 else (mixes[1], mixes[index % 5])


@pytest.mark.parametrize("name", PROMOTING)
def test_two_tensors_of_all_types(name: str) -> None:
    assert sum(assert_imports_exactly(f"aten.{name}", x, y) for x, y in pairs(name, ALL)) > 50


@pytest.mark.parametrize("name", OTHER_BINARY)
def test_two_tensors(name: str) -> None:
    assert sum(assert_imports_exactly(f"aten.{name}", x, y) for x, y in pairs(name, FEW)) > 4


@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_rounded_division(mode: str) -> None:
    for x, y in pairs("remainder", ALL):
        if x.dtype is not torch.bool or y.dtype is not torch.bool:
            assert_imports_exactly("aten.div.Tensor_mode", x, y, rounding_mode=mode)
    for x, number in itertools.product(map(numbers, FEW[:4]), (3, -3, 0.7)):
        assert_imports_exactly("aten.div.Scalar_mode", x, number, rounding_mode=mode)


WITH_NUMBER = (
    *("add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar", "rsub.Scalar", "eq.Scalar"),
    *("ne.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar", "remainder.Scalar"),
    *("fmod.Scalar", "pow.Tensor_Scalar", "copysign.Scalar", "xlogy.Scalar_Other"),
    *("clamp_min.default", "clamp_max.default", "add.Tensor", "mul.Tensor", "div.Tensor"),
    *("bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar", "__lshift__.Scalar"),
    *("__rshift__.Scalar", "bitwise_left_shift.Tensor_Scalar"),
)


@pytest.mark.parametrize("name", WITH_NUMBER)
def test_tensor_with_number(name: str) -> None:
    ran = 0
    for dtype, number in itertools.product(ALL, (2, -1, 0.3, -0.0, True, 2.0**40, torch.inf)):
        negative = isinstance(number, float) or number < 0
        if "shift" in name and (negative or dtype not in INTEGER):
            continue  # fake tensors refuse what eager takes
        if name.startswith("pow") and dtype is torch.bool and number is True:
            continue  # fake tensors give another type than eager
        for x in (numbers(dtype), numbers(dtype)[5]):
            ran += assert_imports_exactly(f"aten.{name}", x, number)
    assert ran > 2


@pytest.mark.parametrize(
    "name",
    ["pow.Scalar", "xlogy.Scalar_Self", "remainder.Scalar_Tensor", "bitwise_and.Scalar_Tensor"],
)
def test_number_with_tensor(name: str) -> None:
    ran = 0
    for dtype, number in itertools.product(ALL, (2, 0.3, -1.5, True)):
        zero = not name.startswith(NO_ZERO)
        for x in (numbers(dtype, 0, zero), numbers(dtype, 0, zero)[5]):
            ran += assert_imports_exactly(f"aten.{name}", number, x)
    assert ran > 2


@pytest.mark.parametrize("name", ["add.Tensor", "sub.Tensor", "rsub.Scalar", "add.Scalar"])
def test_multiples(name: str) -> None:
    for dtype, alpha in itertools.product(ALL, (2, -3, 0.5)):
        y = 3 if "Scalar" in name else numbers(dtype, 2)
        assert_imports_exactly(f"aten.{name}", numbers(dtype), y, alpha=alpha)
    assert assert_imports_exactly(
        "aten.add.Tensor", numbers(torch.int64), numbers(torch.int32), alpha=7
    )


def test_where() -> None:
    condition = numbers(torch.bool)
    for x, y in pairs("where", FEW):
        assert_imports_exactly("aten.where.self", condition, x, y) or x.ndim == 2
        assert_imports_exactly("aten.where.self", condition[0], x, y)
    for x, number in itertools.product(map(numbers, ALL), (0, 1.5, -torch.inf, True, 0.1, -0.0)):
        assert assert_imports_exactly("aten.where.ScalarOther", condition, x, number)
        assert assert_imports_exactly("aten.where.ScalarSelf", condition, number, x[3])
    assert assert_imports_exactly("aten.where.Scalar", condition, 1, 2.5)
    assert assert_imports_exactly("aten.where.Scalar", condition, 1, 2)


def test_masked_fill() -> None:
    mask = numbers(torch.bool)
    for dtype, number in itertools.product(ALL, (0, -torch.inf, 0.1, 2, True)):
        x = numbers(dtype)
        if number == 0 or dtype.is_floating_point:
            assert assert_imports_exactly("aten.masked_fill.Scalar", x, mask, number)
            assert assert_imports_exactly("aten.masked_fill.Tensor", x, mask, torch.tensor(number))
    assert assert_imports_exactly(
        "aten.masked_fill.Scalar", numbers(torch.float32), mask[:, None], 0.5
    )


def test_clamp() -> None:
    for dtype in ALL[:-1]:
        x = numbers(dtype)
        for limits in ((0, 1), (-0.5, 0.75), (None, 2), (1, None), (2, 0), (torch.nan, 1.0)):
            assert_imports_exactly("aten.clamp.default", x, *limits)
        assert assert_imports_exactly("aten.clamp.Tensor", x, x.roll(3), None)
        assert assert_imports_exactly("aten.clamp.Tensor", x, numbers(torch.float32, 1), x.roll(3))
        assert assert_imports_exactly("aten.clamp_min.Tensor", x, numbers(torch.float32)[4])
        assert assert_imports_exactly("aten.clamp_max.Tensor", x, x.roll(5))


def test_ternary() -> None:
    for dtype in ALL:
        x, a, b = numbers(dtype), numbers(dtype, 3), numbers(dtype, 5)
        for value in (1, 2, 0.5):
            assert_imports_exactly("aten.addcmul.default", x, a, b, value=value)
            assert_imports_exactly("aten.addcdiv.default", x, a, b, value=value)
        assert_imports_exactly("aten.lerp.Scalar", x, a, 0.3)
        assert_imports_exactly("aten.lerp.Tensor", x, a, b)
    assert assert_imports_exactly(
        "aten.addcmul.default",
        numbers(torch.float32),
        numbers(torch.bfloat16),
        numbers(torch.int64),
    )
    assert assert_imports_exactly(
        "aten.lerp.Scalar", numbers(torch.float32), numbers(torch.float32)[3], 1
    )


def test_conversions() -> None:
    for before, after in itertools.product(ALL, ALL):
        # what becomes of infinities and NaN in an integer is not defined
        x = numbers(before)[:4] if before.is_floating_point else numbers(before)
        assert assert_imports_exactly("aten._to_copy.default", x, dtype=after)
        assert assert_imports_exactly("aten.copy.default", numbers(after)[: len(x)], x)
    x = torch.randn(2, 3, 4, 5)
    assert assert_imports_exactly("aten.clone.default", x, memory_format=torch.channels_last)
    assert assert_imports_exactly("aten._to_copy.default", x, memory_format=torch.contiguous_format)
    assert assert_imports_exactly("aten.copy.default", x, x[0, 0, 0])
    assert assert_imports_exactly("aten.round.decimals", numbers(torch.float64), decimals=1)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gelu", {"approximate": "tanh"}),
        ("leaky_relu", {"negative_slope": 0.3}),
        ("elu", {"alpha": 2, "scale": 0.5, "input_scale": 1.5}),
        ("celu", {"alpha": 0.7}),
        ("nan_to_num", {"nan": 1.5, "posinf": 100.0}),
        ("nan_to_num", {"neginf": -0.5}),
        ("softplus", {"beta": 3, "threshold": 1.5}),
        ("hardtanh", {"min_val": 0, "max_val": 6}),
        ("threshold", {"threshold": 0.2, "value": 3}),
    ],
)
def test_activation_parameters(name: str, parameters: dict[str, Any]) -> None:
    for dtype in FLOATING:
        assert assert_imports_exactly(f"aten.{name}.default", numbers(dtype), **parameters)


BACKWARD: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("gelu_backward", ()),
    ("silu_backward", ()),
    ("tanh_backward", ()),
    ("sigmoid_backward", ()),
    ("hardswish_backward", ()),
    ("hardsigmoid_backward", ()),
    ("mish_backward", ()),
    ("threshold_backward", (0,)),
    ("leaky_relu_backward", (0.1, False)),
    ("leaky_relu_backward", (0.1, True)),
    ("softplus_backward", (2, 1.5)),
    ("hardtanh_backward", (-1, 1)),
)


@pytest.mark.parametrize(("name", "rest"), BACKWARD)
def test_gradients(name: str, rest: tuple[Any, ...]) -> None:
    for dtype in FLOATING:
        grad, x = numbers(dtype, 9), numbers(dtype)
        assert assert_imports_exactly(f"aten.{name}.default", grad, x, *rest)


def test_gradients_with_another_signature() -> None:
    for dtype in FLOATING:
        grad, x = numbers(dtype, 9), numbers(dtype)
        assert assert_imports_exactly("aten.elu_backward.default", grad, 1, 1, 1, False, x)
        assert assert_imports_exactly("aten.elu_backward.default", grad, 2, 1.5, 0.5, True, x)
        assert assert_imports_exactly("aten._prelu_kernel.default", x, numbers(dtype, 3))
        mask = numbers(torch.bool)
        assert assert_imports_exactly("aten.native_dropout_backward.default", grad, mask, 1.25)
        _, buffer = torch.ops.aten.log_sigmoid_forward(x)
        assert assert_imports_exactly("aten.log_sigmoid_backward.default", grad, x, buffer)


def test_factories() -> None:
    x = torch.zeros(3, 4, dtype=torch.bfloat16)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("zeros.default", ([2, 3],), {"dtype": torch.int64}),
        ("ones.default", ([2, 3],), {}),
        ("ones.default", ([],), {"dtype": torch.bool}),
        ("full.default", ([2, 0], 0.1), {}),
        ("full.default", ([2], 7), {}),
        ("full.default", ([2], 7), {"dtype": torch.float16}),
        ("full.default", ([2], True), {"pin_memory": False}),
        ("full.default", ([2], 2**60 + 1), {}),
        ("full_like.default", (x, -torch.inf), {}),
        ("full_like.default", (x, 3), {"dtype": torch.int32}),
        ("zeros_like.default", (x,), {"memory_format": torch.preserve_format}),
        ("ones_like.default", (x,), {"dtype": torch.float64}),
        ("new_zeros.default", (x, [5]), {}),
        ("new_ones.default", (x, [5]), {"dtype": torch.uint8}),
        ("new_full.default", (x, [5], 0.3), {}),
        ("scalar_tensor.default", (0.1,), {"dtype": torch.float64}),
        ("scalar_tensor.default", (3,), {}),
        ("fill.Scalar", (x, 1.3), {}),
        ("fill.Tensor", (x, torch.tensor(1.3)), {}),
        ("arange.default", (7,), {}),
        ("arange.default", (7.0,), {}),
        ("arange.start", (2, 9), {"dtype": torch.int32}),
        ("arange.start_step", (9, -1, -3), {}),
        ("arange.start_step", (0, 10, 3), {"dtype": torch.float32}),
        ("arange.start_step", (0.1, 2.0, 0.1), {}),
        ("arange.start_step", (-1.0, 1.0, 0.25), {"dtype": torch.bfloat16}),
        ("arange.start_step", (0, 0, 1), {}),
    ]
    for name, arguments, keywords in calls:
        assert assert_imports_exactly(f"aten.{name}", *arguments, **keywords), name


@pytest.mark.parametrize(
    ("start", "end", "step"), [(0.0, 1.0, 0.1), (1.0, -2.0, -0.3), (5, 5.5, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counting_in_fractions(start: float, end: float, step: float, dtype: torch.dtype) -> None:
    for scale in (1.0, 1e-3, 1e6):
        bounds = (start * scale, end * scale, step * scale)
        assert assert_imports_exactly("aten.arange.start_step", *bounds, dtype=dtype)


def test_empty_keeps_shape_and_type() -> None:
    x = torch.zeros(3, 4)
    for name, arguments in (
        ("empty.memory_format", ([2, 3],)),
        ("empty_like.default", (x,)),
        ("new_empty.default", (x, [5])),
        ("new_empty_strided.default", (x, [2, 3], [1, 2])),
        ("empty_strided.default", ([2, 3], [1, 2])),
    ):
        graph, _ = imported(operator(f"aten.{name}"), arguments, {})
        assert not reasons(graph)


def test_random_numbers_are_eagers() -> None:
    x = torch.rand(33, 5)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("rand.default", ([33, 5],), {}),
        ("rand.default", ([3],), {"dtype": torch.bfloat16}),
        ("rand_like.default", (x,), {}),
        ("randn.default", ([7],), {}),
        ("randn.default", ([33, 5],), {"dtype": torch.float64}),
        ("randn_like.default", (x,), {"dtype": torch.float16}),
        ("randint.default", (10, [33, 5]), {}),
        ("randint.low", (-5, 10, [33, 5]), {"dtype": torch.int32}),
        ("randint_like.default", (x, 4), {}),
        ("randint_like.low_dtype", (x, 1, 4), {"dtype": torch.int64}),
        ("uniform.default", (x, -1.0, 2.0), {}),
        ("normal_functional.default", (x, 1.0, 2.0), {}),
        ("exponential.default", (x, 1.5), {}),
        ("bernoulli.p", (x, 0.3), {}),
        ("bernoulli.default", (x,), {}),
        ("native_dropout.default", (x, 0.4, True), {}),
        ("native_dropout.default", (torch.rand(5, 4, 3, 2).bfloat16(), 0.1, True), {}),
        ("native_dropout.default", (x, 0.0, True), {}),
        ("native_dropout.default", (x, 1.0, True), {}),
        ("randperm.default", (20,), {}),
    ]
    for name, arguments, keywords in calls:
        assert assert_imports_exactly(f"aten.{name}", *arguments, seed=3, **keywords), name


def test_random_layouts_that_change_the_order_are_left_to_torch() -> None:
    x = torch.rand(5, 33).t()
    for name, arguments in (("rand_like", ()), ("native_dropout", (0.5, True))):
        graph, _ = imported(operator(f"aten.{name}.default"), (x, *arguments), {})
        assert len(reasons(graph)) == 1
        assert "row-major" in reasons(graph)[0]


@pytest.mark.parametrize(
    ("name", "arguments", "keywords"),
    [
        ("_to_copy.default", (torch.zeros(2),), {"device": torch.device("meta")}),
        ("square.default", (torch.zeros(2, dtype=torch.bool),), {}),
        ("abs.default", (torch.zeros(2, dtype=torch.complex64),), {}),
        ("full.default", ([2], 1.5), {"dtype": torch.int64}),
    ],
)
def test_declines(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    graph, _ = imported(operator(f"aten.{name}"), arguments, keywords)
    assert len(reasons(graph)) == 1


def test_promotion_is_torchs() -> None:
    theirs = {
        **{t: DType(n) for t, n in ((torch.float32, "f32"), (torch.float64, "f64"))},
        **{t: DType(n) for t, n in ((torch.bfloat16, "bf16"), (torch.float16, "f16"))},
        **{t: DType(n) for t, n in ((torch.int64, "i64"), (torch.int32, "i32"))},
        **{t: DType(n) for t, n in ((torch.int16, "i16"), (torch.int8, "i8"))},
        **{t: DType(n) for t, n in ((torch.uint8, "u8"), (torch.bool, "bool"))},
        **{t: DType(n) for t, n in ((torch.complex64, "c64"), (torch.complex128, "c128"))},
    }
    operands = tuple(theirs)
    theirs[torch.complex32] = DType.C32
    for a, b in itertools.product(operands, operands):
        assert promote(theirs[a], theirs[b]) is theirs[torch.promote_types(a, b)], (a, b)
        for first, second in itertools.product(((2,), ()), ((2,), ())):
            ours = [
                Value(TensorType(theirs[dtype], shape))
                for dtype, shape in ((a, first), (b, second))
            ]
            expected = torch.result_type(torch.empty(first, dtype=a), torch.empty(second, dtype=b))
            assert result_type(ours) is theirs[expected], (a, first, b, second)
        for number in (True, 3, 0.5, 1j):
            for shape in ((2,), ()):
                expected = torch.result_type(torch.empty(shape, dtype=a), number)
                assert (
                    result_type((Value(TensorType(theirs[a], shape)), number)) is theirs[expected]
                )


ELEMENTWISE = {
    key: sample
    for key, sample in SAMPLES.items()
    if (sample.op.is_elementwise or key.startswith("factory")) and sample.op.name != "empty"
}


def out_of(key: str, sample: Sample, over: int | None = None) -> None:
    """Run the form that writes into given memory, perhaps that of an operand, and compare."""
    values = draw(key, sample)
    call = call_of(sample.op)
    if call.out is None:
        pytest.skip("torch has no such form")
    torch.manual_seed(0)
    expected = run(sample.op, values, {}, {})
    memory = [torch.full_like(value, 1) for value in expected]
    if over is not None:
        target = values[sample.op.operands[over]]
        assert isinstance(target, torch.Tensor)
        memory[0] = target.clone()
        values[sample.op.operands[over]] = memory[0]
    arguments = [values.get(a, a) if isinstance(a, Value) else a for a in call.arguments]
    keywords = {
        k: values.get(a, a) if isinstance(a, Value) else a for k, a in call.keywords.items()
    }
    torch.manual_seed(0)
    call.out(*arguments, **keywords, **dict(zip(call.out_names, memory, strict=True)))
    for actual, wanted in zip(memory, expected, strict=True):
        assert_same_bits(actual, wanted)


@pytest.mark.parametrize("key", ELEMENTWISE)
def test_out_form_gives_the_same_bits(key: str) -> None:
    out_of(key, ELEMENTWISE[key])


def overwritable() -> list[Any]:
    return [
        pytest.param(key, index, id=f"{key}-{index}")
        for key, sample in ELEMENTWISE.items()
        for index, operand in enumerate(sample.op.operands)
        if operand.type == sample.op.results[0].type
    ]


@pytest.mark.parametrize(("key", "index"), overwritable())
def test_out_form_may_overwrite_an_operand(key: str, index: int) -> None:
    out_of(key, ELEMENTWISE[key], over=index)
