"""Matrix products in segments: the library's give exactly what torch gives, ours what f64 does."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from lynx.backends.c import compile_segments, has_products, library
from lynx.backends.c.gemm import is_wanted
from lynx.cache import DiskStore
from lynx.ir import DType, symbol
from lynx.ir.errors import CompileError
from lynx.ir.native import Matrix, Pointer, ProductCall, Segment
from lynx.ir.store import ArtifactStore
from tests.backends.c.running import call

pytestmark = pytest.mark.skipif(not has_products(), reason="torch exports no matrix products")

KINDS = {DType.F32: torch.float32, DType.F64: torch.float64}


def product_of(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, accumulate: bool, dtype: DType
) -> ProductCall:
    batch, m, n = out.shape
    matrices = [Matrix(Pointer(at), tuple(x.stride())) for at, x in enumerate((a, b, out))]
    return ProductCall(dtype, batch, m, n, a.shape[2], *matrices, accumulate=accumulate)


def laid_out(shape: tuple[int, int, int], transposed: bool, dtype: torch.dtype) -> torch.Tensor:
    batch, rows, columns = shape
    if transposed:
        return torch.randn(batch, columns, rows, dtype=dtype).transpose(1, 2)
    return torch.randn(batch, rows, columns, dtype=dtype)


SIZES = ((1, 7, 5, 3), (1, 64, 33, 128), (3, 4, 1, 6), (5, 1, 8, 2), (2, 6, 6, 0), (1, 0, 4, 4),
         (0, 2, 2, 2), (9, 16, 16, 16), (1, 1, 1, 1), (2, 130, 70, 90), (1, 3, 65, 700),
         (1, 300, 2, 513), (1, 500, 400, 300), (1, 8, 1030, 257), (3, 200, 210, 190))  # fmt: skip

CASES = [
    (dtype, sizes, layout, accumulate)
    for dtype in KINDS
    for sizes in SIZES
    for layout in itertools.product((False, True), repeat=3)
    for accumulate in (False, True)
]


@pytest.mark.parametrize("products", ["library", "own"])
def test_products_of_all_layouts(products: str) -> None:
    torch.manual_seed(0)
    before_threads = torch.get_num_threads()
    tensors = []
    segments = []
    for number, (dtype, (batch, m, n, k), (ta, tb, tc), accumulate) in enumerate(CASES):
        kind = KINDS[dtype]
        a, b = laid_out((batch, m, k), ta, kind), laid_out((batch, k, n), tb, kind)
        out = laid_out((batch, m, n), tc, kind)
        tensors.append((a, b, out))
        segments.append(Segment(f"p{number}", (product_of(a, b, out, accumulate, dtype),), 3, ()))
    functions = compile_segments(tuple(segments), products=products)
    try:
        for number, (case, (a, b, out)) in enumerate(zip(CASES, tensors, strict=True)):
            torch.set_num_threads((1, 2, 5)[number % 3])
            before = out.clone()
            call(functions[number], [x.data_ptr() for x in (a, b, out)])
            check_product(case, a, b, before, out, exactly=products == "library")
    finally:
        torch.set_num_threads(before_threads)


def check_product(
    case: tuple[object, ...], a: torch.Tensor, b: torch.Tensor, before: torch.Tensor,
    out: torch.Tensor, exactly: bool,
) -> None:  # fmt: skip
    accumulate = case[3]
    expected = torch.empty_strided(out.shape, out.stride(), dtype=out.dtype)
    for at in range(a.shape[0]):
        torch.mm(a[at], b[at], out=expected[at])
    expected = before + expected if accumulate else expected
    if exactly and not accumulate:  # The library adds before it rounds.
        assert torch.equal(out, expected), case
        return
    if out.dtype is torch.float64 or not out.numel():
        torch.testing.assert_close(out, expected)
        return
    exact = a.double() @ b.double() + (before.double() if accumulate else 0)
    own, theirs = ((x.double() - exact).abs().max() for x in (out, expected))
    unit = torch.finfo(out.dtype).eps * exact.abs().max()
    assert own <= 2 * theirs + 2 * unit, case


def test_our_product_keeps_what_is_no_number_in_its_place() -> None:
    a, b, out = torch.randn(1, 40, 300), torch.randn(1, 300, 40), torch.randn(1, 40, 40)
    a[0, 3, 7], b[0, 9, 20], a[0, 30, 299] = float("nan"), float("inf"), float("-inf")
    product = product_of(a, b, out, False, DType.F32)
    (function,) = compile_segments((Segment("p", (product,), 3, ()),), products="own")
    call(function, [x.data_ptr() for x in (a, b, out)])
    expected = a @ b
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.isinf(), expected.isinf())
    assert not out[0, 0].isnan().any()


def test_our_product_gives_the_same_for_any_number_of_threads() -> None:
    before_threads = torch.get_num_threads()
    sizes = ((1, 700, 300, 1100), (1, 4, 900, 700), (1, 100, 2000, 600), (1, 2000, 100, 600))
    for batch, m, n, k in sizes:
        a, b = torch.randn(batch, m, k), torch.randn(batch, n, k).transpose(1, 2)
        outs = [torch.empty(batch, m, n) for _ in range(3)]
        product = product_of(a, b, outs[0], False, DType.F32)
        (function,) = compile_segments((Segment("p", (product,), 3, ()),), products="own")
        for out, threads in zip(outs, (1, 2, 7), strict=True):
            torch.set_num_threads(threads)
            call(function, [x.data_ptr() for x in (a, b, out)])
        torch.set_num_threads(before_threads)
        assert torch.equal(outs[0], outs[1])
        assert torch.equal(outs[0], outs[2])


def spread(kind: str, m: int, n: int) -> torch.Tensor | None:
    """Return a term that is added to a product of m rows and n columns, as it lies."""
    if kind == "none":
        return None
    shape = {"row": (n,), "column": (m, 1), "matrix": (m, n), "columns": (n, m), "one": (1, 1)}[
        kind
    ]
    term = torch.randn(shape).bfloat16()
    return (term.t() if kind == "columns" else term).expand(m, n)


ADDED = ("none", "row", "column", "matrix", "columns", "one")


def of_bf16(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, added: torch.Tensor | None
) -> ProductCall:
    call_ = product_of(a, b, out, False, DType.BF16)
    if added is None:
        return call_
    return dataclasses.replace(call_, added=Matrix(Pointer(3), (0, *added.stride())))


@pytest.mark.parametrize("products", ["library", "own"])
def test_products_of_bf16_are_rounded_once(products: str) -> None:
    torch.manual_seed(0)
    before_threads = torch.get_num_threads()
    sizes = [size for size in SIZES if size[1:3] != (500, 400)] + [(1, 30, 33, 2200)]
    layouts = itertools.product((False, True), repeat=3)
    cases = [(*case, ADDED[n % 6]) for n, case in enumerate(itertools.product(sizes, layouts))]
    tensors, segments = [], []
    for (batch, m, n, k), (ta, tb, tc), kind in cases:
        a, b = (
            laid_out((batch, rows, columns), t, torch.bfloat16)
            for rows, columns, t in ((m, k, ta), (k, n, tb))
        )
        out = laid_out((batch, m, n), tc, torch.bfloat16)
        added = spread(kind, m, n)
        tensors.append((a, b, out, added))
        slots = 3 + (added is not None)
        segments.append(Segment("p", (of_bf16(a, b, out, added),), slots, ()))
    functions = compile_segments(tuple(segments), products=products)
    try:
        for number, (case, parts) in enumerate(zip(cases, tensors, strict=True)):
            torch.set_num_threads((1, 2, 5)[number % 3])
            a, b, out, added = parts
            call(functions[number], [x.data_ptr() for x in parts if x is not None])
            exact = a.double() @ b.double() + (0 if added is None else added.double())
            # Half of the last place, and what sums in f32 are off by.
            sums = a.double().abs() @ b.double().abs()
            error = (out.double() - exact).abs() - exact.abs() / 256 - sums * 2e-6
            assert not out.numel() or error.max() <= 1e-30, case
    finally:
        torch.set_num_threads(before_threads)


@pytest.mark.parametrize("products", ["library", "own"])
def test_products_of_bf16_keep_what_is_no_number(products: str) -> None:
    a, b = torch.randn(1, 40, 301).bfloat16(), torch.randn(1, 301, 40).bfloat16()
    a[0, 3, 7], b[0, 9, 20], a[0, 30, 300] = float("nan"), float("inf"), float("-inf")
    out = torch.empty(1, 40, 40, dtype=torch.bfloat16)
    segment = Segment("p", (of_bf16(a, b, out, None),), 3, ())
    (function,) = compile_segments((segment,), products=products)
    call(function, [x.data_ptr() for x in (a, b, out)])
    expected = a.float() @ b.float()
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.isinf(), expected.isinf())


# Torch multiplies these without its library, which takes numbers below the normal ones for 0.
SMALL = ((1, 2, 8, 2), (1, 4, 31, 4), (1, 16, 16, 16), (1, 1, 64, 64), (1, 64, 64, 1), (8, 8, 8, 8))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", SMALL)
def test_small_products_of_bf16_know_numbers_below_the_normal_ones(
    size: tuple[int, int, int, int], transposed: bool
) -> None:
    batch, m, k, n = size
    a = laid_out((batch, m, k), False, torch.bfloat16)
    b = laid_out((batch, k, n), transposed, torch.bfloat16)
    out = torch.empty(batch, m, n, dtype=torch.bfloat16)
    segment = Segment("p", (of_bf16(a, b, out, None),), 3, ())
    (function,) = compile_segments((segment,), products="own")
    for left, right in ((1e-39, 2.0**120), (2.0**-70, 2.0**-60), (2.0**-100, 2.0**-29)):
        a.fill_(left)
        b.fill_(right)
        call(function, [x.data_ptr() for x in (a, b, out)])
        expected = a.double() @ b.double()
        assert (out.double() - expected).abs().max() <= expected.abs().max() / 256


def test_our_product_of_bf16_gives_the_same_for_any_number_of_threads() -> None:
    before_threads = torch.get_num_threads()
    for m, n, k in ((300, 200, 700), (8, 900, 701), (100, 2000, 64), (2000, 100, 33)):
        a, b = torch.randn(1, m, k).bfloat16(), torch.randn(1, n, k).bfloat16().transpose(1, 2)
        outs = [torch.empty(1, m, n, dtype=torch.bfloat16) for _ in range(3)]
        segment = Segment("p", (of_bf16(a, b, outs[0], None),), 3, ())
        (function,) = compile_segments((segment,), products="own")
        for out, threads in zip(outs, (1, 2, 7), strict=True):
            torch.set_num_threads(threads)
            call(function, [x.data_ptr() for x in (a, b, out)])
        torch.set_num_threads(before_threads)
        assert torch.equal(outs[0], outs[1])
        assert torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [4, 20])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_our_long_sums_lose_no_more_than_those_of_torch(
    dtype: DType, rows: int, transposed: bool
) -> None:
    """Both halves of the terms cancel, so that all of the result is what was lost."""
    if not is_wanted("own", dtype):
        pytest.skip("the processor has no instruction for our product")
    torch.manual_seed(0)
    kind = torch.float32 if dtype is DType.F32 else torch.bfloat16
    a, b = torch.randn(1, rows, 50_000), torch.randn(1, 50_000, 48)
    a, b = torch.cat((a, -a), 2).to(kind), torch.cat((b, b), 1).to(kind)
    if transposed:
        b = b.mT.contiguous().mT
    out = torch.empty(1, rows, 48, dtype=kind)
    segment = Segment("p", (product_of(a, b, out, False, dtype),), 3, ())
    (function,) = compile_segments((segment,), products="own")
    call(function, [x.data_ptr() for x in (a, b, out)])
    assert out.abs().max() <= 3 * (a @ b).abs().max()


def test_a_program_that_multiplies_otherwise_is_another_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file is loaded once in a process, with the functions that it was given last."""
    store = DiskStore(tmp_path, 1 << 30)
    a, b, out = torch.randn(1, 9, 9), torch.randn(1, 9, 9), torch.empty(1, 9, 9)
    segments = (Segment("p", (product_of(a, b, out, False, DType.F32),), 3, ()),)
    bound: list[tuple[str, tuple[int, ...]]] = []
    put = library.put

    def noted(store: ArtifactStore, key: str, contents: bytes, products: Any = ()) -> Any:
        bound.append((key, products))
        return put(store, key, contents, products)

    monkeypatch.setattr(library, "put", noted)
    for products in ("own", "library"):
        (function,) = compile_segments(segments, store=store, products=products)
        call(function, [x.data_ptr() for x in (a, b, out)])
        torch.testing.assert_close(out, a @ b)
    (first, own), (second, none) = [one for one in bound if len(one[1])]
    assert first != second
    assert own[0] != 0
    assert none == (0, 0)


