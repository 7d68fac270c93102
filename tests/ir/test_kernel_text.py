"""The text of kernels: what it looks like, that it is a fixed point, where mistakes are."""

from __future__ import annotations

import dataclasses

import pytest

from lynx.ir import (
    DType,
    KernelBuilder,
    Location,
    TextError,
    kernel_cost,
    kernel_key,
    parse_dim,
    parse_kernel,
    parse_kernels,
    print_kernel,
    print_kernels,
    symbol,
)
from lynx.ir.kernel import Buffer, Constant, Index, Kernel, KernelAxis, Load, Position, Term

TEXT = """\
kernel everything(%x: bf16[4*s0], %y: f32[4*s0 + 7] write, %n: i64[s0]) over i: s0, j: 4 {
  %0 = load %x[i*4 + j] : bf16
  %1 = convert %0 : f32
  %2 = load %n[i] : i64
  %3 = constant 2*s0 - 1 : i64
  %4 = constant -0.0 : f32
  %5 = constant nan : f32
  %6 = constant true : bool
  %7 = position [i // 4 % (2*s0) * (8*s0) + %2 // 2 * 3 + j*(-1) + s0] : i64
  %8 = position [i % 8 + j // s0 + (s0 - 3)] : i64
  %9 = position [-7] : i64
  %10 = position [i - 7] : i64
  %11 = lt %7, %3 : bool
  %12 = load %y[j] if %11 else 0.5 : f32
  %13, %14 = reduce argmax over j, i %1 : f32, i64
  %15 = where %11, %12, %13 : f32
  check %11 "index \\"x\\" out of range"  loc("m.py":3 "blk")
  store %y[i*4 + j] %15  loc("m.py":4)
  store add %y[%2 % 4] %15 if %11  loc("blk")
}
"""


def test_text_is_a_fixed_point() -> None:
    kernel = parse_kernel(TEXT)
    assert print_kernel(kernel) == TEXT
    two = print_kernels([kernel, kernel])
    assert [print_kernel(part) for part in parse_kernels(two)] == [TEXT, TEXT]


def test_what_is_read() -> None:
    kernel = parse_kernel(TEXT)
    assert kernel.axes == (KernelAxis("i", symbol("s0")), KernelAxis("j", 4))
    assert [b.is_written for b in kernel.buffers] == [False, True, False]
    domains = [instruction.domain for instruction in kernel.body]
    both, i = ("i", "j"), ("i",)
    assert domains == [
        *(both, both, i, (), (), (), (), both, both, (), i, both, both),
        *(both, both, both, both, both),
    ]
    assert kernel.body[-4].results[0].axes == both
    assert kernel.body[-5].result_axes() == ()
    assert kernel.body[-3].loc == Location("m.py", 3, "blk")
    position = kernel.body[7]
    assert isinstance(position, Position)
    first = Term("i", parse_dim("8*s0"), 4, parse_dim("2*s0"))
    number = kernel.body[2].out
    assert position.index == Index((first, Term(number, 3, 2), Term("j", -1)), symbol("s0"))


def test_builder_and_text_agree() -> None:
    builder = KernelBuilder()
    i, j = builder.axis("i", 256), builder.axis("j", 256)
    x = builder.buffer("x", DType.F32, 65536)
    y = builder.buffer("y", DType.F32, 65536, is_written=True)
    index = Index((Term(i, 256), Term(j)))
    loaded = builder.load(x, index)
    (largest,) = builder.reduce("max", loaded, (j,))
    power = builder.apply(
        "exp", builder.apply("sub", loaded, largest, dtype=DType.F32), dtype=DType.F32
    )
    (total,) = builder.reduce("sum", power, (j,))
    builder.store(y, index, builder.apply("div", power, total, dtype=DType.F32))
    text = print_kernel(builder.build("softmax"))
    assert text == (
        "kernel softmax(%x: f32[65536], %y: f32[65536] write) over i: 256, j: 256 {\n"
        "  %0 = load %x[i*256 + j] : f32\n"
        "  %1 = reduce max over j %0 : f32\n"
        "  %2 = sub %0, %1 : f32\n"
        "  %3 = exp %2 : f32\n"
        "  %4 = reduce sum over j %3 : f32\n"
        "  %5 = div %3, %4 : f32\n"
        "  store %y[i*256 + j] %5\n"
        "}\n"
    )
    assert print_kernel(parse_kernel(text)) == text


