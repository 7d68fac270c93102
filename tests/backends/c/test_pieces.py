"""Loops are cut where masks change; `test_schedules` sees to it that the pieces are right."""

from __future__ import annotations

import re

from lynx.backends.c import compile_segments
from lynx.ir import DType, Kernel, parse_kernel, symbol
from lynx.ir.kernel import Index, Term
from tests.backends.c.examples import (
    F32,
    I64,
    Sheet,
    framed,
    joined_along,
    joined_columns,
    joined_rows,
    shifted,
    triangle,
)
from tests.backends.c.running import row_major, segment_of


def source(kernel: Kernel) -> str:
    """The functions of a kernel, without what goes with all of them."""
    (function,) = compile_segments((segment_of(kernel),))
    parts = re.split(r"\n(?=static void kernel)", function.source)[1:]
    return "\n".join(part.split("\n}")[0] for part in parts)


def ranges(text: str) -> list[tuple[str, str]]:
    """The ends of the vectorized loops."""
    return re.findall(r"omp simd.*\n\s*for \(i64 \w+ = ([^;]+); \w+ < ([^;]+);", text)


def test_parts_of_a_row_are_loops_of_their_own() -> None:
    sheet, chosen = joined_along("j", 40, 96, F32)
    sheet.write("y", chosen, "i", "j")
    text = source(sheet.build("joined"))
    assert ranges(text) == [("0", "5"), ("5", "10"), ("10", "96")]


def test_columns_of_a_block_are_cut_where_a_part_ends() -> None:
    found = ranges(source(joined_rows(40, 96)))
    assert ("0", "lynx_max(low, lynx_min(high, 5)) - low") in found


def test_what_the_compiler_is_left_with_has_no_choice() -> None:
    """Within each piece all comparisons are numbers."""
    text = source(joined_rows(40, 96))
    assert not re.search(r"const truth \w+ = \w+ (<|>=) ", text)


def test_parts_of_rows_are_told_apart_outside_of_the_loop() -> None:
    text = source(joined_columns(40, 96))
    assert re.search(r"if \(i0 < 5\) \{", text)
    assert re.search(r"else if \(i0 < 10\) \{", text)
    assert re.search(r"else \{", text)


def test_a_triangle_ends_where_each_row_says() -> None:
    text = source(triangle(64, 64))
    assert "const i64 cut = lynx_max(0, lynx_min(64, 3 - (i0 * -1)));" in text
    assert ("0", "cut") in ranges(text)
    assert ("cut", "64") in ranges(text)


def test_symbolic_limits_cut_too() -> None:
    text = source(shifted(symbol("n"), symbol("m")))
    assert re.search(r"lynx_min\(\w+, 1\)", text)
    assert source(framed(20, 30)).count("omp simd") >= 3


def test_indices_that_are_read_cut_nothing() -> None:
    """Where a mask depends on data, each element has its own."""
    b = Sheet(40, 96)
    n = b.read("n", "i", dtype=I64)
    place = b.position(Index((Term("j"), Term(n, -1))))
    inside = b.apply("lt", place, b.constant(3, I64), dtype=DType.BOOL)
    x = b.buffer("x", F32, b.extent(("i", "j")))
    b.write("y", b.load(x, row_major(b, "i", "j"), inside), "i", "j")
    text = source(b.build("ragged"))
    assert ranges(text) == [("0", "96")]


def test_many_limits_cut_nothing() -> None:
    """Each piece is code of its own, which takes time to compile."""
    parts = "\n".join(
        f"""
        %p{n} = constant {n * 8} : i64
        %q{n} = ge %j, %p{n} : bool
        %l{n} = load %x[i*96 + j] if %q{n} else 0.5 : f32
        %s{n + 1} = add %s{n}, %l{n} : f32"""
        for n in range(1, 8)
    )
    names = dict.fromkeys(re.findall(r"%(?!x|y)\w+", f"%j %s1 {parts}"))
    text = f"%j = position [j] : i64\n%s1 = constant 0 : f32{parts}\nstore %y[i*96 + j] %s8"
    for number, name in enumerate(names):
        text = re.sub(rf"{name}\b", f"%{number}", text)
    kernel = parse_kernel(
        f"kernel k(%x: f32[3840], %y: f32[3840] write) over i: 40, j: 96 {{\n{text}\n}}"
    )
    assert ranges(source(kernel)) == [("0", "96")]
