"""The text of programs, and what their verifier refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from lynx.ir import CompileError, Graph, TextError
from lynx.ir.program_text import parse_program, print_program
from lynx.ir.program_verifier import verify_program
from tests.runtime.programs import compiled
from tests.strategies import graphs

HEAD = "program @p(%x: f32[4, 4] {strides = [4, 1]}, %m: f32[4, 4] {strides = [4, 1]}) {"

GOOD = f"""{HEAD}
  %0 = exp %x : f32[4, 4]  -> arena[0 : 64]
  %1 = permute %0 {{dims = [1, 0]}} : f32[4, 4]  -> view(%0) {{strides = [1, 4]}}
  %2 = matmul %1, %1 : f32[4, 4]  -> arena[64 : 128]  free (%0, %1)
  %3 = tanh %2 : f32[4, 4]  -> in_place(%2)  free (%2)
  %4 = add %m, %3 : f32[4, 4]  -> target(%m)
  %5 = mul %3, 2.0 : f32[4, 4]  -> fresh  free (%3)
  %6 = aten @aten.relu.default(%5) : f32[4, 4]  -> view(%5)
  %7 = exp %x : f32[4, 4]  -> saved[0 : 64]
  return %5, %6, %x {{strides = [1, 4]}}, %7 {{saved}} mutates (%m: %4)
  output 1: restride, unshare(%5)
  output 2: copy
  mutation 0: in_place
  arena cpu: 128
  saved cpu: 64
}}
"""


def test_round_trip() -> None:
    program = parse_program(GOOD)
    assert print_program(program) == GOOD
    verify_program(program)


@given(graph=graphs())
@settings(max_examples=30, deadline=None)
def test_round_trip_of_random_programs(graph: Graph) -> None:
    text = print_program(compiled(graph))
    assert print_program(parse_program(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        # What is needed at the same time must not overlap.
        ("arena[64 : 128]", "arena[0 : 64]", "overlap", "writes over its operand"),
        ("-> in_place(%2)", "-> arena[64 : 128]", "overlap", "writes over its operand"),
        ("free (%2)\n", "free (%2)\n  %9 = exp %1 : f32[4, 4]  -> dynamic\n", "used-after-free",
         "read after it was freed"),
        (
            "%2 = matmul %1, %1 : f32[4, 4]  -> arena[64 : 128]  free (%0, %1)",
            "%8 = exp %x : f32[4, 4]  -> arena[0 : 64]\n"
            "  %2 = matmul %1, %1 : f32[4, 4]  -> arena[64 : 128]  free (%0, %1)",
            "overwritten",
            "its memory was reused",
        ),
        ("-> arena[0 : 64]", "-> arena[32 : 96]", "misaligned", "offset 32"),
        ("arena cpu: 128", "arena cpu: 64", "outside-arena", "byte 128 of 64"),
        ("arena[64 : 128]", "arena[64 : 96]", "bad-layout", "needs 64 bytes, 32"),
        ("free (%0, %1)", "free (%0, %0)", "used-after-free", "freed twice"),
        # Who may write where.
        ("-> in_place(%2)", "-> in_place(%x)", "bad-placement", "cannot write"),
        ("-> target(%m)", "-> target(%x)", "bad-placement", "not the new value"),
        ("-> view(%0) {strides = [1, 4]}", "-> arena[64 : 128]", "bad-placement", "cannot write"),
        ("-> view(%5)", "-> fresh", "bad-placement", "'aten' cannot write"),
        ("-> view(%0) {strides = [1, 4]}", "-> view(%x)", "bad-placement", "lies in operands"),
        (
            "%1 = permute %0 {dims = [1, 0]} : f32[4, 4]  -> view(%0) {strides = [1, 4]}",
            "%1 = tanh %0 : f32[4, 4]  -> in_place(%0) {strides = [1, 4]}",
            "bad-placement",
            "another type or layout",
        ),
        # The border.
        ("mul %3, 2.0 : f32[4, 4]  -> fresh", "mul %3, 2.0 : f32[4, 4]  -> in_place(%3)",
         "output-in-arena", "output 0"),
        ("  output 1: restride, unshare(%5)\n", "", "output-shared", "an earlier output"),
        ("  output 2: copy\n", "", "output-strides", "output 2"),
        ("  output 2: copy\n", "  output 2: restride\n", "output-shared", "lies in input 'x'"),
        ("mutation 0: in_place", "mutation 0: copy", "bad-mutation", "by 'copy'"),
        ("-> target(%m)", "-> fresh", "bad-mutation", "by 'in_place'"),
        (
            "  %5 = mul %3, 2.0",
            "  %9 = sum %m {dims = [0, 1]} : f32[]  -> dynamic\n  %5 = mul %3, 2.0",
            "overwritten",
            "m",
        ),
    ],
)  # fmt: skip
def test_refused(old: str, new: str, code: str, message: str) -> None:
    assert GOOD.count(old) >= 1
    program = parse_program(GOOD.replace(old, new, 1))
    with pytest.raises(CompileError) as caught:
        verify_program(program)
    assert caught.value.code == code
    assert message in caught.value.message


CHAIN = """program @p(%x: f32[4] {strides = [1]}, %y: f32[4] {strides = [1]}) {
  %0 = exp %x : f32[4]  -> in_place(%x)
  %1 = tanh %0 : f32[4]  -> in_place(%0)
  return mutates (%x: %1)
  mutation 0: in_place
}
"""


def test_an_input_may_take_on_several_values() -> None:
    verify_program(parse_program(CHAIN))
    for old, new, code, message in (
        ("mutates (%x: %1)", "mutates (%y: %1)", "bad-placement", "input 'x', which is to stay"),
        (
            "  return",
            "  %2 = sin %1 : f32[4]  -> in_place(%1)\n  return",
            "bad-mutation",
            "the new value of 'x' was written over",
        ),
        ("mutation 0: in_place", "mutation 0: copy", "bad-mutation", "by 'copy'"),
    ):
        with pytest.raises(CompileError) as caught:
            verify_program(parse_program(CHAIN.replace(old, new, 1)))
        assert caught.value.code == code
        assert message in caught.value.message


def test_a_copy_must_not_come_after_its_source_has_changed() -> None:
    text = """program @swap(%a: f32[4], %b: f32[4]) {
  return mutates (%a: %b, %b: %a)
}
"""
    with pytest.raises(CompileError, match="bad-mutation"):
        verify_program(parse_program(text))
    snapshots = "  mutation 0: snapshot\n  mutation 1: snapshot\n}"
    verify_program(parse_program(text.replace("}\n", snapshots, 1)))


WRITING = """program @p(
    %x: f32[4, 8] {strides = [8, 1]}, %m: f32[4, 8] {strides = [8, 1]}, %i: i64[1] {strides = [1]},
    %v: f32[1, 8] {strides = [8, 1]}
) {
  %0 = exp %x : f32[4, 8]  -> arena[0 : 128]
  %1 = fused(%x0 = %0, %x1 = %i, %x2 = %v) {
    %0 = index_copy %x0, %x1, %x2 {dim = 0} : f32[4, 8]
    yield %0
  } : f32[4, 8]  -> in_place(%0)
  %2 = fused(%x0 = %m) {
    %0 = slice %x0 {dim = 0, start = 1, stop = 2} : f32[1, 8]
    %1 = exp %0 : f32[1, 8]
    %2 = slice_scatter %x0, %1 {dim = 0, start = 1, stop = 2, in_place = true} : f32[4, 8]
    yield %2
  } : f32[4, 8]  -> target(%m)
  %3 = sum %1 {dims = [0]} : f32[8]  -> fresh
  return %3 mutates (%m: %2)
  mutation 0: in_place
  arena cpu: 128
}
"""


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        # Two points might write what another one reads.
        ("index_copy %x0, %x1, %x2", "index_add %x0, %x1, %x2", "", ""),
        (
            "index_copy %x0, %x1, %x2 {dim = 0} : f32[4, 8]\n    yield %0",
            "index_select %x0, %x1 {dim = 0} : f32[1, 8]\n"
            "    %1 = add %0, %x2 : f32[1, 8]\n"
            "    %2 = index_copy %x0, %x1, %1 {dim = 0} : f32[4, 8]\n    yield %2",
            "bad-placement",
            "cannot write",
        ),
        (
            "start = 1, stop = 2} : f32[1",
            "start = 2, stop = 3} : f32[1",
            "bad-placement",
            "over <%m",
        ),
        # Over what it reads as an index, as a source, or not at all.
        ("-> in_place(%0)", "-> in_place(%i)", "bad-placement", "over <%i"),
        ("-> in_place(%0)", "-> in_place(%v)", "bad-placement", "over <%v"),
        ("-> in_place(%0)", "-> in_place(%x)", "bad-placement", "over <%x"),
        ("-> in_place(%0)", "-> arena[0 : 128]", "overlap", "its operand"),
        # The old tensor, or the new value of an input, is read after the write.
        ("sum %1", "sum %0", "overwritten", "memory was reused"),
        ("sum %1", "sum %m", "overwritten", "memory was reused"),
        ("mutation 0: in_place", "mutation 0: copy", "bad-mutation", "by 'copy'"),
    ],
)
def test_writes_of_parts(old: str, new: str, code: str, message: str) -> None:
    verify_program(parse_program(WRITING))
    assert WRITING.count(old) == 1
    program = parse_program(WRITING.replace(old, new))
    if not code:
        verify_program(program)
        return
    with pytest.raises(CompileError) as caught:
        verify_program(program)
    assert (caught.value.code, message in caught.value.message) == (code, True), caught.value


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-> fresh", "-> frsh", "unknown placement 'frsh', did you mean 'fresh'"),
        ("-> arena[0 : 64]", "-> arena", "expected arena[bytes]"),
        ("-> fresh", "-> fresh[4]", "takes no range"),
        ("-> fresh", "-> fresh(%x)", "takes no value"),
        ("-> fresh", "-> fresh, fresh", "has 1 results, got 2 placements"),
        ("-> in_place(%2)", "-> in_place(%1, %2)", "takes one value"),
        ("output 2", "output 9", "there is no output 9"),
        ("output 2: copy", "output 2: cpy", "unknown handling 'cpy'"),
        ("free (%2)", "free (%22)", "unknown value"),
        ("{strides = [1, 4]}\n  %2", "{strids = [1, 4]}\n  %2", "unknown attribute"),
    ],
)
def test_mistakes_in_the_text(old: str, new: str, message: str) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(TextError) as caught:
        parse_program(GOOD.replace(old, new, 1))
    assert message in caught.value.message
    assert caught.value.loc.line > 1