@pytest.mark.parametrize("products", ["library", "own"])
def test_a_product_whose_sizes_are_symbols(products: str) -> None:
    m, k = symbol("m"), symbol("k")
    a = Matrix(Pointer(0), (m * k, k, 1))
    b = Matrix(Pointer(1), (8 * k, 8, 1))
    out = Matrix(Pointer(2), (8 * m, 8, 1))
    product = ProductCall(DType.F32, 1, m, 8, k, a, b, out)
    segment = Segment("p", (product,), 3, ("k", "m"))
    (function,) = compile_segments((segment,), products=products)
    for rows, inner in ((5, 7), (1, 1), (3, 0), (0, 3), (1, 9), (200, 300)):
        x, y, z = torch.randn(rows, inner), torch.randn(inner, 8), torch.randn(rows, 8)
        call(function, [t.data_ptr() for t in (x, y, z)], [inner, rows])
        if products == "library":
            assert torch.equal(z, x @ y)
        torch.testing.assert_close(z, x @ y, rtol=1e-5, atol=1e-4)


def test_refusals() -> None:
    def compiled(**changes: object) -> None:
        options: dict[str, object] = {"dtype": DType.F32, "strides": (6, 3, 1), "k": 3}
        options.update(changes)
        accumulate = bool(options.pop("accumulate", False))
        added = options.pop("added", None)
        a = Matrix(Pointer(0), options["strides"])  # type: ignore[arg-type]
        plain = Matrix(Pointer(1), (6, 2, 1))
        product = ProductCall(options["dtype"], 1, 2, 2, options["k"], a, plain, plain,  # type: ignore[arg-type]
                              accumulate=accumulate, added=added)  # type: ignore[arg-type]  # fmt: skip
        compile_segments((Segment("p", (product,), 2, ()),))

    for changes, message in (
        ({"dtype": DType.F16}, "no product of type f16"),
        ({"strides": (60, 20, 2)}, "neither rows nor columns are contiguous"),
        ({"k": 1 << 31}, "is too large"),
        ({"dtype": DType.BF16, "accumulate": True}, "rounded twice"),
        ({"added": Matrix(Pointer(1), (0, 0, 1))}, "no term is added to products of f32"),
    ):
        with pytest.raises(CompileError, match=message) as caught:
            compiled(**changes)
        assert caught.value.code == "product-unsupported"
