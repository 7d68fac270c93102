"""The text of types, and when two types are the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.ir import (
    DType,
    OpaqueType,
    Partial,
    ScalarType,
    Sharding,
    TensorType,
    TextError,
    Type,
    parse_type,
    symbol,
)
from lynx.ir.sharding import REDUCTIONS
from lynx.ir.types import is_same_type

S = symbol("s0")
F32 = DType.F32

DIMS = st.sampled_from((0, 1, 5, 2**40, S, S * 2 + 1, symbol("u8")))
AXES = st.sampled_from(("dp", "tp", "a-b", "on"))
DEVICES = st.sampled_from(("cpu", "cuda", "cuda:0", "meta", "strange device:1"))


@st.composite
def tensor_types(draw: st.DrawFn) -> TensorType:
    shape = tuple(draw(st.lists(DIMS, max_size=4)))
    sharding = None
    if draw(st.booleans()):
        dims = tuple(tuple(draw(st.lists(AXES, max_size=2))) for _ in shape)
        partial = st.builds(Partial, st.sampled_from(REDUCTIONS), AXES)
        sharding = Sharding(dims, tuple(draw(st.lists(partial, max_size=2))))
    return TensorType(draw(st.sampled_from(DType)), shape, draw(DEVICES), sharding)


SCALARS = st.builds(ScalarType, st.sampled_from(("int", "float", "bool")), st.none() | DIMS)
OPAQUE = st.builds(OpaqueType, st.text(max_size=8) | st.sampled_from(("token", "a.B", "<x>", '"')))


@given(tensor_types() | SCALARS | OPAQUE)
@settings(max_examples=400, deadline=None)
def test_reads_back(type_: Type) -> None:
    assert parse_type(str(type_)) == type_


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (TensorType(F32, ()), "f32[]"),
        (TensorType(F32, (4, S * 2), "cuda:0"), "f32[4, 2*s0] on cuda:0"),
        (
            TensorType(F32, (S, 512), sharding=Sharding((("dp",), ("tp",)))),
            "f32[s0 @ dp, 512 @ tp]",
        ),
        (
            TensorType(F32, (4,), sharding=Sharding((("dp", "tp"),), (Partial("sum", "pp"),))),
            "f32[4 @ (dp, tp)] + partial(sum: pp)",
        ),
        (TensorType(F32, (4,), sharding=Sharding(((),))), "f32[4] replicated"),
        (ScalarType("int", S + 1), "int(s0 + 1)"),
        (ScalarType("float"), "float"),
        (OpaqueType("torch.Generator"), "opaque<torch.Generator>"),
        (OpaqueType("Dict[str, int]"), 'opaque<"Dict[str, int]">'),
    ],
    ids=str,
)
def test_form(type_: Type, text: str) -> None:
    assert str(type_) == text
    assert parse_type(text) == type_


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("f33[4]", "unknown-type", "unknown element type 'f33', did you mean 'f32'"),
        ("itn", "unknown-type", "unknown type 'itn', did you mean 'int'"),
        ("f32[4,]", "syntax-error", "expected an expression, got ']'"),
        ("f32[4", "syntax-error", "got the end of the text"),
        ("f32[1.5]", "bad-dimension", "expected an integer expression, got 1.5"),
        ("f32[4] on", "syntax-error", "expected a device such as cuda:0 or text in quotes"),
    ],
)
def test_mistakes(text: str, code: str, message: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_type(text)
    assert caught.value.code == code
    assert message in caught.value.message


def test_sameness_is_of_meaning() -> None:
    a, b = TensorType(F32, (S * (S + 1),)), TensorType(F32, (S**2 + S,))
    assert a != b
    assert is_same_type(a, b)
    assert is_same_type(ScalarType("int", S * (S + 1)), ScalarType("int", S**2 + S))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("f32[4]", "f64[4]"), ("f32[4]", "f32[4, 1]"), ("f32[4]", "f32[5]"), ("f32[s0]", "f32[s1]"),
        ("f32[4]", "f32[4] on cuda:0"), ("f32[4]", "f32[4] replicated"), ("int", "float"),
        ("f32[4 @ dp]", "f32[4 @ tp]"), ("f32[4]", "f32[4] + partial(sum: tp)"), ("int", "f32[]"),
        ("int", "int(s0)"), ("int(s0)", "int(s1)"), ("int(s0)", "float(s0)"),
        ("opaque<a>", "opaque<b>"),
    ],
)  # fmt: skip
def test_differences_count(a: str, b: str) -> None:
    assert not is_same_type(parse_type(a), parse_type(b))
    assert is_same_type(parse_type(a), parse_type(a))


def test_sizes() -> None:
    type_ = TensorType(DType.BF16, (S, 3))
    assert type_.rank == 2
    assert type_.numel == 3 * S
    assert type_.nbytes == 6 * S
    assert [dtype.itemsize for dtype in DType] == [
        1,
        1,
        2,
        4,
        8,
        1,
        2,
        4,
        8,
        *[1] * 4,
        2,
        2,
        4,
        8,
        4,
        8,
        16,
    ]
