"""Stores that run in order: what is shared out among threads; `test_schedules` compares results."""

from __future__ import annotations

import re

from lynx.backends.c import compile_segments
from lynx.ir import Kernel, parse_kernel, symbol
from tests.backends.c.examples import embedding_gradient, histogram, rows_replaced
from tests.backends.c.running import segment_of

ROWS = """kernel rows(%i: i64[{count}], %v: f32[{values}],
    %x: f32[{places}] write) over b: {batch}, i: {count}, j: {width} {{
  %0 = load %i[i] : i64
  %1 = constant 0 : i64
  %2 = constant {limit} : i64
  %3 = ge %0, %1 : bool
  %4 = lt %0, %2 : bool
  %5 = and %3, %4 : bool
  check %5 "index out of range"
  %6 = where %5, %0, %1 : i64
  %7 = load %v[b*{far} + i*{width} + j] : f32
  store add %x[b*{row} + %6*{width} + j] %7 if %5
}}"""


def source(kernel: Kernel) -> str:
    """The functions of a kernel, without what goes with all of them."""
    (function,) = compile_segments((segment_of(kernel),))
    parts = re.split(r"\n(?=static void kernel)", function.source)[1:]
    return "\n".join(part.split("\n}")[0] for part in parts)


def rows(width: int = 32, batch: int = 1, limit: int = 40) -> str:
    far, row = 100 * width, 40 * width
    sizes = {"values": far * batch, "places": row * batch, "far": far, "row": row}
    text = ROWS.format(count=100, width=width, batch=batch, limit=limit, **sizes)
    return source(parse_kernel(text))


def test_each_unit_writes_its_share_of_the_places() -> None:
    text = rows()
    assert "* (40) / z" in text
    assert re.search(r"if \((\w+) < from \|\| \1 >= to\) continue;", text)


def test_what_is_checked_is_checked_in_the_same_loops() -> None:
    text = rows()
    assert text.count("static void") == 1
    assert re.search(r"if \(!\w+\) lynx_fail\(step, z\d\);", text)
    assert text.index("lynx_fail") < text.index("continue")


def test_masks_are_not_looked_at_in_the_innermost_loop() -> None:
    text = rows()
    assert re.search(r"if \(!\w+\) continue;", text)
    innermost = text[text.index("#pragma omp simd") :]
    assert "if (" not in innermost
    assert "?" not in innermost


def test_many_rows_are_work_enough() -> None:
    text = rows(batch=32)
    assert "from" not in text
    assert text.count("static void") == 1


def test_places_of_which_nothing_is_known_are_not_shared() -> None:
    """They might lie anywhere, so columns are what units have for themselves."""
    text = source(embedding_gradient(50, 200))
    assert "from" not in text
    assert "* 64" in text


def test_places_that_may_leave_their_rows_are_not_shared() -> None:
    """Rows of 40 places, of which an index may name the 41st: that is one of the next row."""
    assert "from" in rows(batch=2)
    assert "from" not in rows(batch=2, limit=41)


def test_single_numbers_are_written_by_one_thread() -> None:
    assert "from" not in source(histogram(40, 50))
    assert "from" not in rows(width=4)


def test_symbolic_sizes_are_shared_too() -> None:
    text = source(rows_replaced(symbol("n"), symbol("m")))
    assert text.count("from") >= 3
