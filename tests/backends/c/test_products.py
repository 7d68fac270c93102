"""Matrix products in segments give exactly what torch's give."""

from __future__ import annotations

import itertools

import pytest
import torch

from lynx.backends.c import compile_segments, has_products
from lynx.ir import DType, symbol
from lynx.ir.errors import CompileError
from lynx.ir.native import Matrix, Pointer, ProductCall, Segment
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


CASES = [
    (dtype, sizes, layout, accumulate)
    for dtype in KINDS
    for sizes in ((1, 7, 5, 3), (1, 64, 33, 128), (3, 4, 1, 6), (5, 1, 8, 2), (2, 6, 6, 0),
                  (1, 0, 4, 4), (0, 2, 2, 2), (9, 16, 16, 16), (1, 1, 1, 1), (2, 130, 70, 90))
    for layout in itertools.product((False, True), repeat=3)
    for accumulate in (False, True)
]  # fmt: skip


def test_products_of_all_layouts() -> None:
    torch.manual_seed(0)
    tensors = []
    segments = []
    for number, (dtype, (batch, m, n, k), (ta, tb, tc), accumulate) in enumerate(CASES):
        kind = KINDS[dtype]
        a, b = laid_out((batch, m, k), ta, kind), laid_out((batch, k, n), tb, kind)
        out = laid_out((batch, m, n), tc, kind)
        tensors.append((a, b, out))
        segments.append(Segment(f"p{number}", (product_of(a, b, out, accumulate, dtype),), 3, ()))
    functions = compile_segments(tuple(segments))
    for case, (a, b, out), function in zip(CASES, tensors, functions, strict=True):
        before = out.clone()
        expected = laid_out(tuple(out.shape), case[2][2], out.dtype)
        for at in range(a.shape[0]):
            torch.mm(a[at], b[at], out=expected[at])
        expected = before + expected if case[3] else expected
        call(function, [x.data_ptr() for x in (a, b, out)])
        if case[3]:
            # The library adds before it rounds.
            torch.testing.assert_close(out, expected)
        else:
            assert torch.equal(out, expected), case


def test_a_product_whose_sizes_are_symbols() -> None:
    m, k = symbol("m"), symbol("k")
    a = Matrix(Pointer(0), (m * k, k, 1))
    b = Matrix(Pointer(1), (8 * k, 8, 1))
    out = Matrix(Pointer(2), (8 * m, 8, 1))
    product = ProductCall(DType.F32, 1, m, 8, k, a, b, out)
    (function,) = compile_segments((Segment("p", (product,), 3, ("k", "m")),))
    for rows, inner in ((5, 7), (1, 1), (3, 0), (0, 3), (1, 9)):
        x, y, z = torch.randn(rows, inner), torch.randn(inner, 8), torch.randn(rows, 8)
        call(function, [t.data_ptr() for t in (x, y, z)], [inner, rows])
        assert torch.equal(z, x @ y)


def test_refusals() -> None:
    def compiled(**changes: object) -> None:
        options: dict[str, object] = {"dtype": DType.F32, "strides": (6, 3, 1), "k": 3}
        options.update(changes)
        a = Matrix(Pointer(0), options["strides"])  # type: ignore[arg-type]
        plain = Matrix(Pointer(1), (6, 2, 1))
        product = ProductCall(options["dtype"], 1, 2, 2, options["k"], a, plain, plain)  # type: ignore[arg-type]
        compile_segments((Segment("p", (product,), 2, ()),))

    for changes, message in (
        ({"dtype": DType.BF16}, "no library product of type bf16"),
        ({"strides": (60, 20, 2)}, "neither rows nor columns are contiguous"),
        ({"k": 1 << 31}, "is too large"),
    ):
        with pytest.raises(CompileError, match=message) as caught:
            compiled(**changes)
        assert caught.value.code == "product-unsupported"