def test_equal_instructions_stay_apart() -> None:
    text = "kernel k() {\n  %0 = constant 1 : f32\n  %1 = constant 1 : f32\n}\n"
    assert print_kernel(parse_kernel(text)) == text


def test_odd_names_and_long_lines() -> None:
    buffers = tuple(Buffer(name, DType.F32, 4) for name in ("x", "x", "", "0", "a b"))
    kernel = Kernel("a kernel", (), buffers, ())
    text = print_kernel(kernel)
    assert text.startswith('kernel "a kernel"(%x: f32[4], %x_1: f32[4], %buffer: f32[4], %_0:')
    assert print_kernel(parse_kernel(text)) == text
    many = tuple(Buffer(f"buffer{index}", DType.F32, 4) for index in range(9))
    text = print_kernel(dataclasses.replace(kernel, buffers=many))
    assert text.count("\n") == 12
    assert print_kernel(parse_kernel(text)) == text


def test_axes_and_symbols_may_be_called_like_words() -> None:
    text = (
        "kernel k(%write: f32[99]) over over: u8, inf: 4, if: 2 {\n"
        "  %0 = load %write[over*(min(s0, 4)) + inf*f32 + if // 2] : f32\n"
        "  %1 = reduce sum over over, inf, if %0 : f32\n}\n"
    )
    kernel = parse_kernel(text)
    assert kernel.symbols == ("f32", "s0", "u8")
    printed = print_kernel(kernel)
    assert printed == text.replace("(min(s0, 4))", "(min(4, s0))")
    assert print_kernel(parse_kernel(printed)) == printed


def test_minus_and_sums_of_offsets_are_read() -> None:
    written = (
        "kernel k() over i: 4 {\n  %0 = position [3 - i*2 + s0*2 - 1 - s0 // 2 + 1] : i64\n}\n"
    )
    (position,) = parse_kernel(written).body
    assert isinstance(position, Position)
    offset = parse_dim("3 + 2*s0 - s0 // 2")
    assert position.index == Index((Term("i", -2),), offset)


def test_places_in_the_text() -> None:
    kernel = parse_kernel(TEXT, file="k.lynx", locate=True)
    assert kernel.body[0].loc == Location("k.lynx", 2)
    assert kernel.body[-1].loc == Location(module="blk")


MISTAKES = [
    ("load %x[i*4", "load %z[i*4", "unknown-value", 2, 13),
    ("convert %0", "convert %o", "unknown-value", 3, 16),
    (": bf16\n", ": f16\n", "type-mismatch", 2, 27),
    ("constant true", "constant [1]", "bad-operand", 8, 8),
    ("lt %7", "lesser %7", "unknown-function", 13, 9),
    ("i*4 + j]", "i*4 + ]", "syntax-error", 2, 22),
    ("reduce argmax", "reduce largest", "unknown-function", 15, 21),
    ("over j, i", "over k, i", "unknown-value", 15, 33),
]


@pytest.mark.parametrize(("old", "new", "code", "line", "column"), MISTAKES)
def test_mistakes_have_a_place(old: str, new: str, code: str, line: int, column: int) -> None:
    assert old in TEXT
    with pytest.raises(TextError) as caught:
        parse_kernel(TEXT.replace(old, new, 1))
    assert (caught.value.code, caught.value.line, caught.value.column) == (code, line, column)
    assert str(caught.value).splitlines()[-1] == f"  {' ' * (column - 1)}^"


