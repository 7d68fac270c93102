"""The line of IR in the docstring of each op is what the reader takes and the printer gives."""

from __future__ import annotations

import inspect
import re

import pytest
from lark import Token

from lynx.ir import Graph, Op, Value, differences, parse_graph, print_graph
from lynx.ir.fields import fields_of
from lynx.ir.ops import Aten, Fused
from lynx.ir.parser import parse_op_line
from lynx.ir.parser_values import OpNode
from tests.samples.inputs import SAMPLES

OPS = {
    name: kind for name, kind in Op.registry.items() if kind.__module__.startswith("lynx.ir.ops")
}


def documented_line(kind: type[Op]) -> OpNode:
    """Return the syntax of the line of IR, or the lines with a region, in an op's docstring."""
    text = inspect.getdoc(kind) or ""
    rest = r"(.*\{\n(.*\n)*? *\}.*|.*(\n +\{.*)?)"
    match = re.search(rf"^ *((%\w+(, )?)+ = {re.escape(kind.name)}\b{rest})", text, re.MULTILINE)
    assert match is not None, "no line of IR"
    return parse_op_line(match[1], file=kind.__name__)


@pytest.mark.parametrize("name", OPS)
def test_line_has_the_fields_of_the_op(name: str) -> None:
    kind = OPS[name]
    node = documented_line(kind)
    assert node.name == name
    assert node.types
    assert len(node.results) == len(node.types)
    assert {str(region.name) for region in node.regions} <= set(kind.region_fields)
    if kind is Fused:
        assert node.region is not None
        assert len(node.region.results) == len(node.results)
        return
    fields = fields_of(kind)
    for attribute, value in node.attributes:
        assert attribute in kind.attribute_fields
        fields[attribute].fit(value)
    if kind is not Aten:
        assert len(node.operands) <= len(kind.operand_fields)
        for field, item in zip(kind.operand_fields, node.operands, strict=False):
            fields[field].fit(with_values(item))


def with_values(item: object) -> object:
    """Replace the references in an operand by values."""
    if isinstance(item, Token):
        return Value(parse_op_line("%0 = x : f32[]").types[0].type)
    return tuple(map(with_values, item)) if isinstance(item, tuple) else item


@pytest.mark.parametrize("key", SAMPLES)
def test_samples_read_back(key: str) -> None:
    op = SAMPLES[key].op
    inputs = tuple(dict.fromkeys(op.operands))
    graph = Graph("g", inputs, (op,), op.results)
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert differences(graph, parsed) == []
    assert print_graph(parsed) == text
