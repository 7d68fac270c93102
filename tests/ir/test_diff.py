"""What a comparison of graphs says, and that it says nothing when nothing differs."""

from __future__ import annotations

import pytest

from lynx.ir import differences, equal, parse_graph, unified

TEXT = """
graph @g(%x: f32[s0, 8] {static}, %y: f32[8]) symbols (s0) {
  %0 = add %x, %y : f32[s0, 8]  loc("model.py":3)
  %1 = sum %0 {dims = [1]} : f32[s0]
  %2, %3 = aten @aten.f.default(%1, [%0, 1.0], k = nan) : f32[s0], int(s0)
  return %2 {strides = [1]}, %3, none mutates (%y: %y)
}
"""


def compare(old: str, new: str) -> list[str]:
    assert old in TEXT
    return differences(parse_graph(TEXT), parse_graph(TEXT.replace(old, new)))


def test_names_do_not_count() -> None:
    assert compare("%0", "%other") == []
    assert compare("%x", "%input") == []
    assert equal(parse_graph(TEXT), parse_graph(TEXT))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("@g", "@h", "name: g / h"),
        ("symbols (s0)", "symbols (s0 in [2, inf])", "symbols: s0 / s0 in [2, inf]"),
        ("(s0) {", "(s0) mesh @m(dp = 2) {", "mesh: None / mesh @m(dp = 2)"),
        ("{static}", "", "input 0: static: True / False"),
        ("{static}", "{static, offset = s0}", "input 0: offset: 0 / s0"),
        ("add %x, %y", "add %x, 1.0", "op 0 'add': operand 'y': %input1 / 1.0"),
        ("add %x, %y", "add %x, %y {alpha = 1}", "op 0 'add': attribute 'alpha': 1.0 / 1"),
        (":3", ":4", "op 0 'add': location: model.py:3 / model.py:4"),
        ("add %x, %y", "sub %x, %y", "op 0: 'add %input0, %input1' / 'sub %input0, %input1', "
         "the rest is not compared"),
        ("1.0]", "1]", "op 2 'aten': operand 'arguments': [%1, [%0, 1.0]] / [%1, [%0, 1]]"),
        ("aten.f", "aten.g", "op 2 'aten': attribute 'target': \"aten.f.default\" / "
         '"aten.g.default"'),
        ("f32[s0], int(s0)", "f64[s0], int(s0)", "op 2 'aten': type f32[s0] / f64[s0]"),
        ("%2 {strides = [1]}", "%2", "output 0: strides: [1] / none"),
        ("%3, none", "%3 {saved}, none", "output 1: saved: False / True"),
        ("%3, none", "%3 {alias}, none", "output 1: fresh: True / False"),
        ("%3, none", "none, none", "output 1: %2.1 / none"),
        (", none", "", "outputs: 3 / 2"),
        (" mutates (%y: %y)", "", "mutations: %input1: %input1 / none"),
    ],
)  # fmt: skip
def test_one_change_is_one_difference(old: str, new: str, found: str) -> None:
    assert compare(old, new) == [found]


REGION = """
graph @g(%a: f32[4], %b: f32[4]) {
  %0, %1 = fused(%x = %a, %y = %b) {
    %0 = add %x, %y : f32[4]  loc("model.py":3)
    %1 = exp %0 : f32[4]
    yield %0, %1
  } : f32[4], f32[4]
  return %0, %1
}
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("%x", "%first", []),
        ("%1 = exp %0 : f32[4]\n    yield %0, %1", "%e = exp %0 : f32[4]\n    yield %0, %e", []),
        ("%x = %a, %y = %b", "%x = %b, %y = %a",
         ["op 0 'fused': operand 'inputs': [%input0, %input1] / [%input1, %input0]"]),
        ("add %x, %y", "add %x, %y {alpha = 2}",
         ["op 0 'fused': op 0 'add': attribute 'alpha': 1.0 / 2"]),
        ("add %x, %y", "add %y, %x", ["op 0 'fused': op 0 'add': operand 'x': %input0 / %input1",
         "op 0 'fused': op 0 'add': operand 'y': %input1 / %input0"]),
        ("exp", "log", ["op 0 'fused': op 1: 'exp %0' / 'log %0', the rest is not compared"]),
        ("yield %0, %1", "yield %1, %0", ["op 0 'fused': results: [%0, %1] / [%1, %0]"]),
        (":3", ":4", ["op 0 'fused': op 0 'add': location: model.py:3 / model.py:4"]),
    ],
)  # fmt: skip
def test_regions_are_compared_by_structure(old: str, new: str, found: list[str]) -> None:
    assert old in REGION
    assert differences(parse_graph(REGION), parse_graph(REGION.replace(old, new))) == found


def test_a_changed_region_is_a_change_of_its_lines() -> None:
    text = unified(parse_graph(REGION), parse_graph(REGION.replace("exp", "log")))
    changed = [line for line in text.splitlines() if line[:1] in "+-" and line[1:2] == " "]
    assert "-    %1 = exp %0 : f32[4]" in changed
    assert "+    %1 = log %0 : f32[4]" in changed


def test_a_missing_op() -> None:
    end = TEXT.index("  %2, %3")
    shorter = TEXT[:end] + "  return %1\n}\n"
    found = differences(parse_graph(TEXT), parse_graph(shorter))
    assert found == [
        "ops: 3 / 2, only the first has 'aten [%1, [%0, 1.0]], [[\"k\", nan]]'",
    ]


def test_unified_keeps_what_is_the_same() -> None:
    before = parse_graph("""
graph @g(%x: f32[4]) {
  %0 = exp %x : f32[4]
  %1 = neg %0 : f32[4]
  %2 = sin %1 : f32[4]
  return %2
}""")
    after = parse_graph("""
graph @g(%x: f32[4]) {
  %0 = cos %x : f32[4]
  %1 = exp %x : f32[4]
  %2 = neg %1 : f32[4]
  %3 = add %2, %0 : f32[4]
  return %3
}""")
    assert unified(before, after) == (
        "--- before\n+++ after\n@@ -1,6 +1,7 @@\n"
        " graph @g(%x: f32[4]) {\n"
        "+  %3 = cos %x : f32[4]\n"
        "   %0 = exp %x : f32[4]\n"
        "   %1 = neg %0 : f32[4]\n"
        "-  %2 = sin %1 : f32[4]\n"
        "-  return %2\n"
        "+  %4 = add %1, %3 : f32[4]\n"
        "+  return %4\n"
        " }"
    )
    assert unified(before, before) == ""
    assert unified(before, parse_graph(TEXT)).startswith("--- before")
