"""What the text of a graph looks like, and that it holds everything."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.ir import (
    Builder,
    DType,
    Foreign,
    Graph,
    InputSpec,
    Location,
    Mesh,
    Mutation,
    OpaqueType,
    OutputSpec,
    ScalarType,
    Sharding,
    SymbolRange,
    TensorType,
    Value,
    differences,
    format_op,
    parse_graph,
    parse_module,
    print_graph,
    print_module,
    symbol,
)
from lynx.ir.ops import Add, Aten, Exp, Matmul
from lynx.ir.printer import format_literal

S = symbol("s0")
F32 = TensorType(DType.F32, (4,))


def call(*arguments: Any, **options: Any) -> Aten:
    return Aten(
        options.pop("target", "aten.f.default"),
        arguments,
        (),
        options.pop("types", (F32,)),
        **options,
    )


def graph_of(*ops: Any, **options: Any) -> Graph:
    x = next((v for op in ops for v in op.operands if v.op is None), Value(F32, name="x"))
    return Graph("g", (x,), ops, (), **options)


def round_trip(graph: Graph) -> Graph:
    """Check that the graph survives its text, and return what was read."""
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert differences(graph, parsed) == []
    assert print_graph(parsed) == text
    return parsed


LITERALS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.complex_numbers(),
        st.text(),
        st.sampled_from(DType),
        st.builds(Foreign, st.sampled_from(("layout", "memory_format", "a.b")), st.text()),
        st.sampled_from(
            (S, S * 2 + 1, -S, *(symbol(name) for name in ("u8", "f32", "inf", "true")))
        ),
    ),
    lambda items: st.lists(items, max_size=3).map(tuple),
    max_leaves=6,
)


@given(st.lists(LITERALS, max_size=3), st.dictionaries(st.sampled_from("abc"), LITERALS))
@settings(max_examples=300, deadline=None)
def test_literals_read_back_exactly(arguments: list[Any], keywords: dict[str, Any]) -> None:
    op = Aten("aten.f.default", tuple(arguments), tuple(keywords.items()), (F32,))
    (parsed,) = round_trip(graph_of(op)).ops
    assert isinstance(parsed, Aten)
    assert format_literal(parsed.arguments) == format_literal(op.arguments)
    for before, after in zip(arguments, parsed.arguments, strict=True):
        assert type(before) is type(after)
        if isinstance(before, float) and not math.isnan(before):
            assert (before, math.copysign(1, before)) == (after, math.copysign(1, after))


@given(st.text(), st.text(), st.integers(0, 10**6), st.text())
@settings(max_examples=200, deadline=None)
def test_names_and_places_read_back(name: str, file: str, line: int, module: str) -> None:
    loc = Location(file, line, module)
    graph = dataclasses.replace(graph_of(call(target=name, loc=loc, reason=name)), name=name)
    parsed = round_trip(graph)
    assert parsed.name == name
    assert parsed.ops[0].loc == loc


@given(st.lists(st.text(max_size=4) | st.sampled_from(("x", "x_1", "0", "a.b")), max_size=5))
@settings(max_examples=200, deadline=None)
def test_inputs_keep_names_where_they_can(names: list[str]) -> None:
    graph = Graph("g", tuple(Value(F32, name=name) for name in names), (), ())
    parsed = round_trip(graph)
    assert len({value.name for value in parsed.inputs}) == len(names)
    for name, value in zip(names, parsed.inputs, strict=True):
        if names.count(name) == 1 and name in ("x", "a.b"):
            assert value.name == name


EVERYTHING = Graph(
    "everything",
    (x := Value(F32, name="x"), n := Value(ScalarType("int", S), name="n"),
     t := Value(OpaqueType("token"), name="t")),
    (op := call(x, n, t),),
    (op.out, None, x),
    (InputSpec((1,), S * 8, True), InputSpec(), InputSpec()),
    (OutputSpec((1,), False, True, 3), OutputSpec(saved=True), OutputSpec(group=0)),
    (Mutation(x, op.out),),
    (SymbolRange("s0", 2), SymbolRange("u0", None, 5), SymbolRange("u1"), SymbolRange("s1", -3, 9)),
    {"c": None},
    Mesh("m", (("dp", 2), ("tp", 4))),
)  # fmt: skip


def test_form_of_everything() -> None:
    assert print_graph(EVERYTHING) == (
        "graph @everything(\n"
        "    %x: f32[4] {strides = [1], offset = 8*s0, static},\n"
        "    %n: int(s0),\n"
        "    %t: opaque<token>\n"
        ") symbols (s0 in [2, inf], u0 in [-inf, 5], u1, s1 in [-3, 9]) mesh @m(dp = 2, tp = 4) {\n"
        "  %0 = aten @aten.f.default(%x, %n, %t) : f32[4]\n"
        "  return %0 {strides = [1], alias, saved, group = 3}, none {saved}, %x {group = 0} "
        "mutates (%x: %0)\n"
        "}\n"
    )
    round_trip(EVERYTHING)


def test_long_returns_take_several_lines() -> None:
    y = Value(F32, name="a_name_that_is_rather_long_as_those_of_parameters_are")
    graph = Graph("g", (y,), (), (y, None, y), mutations=(Mutation(y, y),))
    assert print_graph(graph).partition("{\n")[2] == (
        f"  return\n      %{y.name},\n      none,\n      %{y.name}\n"
        f"    mutates (\n      %{y.name}: %{y.name})\n}}\n"
    )
    round_trip(graph)


# For each field of what makes up a graph, a value that differs from the one in `EVERYTHING`: a new
# field that is missing from the text or from the comparison fails here.
CHANGES: dict[type[Any], dict[str, Any]] = {
    InputSpec: {"strides": (2,), "offset": 0, "is_static": False},
    OutputSpec: {"strides": None, "fresh": True, "saved": False, "group": 4,
                 "sharding": Sharding((("dp",),))},
    SymbolRange: {"name": "z", "lower": 5, "upper": 7},
    Mesh: {"name": "n", "axes": (("dp", 3),)},
    Mutation: {"target": n, "value": x},
    Location: {"file": "a.py", "line": 7, "module": "b"},
    Graph: {
        "name": "h", "inputs": (Value(F32, name="y"), n, t), "ops": (), "outputs": (None, None, x),
        "input_specs": (InputSpec(),) * 3, "output_specs": (OutputSpec(),) * 3, "mutations": (),
        "symbols": (), "resources": {"d": None}, "mesh": None,
    },
}  # fmt: skip


def changed(part: type[Any], name: str, value: Any) -> Graph:
    """Return `EVERYTHING` with one field changed in the first object of a class."""
    if part is Graph:
        return dataclasses.replace(EVERYTHING, **{name: value})
    if part is Location:
        other = dataclasses.replace(op, loc=Location(**{name: value}))
        return EVERYTHING.with_ops((other,), {op.out: other.out})
    fields = {InputSpec: "input_specs", OutputSpec: "output_specs", SymbolRange: "symbols",
              Mesh: "mesh", Mutation: "mutations"}  # fmt: skip
    old = getattr(EVERYTHING, fields[part])
    if part is Mesh:
        return dataclasses.replace(EVERYTHING, mesh=dataclasses.replace(old, **{name: value}))
    new = (dataclasses.replace(old[0], **{name: value}), *old[1:])
    return dataclasses.replace(EVERYTHING, **{fields[part]: new})


@pytest.mark.parametrize(
    ("part", "name"), [(part, f.name) for part in CHANGES for f in dataclasses.fields(part)]
)
def test_no_field_is_forgotten(part: type[Any], name: str) -> None:
    other = changed(part, name, CHANGES[part][name])
    if (part, name) in ((Graph, "inputs"), (Graph, "ops")):
        # What refers to the old value no longer finds it.
        assert differences(EVERYTHING, other)
        return
    assert differences(EVERYTHING, other)
    if (part, name) != (Graph, "resources"):
        assert print_graph(other) != print_graph(EVERYTHING)
        round_trip(other)


def test_locations_can_be_left_out() -> None:
    graph = graph_of(call(Value(F32, name="x"), loc=Location("model.py", 3, "blocks.0")))
    assert 'loc("model.py":3 "blocks.0")' in print_graph(graph)
    assert "loc(" not in print_graph(graph, locations=False)


def test_defaults_are_left_out_but_not_what_only_looks_like_them() -> None:
    x = Value(F32, name="x")
    assert format_op(Add(x, x)) == "%0 = add %x, %x : f32[4]"
    assert format_op(Add(x, x, alpha=1)) == "%0 = add %x, %x {alpha = 1} : f32[4]"
    assert format_op(Add(x, x, alpha=2.5)) == "%0 = add %x, %x {alpha = 2.5} : f32[4]"


def test_one_op_alone() -> None:
    a = Value(TensorType(DType.F32, (4, 8)), name="a")
    exp = Exp(a, loc=Location("model.py", 3))
    product = Matmul(exp.out, Value(TensorType(DType.F32, (8, 2)), name="b"))
    assert format_op(product) == "%1 = matmul %0, %b : f32[4, 2]"


def test_undefined_values_do_not_stop_the_printer() -> None:
    stranger = Value(F32, name="x")
    text = print_graph(Graph("g", (), (Exp(stranger),), (Value(F32),)))
    assert "exp %undefined0" in text
    assert "return %undefined1" in text


def test_what_text_cannot_hold_is_marked() -> None:
    graph = graph_of(call(object))
    assert "#unprintable(\"<class 'object'>\")" in print_graph(graph)


def test_unevaluated_dimensions_print_evaluated() -> None:
    size = sympy.Mul(2, S + 1, evaluate=False)
    builder = Builder("g")
    builder.input("x", TensorType(DType.F32, (size,)), InputSpec((size,)))
    graph = builder.build((), symbols=(SymbolRange("s0"),))
    assert "%x: f32[2*s0 + 2] {strides = [2*s0 + 2]}" in print_graph(graph)
    round_trip(graph)


def test_modules() -> None:
    text = print_module((EVERYTHING, graph_of(call())))
    first, second = parse_module(text)
    assert (first.name, second.name) == ("everything", "g")
    assert print_module((first, second)) == text
    assert print_module(()) == ""
    assert parse_module("") == []
