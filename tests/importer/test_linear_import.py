"""Contractions are imported to structured ops and give eager's bits."""

from __future__ import annotations

import pytest
import torch

from lynx.ir.ops.linear import AddMatmul
from tests.importer.one_operator import assert_imports_exactly, imported, operator, reasons

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(-9, 9, shape).to(dtype)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(4, 5), (5, 3)]),
        ("mm", [(1, 70), (70, 1)]),
        ("mm", [(0, 5), (5, 3)]),
        ("mm", [(4, 0), (0, 3)]),
        ("bmm", [(2, 4, 5), (2, 5, 3)]),
        ("bmm", [(0, 4, 5), (0, 5, 3)]),
        ("bmm", [(2, 4, 0), (2, 0, 3)]),
        ("mv", [(4, 5), (5,)]),
        ("mv", [(4, 0), (0,)]),
        ("dot", [(5,), (5,)]),
        ("dot", [(0,), (0,)]),
        ("vdot", [(5,), (5,)]),
    ],
)
def test_products(name: str, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    operands = [tensor(*shape, dtype=dtype) for shape in shapes]
    assert assert_imports_exactly(f"aten.{name}.default", *operands)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "coefficients", [{}, {"beta": 2}, {"alpha": 3, "beta": 0}, {"alpha": 0}], ids=str
)
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("addmm", [(3,), (4, 5), (5, 3)]),
        ("addmm", [(4, 1), (4, 5), (5, 3)]),
        ("addmm", [(), (4, 5), (5, 3)]),
        ("addmm", [(1, 3), (0, 5), (5, 3)]),
        ("addmm", [(3,), (4, 0), (0, 3)]),
        ("baddbmm", [(3,), (2, 4, 5), (2, 5, 3)]),
        ("baddbmm", [(2, 4, 1), (2, 4, 5), (2, 5, 3)]),
        ("addmv", [(4,), (4, 5), (5,)]),
        ("addmv", [(), (4, 5), (5,)]),
        ("addr", [(4, 3), (4,), (3,)]),
        ("addr", [(1, 3), (4,), (3,)]),
    ],
)
def test_products_with_a_term(
    name: str,
    shapes: list[tuple[int, ...]],
    coefficients: dict[str, int],
    dtype: torch.dtype,
) -> None:
    operands = [tensor(*shape, dtype=dtype) for shape in shapes]
    assert_imports_exactly(f"aten.{name}.default", *operands, **coefficients)


@pytest.mark.parametrize("coefficients", [{"alpha": 0.5, "beta": -0.3}, {"beta": 1e-300}], ids=str)
def test_coefficients_that_are_no_integers(coefficients: dict[str, float]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        operands = [tensor(*shape, dtype=dtype) for shape in ((3,), (4, 5), (5, 3))]
        assert assert_imports_exactly("aten.addmm.default", *operands, **coefficients)


def test_a_factor_of_zero_ignores_a_bias_of_nan() -> None:
    bias = torch.full((3,), torch.nan)
    assert assert_imports_exactly("aten.addmm.default", bias, tensor(4, 5), tensor(5, 3), beta=0)


def test_operands_with_any_strides() -> None:
    a, b = tensor(5, 4).t(), tensor(10, 3)[::2]
    assert assert_imports_exactly("aten.mm.default", a, b)
    assert assert_imports_exactly("aten.addmm.default", tensor(6)[::2], a, b)


def test_integer_coefficients_beyond_a_float_decline() -> None:
    operands = tuple(tensor(*shape, dtype=torch.int64) for shape in ((3,), (4, 5), (5, 3)))
    graph, _ = imported(operator("aten.addmm.default"), operands, {"alpha": 2**60 + 1})
    assert "no floats" in reasons(graph)[0]


def test_coefficients_of_integer_products_stay_integers() -> None:
    operands = tuple(tensor(*shape, dtype=torch.int64) for shape in ((3,), (4, 5), (5, 3)))
    graph, _ = imported(operator("aten.addmm.default"), operands, {"alpha": 7})
    (op,) = graph.ops
    assert isinstance(op, AddMatmul)
    assert op.alpha == 7.0