def test_exactly_one_kernel() -> None:
    with pytest.raises(TextError) as caught:
        parse_kernel(TEXT + TEXT)
    assert caught.value.code == "kernel-count"


def renamed(text: str) -> str:
    """Give everything that may have another name in an equal kernel another one."""
    for old, new in (("everything", "other"), ("i:", "row:"), ("j:", "column:"), ("[i", "[row"),
                     (" j", " column"), ("[j", "[column"), (", i ", ", row "), ("%y", "%out"),
                     ("%n", "%number"), ("%x", "%in"), ("m.py", "n.py")):  # fmt: skip
        text = text.replace(old, new)
    return text


def test_keys_of_kernels_that_differ_in_names() -> None:
    kernel, other = parse_kernel(TEXT), parse_kernel(renamed(TEXT))
    assert print_kernel(kernel) != print_kernel(other)
    assert kernel_key(kernel) == kernel_key(other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i*4 + j]", "i*5 + j]"),
        ("-0.0", "0.0"),
        ("else 0.5", "else 0.25"),
        ("store add", "store"),
        ("over j, i", "over i, j"),
        ("out of range", "too large"),
        ("f32[4*s0 + 7]", "f32[4*s0 + 8]"),
        ("j: 4", "j: 5"),
        ("constant true", "constant 1"),
        ("s0", "s1"),
    ],
)
def test_keys_of_other_kernels(old: str, new: str) -> None:
    assert old in TEXT
    assert kernel_key(parse_kernel(TEXT)) != kernel_key(parse_kernel(TEXT.replace(old, new)))


COSTS = [
    ("%0 = load %x[i*4 + j] : f32", (96, 0, 0)),
    ("%0 = load %x[j] : f32", (16, 0, 0)),
    ("%0 = load %x[i // 2 % 2] : f32", (8, 0, 0)),
    ("%0 = load %x[i*4 + j] : f32\n%1 = load %x[i*4 + j + 1] : f32", (100, 0, 0)),
    ("%0 = load %n[i] : i64\n%1 = load %x[%0*4 + j] : f32", (48 + 96, 0, 0)),
    ("%0 = load %x[i] : f32\n%1 = reduce sum over i %0 : f32\n%2 = exp %1 : f32", (24, 0, 7)),
    ("%0 = constant 1 : f32\nstore %x[i*4 + j] %0", (0, 96, 0)),
    ("%0 = constant 1 : f32\nstore add %x[j] %0", (16, 16, 0)),
    ("%0 = constant 1 : f32\nstore %y[s] %0", (0, "4*s0", 0)),
    ("%0 = load %y[s] : f32\n%1 = exp %0 : f32\n%2 = abs %1 : f32", ("4*s0", 0, "2*s0")),
]


@pytest.mark.parametrize(("body", "cost"), COSTS)
def test_cost(body: str, cost: tuple[int | str, int | str, int | str]) -> None:
    head = "kernel k(%x: f32[25] write, %y: f32[s0] write, %n: i64[6]) over i: 6, j: 4, s: s0"
    found = kernel_cost(parse_kernel(f"{head} {{\n{body}\n}}"))
    assert tuple(map(str, found)) == tuple(map(str, cost))


def test_numbers_keep_their_kind() -> None:
    numbers = (1, 1.0, True, -0.0, float("inf"), 1e-45, 2**70, symbol("s0"))
    body = tuple(Constant((), number, DType.F64) for number in numbers)
    kernel = parse_kernel(print_kernel(Kernel("k", (), (), body)))
    found = [part.value for part in kernel.body if isinstance(part, Constant)]
    assert list(map(repr, found)) == list(map(repr, numbers))


def test_masked_loads_keep_what_is_read_otherwise() -> None:
    (*_, load) = parse_kernel(TEXT).body[:13]
    assert isinstance(load, Load)
    assert load.other == 0.5
    assert load.mask is not None
