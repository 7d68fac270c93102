"""Reading text: mistakes have a place, languages extend the grammar, large texts are no trouble."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from lark import Token, v_args

from lynx.ir import (
    Builder,
    DType,
    Graph,
    Location,
    TensorType,
    TextError,
    differences,
    parse_graph,
    parse_module,
    print_graph,
    verify,
)
from lynx.ir.build import GraphBuilder
from lynx.ir.ops import Add, Multiply
from lynx.ir.parser import Language, parse_op_line
from lynx.ir.parser_values import OpNode, Reader

GOOD = """
// A comment, and one at the end of a line.
graph @g(%x: f32[s0, 8] {static}) symbols (s0 in [2, inf]) {  // as here
  %y = exp %x : f32[s0, 8]
  return %y
}
"""


def mistake(text: str, read: Callable[..., Any] = parse_graph) -> TextError:
    with pytest.raises(TextError) as caught:
        read(text, file="model.lynx")
    return caught.value


def test_mistake_shows_line_and_caret() -> None:
    error = mistake(GOOD.replace("f32[s0, 8]\n", "f32[s0, 9]\n"))
    assert (error.code, error.line, error.column) == ("type-mismatch", 4, 17)
    assert error.loc == Location("model.lynx", 4)
    assert str(error) == (
        "model.lynx:4: error[type-mismatch]: 'exp' gives f32[s0, 8], but the text says f32[s0, 9]\n"
        "    %y = exp %x : f32[s0, 9]\n"
        "                  ^"
    )


@pytest.mark.parametrize(
    ("old", "new", "message", "column"),
    [
        ("%y = exp", "%y exp", "expected ',' or '=', got 'exp'", 6),
        ("%y = exp", "%y = $exp", "expected a name, got '$'", 8),
        ("exp %x :", "exp , :", "got ','", 12),
        ("return %y", "retrun %y", "got '}'", 1),
        ("return %y\n}", "return %y\n", "expected ',', 'mutates', '{' or '}', got the end", 12),
        ("@g", "g", "expected a name such as @forward, got 'g'", 7),
        ("s0, 8] {", "s0 8] {", "expected an operator, '(', ',', '@' or ']', got '8'", 21),
        ("{static}", "{static", "expected ',', '=' or '}', got ')'", 32),
    ],
)
def test_expected_words(old: str, new: str, message: str, column: int) -> None:
    error = mistake(GOOD.replace(old, new))
    assert error.code == "syntax-error"
    assert message in error.message
    assert error.column == column


def test_reader_takes_exactly_one_graph() -> None:
    assert mistake("").code == "graph-count"
    assert mistake(GOOD + GOOD).message == "expected one graph, got 2"
    assert [graph.name for graph in parse_module(GOOD + GOOD)] == ["g", "g"]


def test_resources_come_from_outside() -> None:
    resource = '%0 = resource {key = "c", dtype = i64, shape = [2]} : i64[2]'
    text = f"graph @g() {{ {resource} return %0 }}"
    assert parse_graph(text).resources == {}
    table = {"c": object()}
    assert parse_graph(text, resources=table).resources == table


def test_ops_can_have_their_place_in_the_text() -> None:
    (plain,) = parse_graph(GOOD, file="a.lynx").ops
    (located,) = parse_graph(GOOD, file="a.lynx", locate=True).ops
    assert not plain.loc.is_known
    assert located.loc == Location("a.lynx", 4)
    given = GOOD.replace("8]\n  ret", '8] loc("model.py":7 "blocks.0")\n  ret')
    (kept,) = parse_graph(given, file="a.lynx", locate=True).ops
    assert kept.loc == Location("model.py", 7, "blocks.0")


def test_ill_typed_op_names_both_places() -> None:
    error = mistake(
        "graph @g(%x: f32[2, 3]) {\n"
        '  %0 = matmul %x, %x : f32[2, 3]  loc("model.py":7 "mlp")\n  return %0\n}'
    )
    assert (error.line, error.column) == (2, 8)
    assert "(from model.py:7 in mlp)" in error.message


def test_words_of_the_grammar_can_be_names() -> None:
    text = (
        "graph @graph(%graph: f32[4], %replicated: f32[4 @ on], %return: int(loc)) "
        "symbols (loc, mesh in [0, 2]) "
        "mesh @mesh(on = 2) {\n"
        "  %aten = aten @aten(%graph, graph = 1, return = none, on = loc, partial = u8) : f32[4]\n"
        "  return %aten\n}\n"
    )
    graph = parse_graph(text)
    verify(graph)
    assert differences(graph, parse_graph(print_graph(graph))) == []


def test_a_type_word_is_a_symbol_where_only_a_dimension_can_be() -> None:
    text = (
        "graph @g(%x: f32[u8] {strides = [u8], offset = u16}) symbols (u8, u16) {\n"
        "  %0 = broadcast %x {shape = [2, u8]} : f32[2, u8]\n  return %0 {strides = [(u8), 1]}\n}\n"
    )
    graph = parse_graph(text)
    assert print_graph(graph) == text.replace("[u8],", "[(u8)],").replace(
        "offset = u16", "offset = (u16)"
    ).replace("[2, u8]}", "[2, (u8)]}")


def test_comments_and_division() -> None:
    text = (
        "graph @g(%x: f32[s0 // 2],  // the input\n  %n: int(s0 // 2)  // its size\n"
        ") symbols (s0)  // the symbol\n{\n"
        "  %0 = exp %x  // not yet\n    : f32[s0 // 2]  // ERROR: none\n  return %0  // end\n}"
    )
    graph = parse_graph(text)
    assert str(graph.inputs[0].type) == "f32[s0 // 2]"
    assert str(graph.inputs[1].type) == "int(s0 // 2)"


def test_operands_with_defaults_may_be_missing() -> None:
    node = parse_op_line('%0, %1 = foo %x, 1, [%y, none] {a = 1, b} : f32[4], int  loc("m")')
    assert [str(name) for name in node.results] == ["%0", "%1"]
    assert (str(node.name), node.operands[1]) == ("foo", 1)
    assert [(str(name), value) for name, value in node.attributes] == [("a", 1), ("b", True)]
    assert [str(item.type) for item in node.types] == ["f32[4]", "int"]
    assert node.loc == Location(module="m")


class Placed(NamedTuple):
    """An op of the language below and where it is put."""

    op: OpNode
    place: int


@v_args(inline=True)
class PlacedReader(Reader):
    """Reads ops that are followed by a number."""

    def placed(self, op: OpNode, place: Token) -> Placed:
        return Placed(op, int(place))

    def plan(self, *rows: Any) -> tuple[Any, ...]:
        return rows


def test_a_language_can_extend_the_grammar() -> None:
    rules = '\nplan: "plan" "(" input ")" "{" placed* "}"\nplaced: op "->" INT\n'
    language = Language(("plan",), rules, PlacedReader)

    def build(rows: tuple[Any, ...]) -> list[tuple[str, int]]:
        builder = GraphBuilder()
        builder.input(rows[0])
        return [(builder.op(row.op).name, row.place) for row in rows[1:]]

    text = "plan(%x: f32[4]) {\n%0 = exp %x : f32[4] -> 64\n%1 = neg %0 : f32[4] -> 0\n}"
    assert language.read(text, "plan", build, "p") == [("exp", 64), ("neg", 0)]
    with pytest.raises(TextError) as caught:
        language.read(text.replace("%0 :", "%2 :"), "plan", build, "p")
    assert (caught.value.code, caught.value.line, caught.value.column) == ("unknown-value", 3, 10)


def chain(length: int) -> Graph:
    builder = Builder("chain")
    type_ = TensorType(DType.F32, (4, 8))
    before = value = builder.input("x", type_)
    for line in range(length // 2):
        builder.loc = Location("model.py", line + 1, "blocks.0")
        before, value = value, builder.emit(Add(value, before))
        value = builder.emit(Multiply(value, 0.5))
    return builder.build((value,))


def test_large_graphs() -> None:
    graph = chain(10_000)
    text = print_graph(graph)
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(300)
        parsed = parse_graph(text)
        verify(parsed)
        assert differences(graph, parsed) == []
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        ("9**9**9**9", "too large"),
        ("2**100000", "too large"),
        ("(2**2000)*(2**2000)*(2**2000)", "more than 4096 bits"),
        ("s0**100000", "too large"),
        ("2**-1", "expected an integer"),
        ("0**-1", "expected an integer"),
        ("9" * 5000, "5000 digits"),
        ("complex(s0, 2)", "a part of a complex number"),
        ("complex(true, none)", "a part of a complex number"),
    ],
)
def test_numbers_that_no_size_can_be(size: str, problem: str) -> None:
    error = mistake(f"graph @g(%x: f32[4]) symbols (s0) {{\n  %0 = add %x, {size}\n  return %0\n}}")
    assert problem in error.message
    assert error.line == 2


@pytest.mark.parametrize(
    "line",
    [
        '%0 = exp %x : opaque<"\\x">',
        f'%0 = exp %x loc("a":{"9" * 5000})',
        f"%0 = concatenate {'[' * 3000}%x{']' * 3000} {{dim = 0}}",
        f"%0 = aten @aten.f.default({'[' * 3000}%x{']' * 3000}) : f32[4]",
    ],
)
def test_what_python_cannot_read_is_a_mistake(line: str) -> None:
    error = mistake(f"graph @g(%x: f32[4]) {{\n  {line}\n  return %0\n}}")
    assert error.line == 2
