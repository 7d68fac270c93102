"""Indexing, scattering, sorting and losses are imported to structured ops and give eager's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lynx.importer import RULES, Decline
from lynx.ir.ops.elementwise_arithmetic import Where
from tests.importer.one_operator import assert_imports_exactly, imported, operator, reasons

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(-4, 5, shape).to(dtype)


def index(high: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape).to(dtype)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5), (2, 1, 3)])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_embedding(shape: tuple[int, ...], dtype: torch.dtype, kind: torch.dtype) -> None:
    indices = index(7, *shape, dtype=kind)
    assert assert_imports_exactly("aten.embedding.default", tensor(7, 4, dtype=dtype), indices)
    assert assert_imports_exactly("aten.embedding.default", tensor(7, 4), indices, 2, True, True)


@pytest.mark.parametrize("padding", [-1, 2, 0])
@pytest.mark.parametrize("by_frequency", [False, True])
@pytest.mark.parametrize("shape", [(), (0,), (9,), (2, 5)])
def test_embedding_backward(shape: tuple[int, ...], padding: int, by_frequency: bool) -> None:
    indices = index(7, *shape)
    for dtype in (torch.float32, torch.float64):
        assert assert_imports_exactly(
            "aten.embedding_dense_backward.default",
            tensor(*shape, 4, dtype=dtype), indices, 7, padding, by_frequency,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "places", "dim"),
    [
        ((5, 6), (5, 3), 1),
        ((5, 6), (2, 6), -2),
        ((5, 6), (2, 3), 1),
        ((5, 6), (5, 0), 1),
        ((5, 6, 2), (5, 9, 2), -2),
        ((), (), 0),
        ((4,), (7,), 0),
    ],
)
def test_gather_and_scatter(
    shape: tuple[int, ...], places: tuple[int, ...], dim: int, dtype: torch.dtype
) -> None:
    high = shape[dim] if shape else 1
    x, src = tensor(*shape, dtype=dtype), tensor(*places, dtype=dtype)
    indices = index(high, *places)
    assert assert_imports_exactly("aten.gather.default", x, dim, indices)
    assert assert_imports_exactly("aten.scatter.src", x, dim, indices, src)
    assert assert_imports_exactly("aten.scatter.value", x, dim, indices, 1)
    assert assert_imports_exactly("aten.scatter_add.default", x, dim, indices, src)
    for reduction in ("sum", "prod", "mean", "amax", "amin"):
        for own in (True, False):
            assert_imports_exactly(
                "aten.scatter_reduce.two", x, dim, indices, src, reduction, include_self=own
            )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_slices_by_index(dim: int, count: int, dtype: torch.dtype) -> None:
    x = tensor(5, 4, 6, dtype=dtype)
    places = index(x.shape[dim], count)
    shape = list(x.shape)
    shape[dim] = count
    source = tensor(*shape, dtype=dtype)
    assert assert_imports_exactly("aten.index_select.default", x, dim, places)
    assert assert_imports_exactly("aten.index_add.default", x, dim, places, source)
    assert_imports_exactly("aten.index_add.default", x, dim, places, source, alpha=2)
    assert assert_imports_exactly("aten.index_copy.default", x, dim, places, source)
    assert assert_imports_exactly("aten.index_fill.int_Scalar", x, dim, places, 1)
    value = tensor(dtype=dtype)
    assert assert_imports_exactly("aten.index_fill.int_Tensor", x, dim, places, value)


def test_slices_of_a_single_index() -> None:
    for x in (tensor(5, 4), tensor(3), tensor()):
        place = index(x.shape[0] if x.dim() else 1)
        assert assert_imports_exactly("aten.index_select.default", x, 0, place)
        assert assert_imports_exactly("aten.index_fill.int_Scalar", x, 0, place, 1.5)


X_SHAPE = (4, 5, 6)
INDICES: list[tuple[Any, ...]] = [
    ((3,),),
    ((2, 3),),
    (None, (3,)),
    (None, None, (2, 1)),
    (None, (3,), (2, 1)),
    ((3,), None, (2, 1)),
    ((), (2,), (2,)),
    ((3,), (1,), None),
    ((0,), None, (1,)),
    ((2,), (3, 1), (1, 1, 1)),
]


def indices_of(shapes: tuple[Any, ...]) -> list[torch.Tensor | None]:
    return [
        None if shape is None else index(size, *shape, low=-size)
        for size, shape in zip(X_SHAPE, shapes, strict=False)
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", INDICES, ids=str)
def test_index(shapes: tuple[Any, ...], dtype: torch.dtype) -> None:
    x, indices = tensor(*X_SHAPE, dtype=dtype), indices_of(shapes)
    assert assert_imports_exactly("aten.index.Tensor", x, indices)
    assert assert_imports_exactly("aten._unsafe_index.Tensor", x, indices)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("shapes", INDICES, ids=str)
def test_index_put(shapes: tuple[Any, ...], dtype: torch.dtype, accumulate: bool) -> None:
    x, indices = tensor(*X_SHAPE, dtype=dtype), indices_of(shapes)
    full = operator("aten.index.Tensor")(x, indices).shape
    for values in (
        tensor(*full, dtype=dtype),
        tensor(dtype=dtype),
        tensor(1, *full[1:], dtype=dtype),
    ):
        for name in ("index_put", "_unsafe_index_put"):
            arguments = (x, indices, values, accumulate)
            assert assert_imports_exactly(f"aten.{name}.default", *arguments)


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 5), (4,)])
def test_writing_one_value_under_a_mask_is_a_choice(shape: tuple[int, ...]) -> None:
    x, mask = tensor(*X_SHAPE), torch.rand(shape) > 0.5
    for value in (tensor(), tensor(1)):
        graph, _ = imported(operator("aten.index_put.default"), (x, [mask], value), {})
        assert any(isinstance(op, Where) for op in graph.ops)
        assert assert_imports_exactly("aten.index_put.default", x, [mask], value)


def test_writing_one_value_under_a_mask_of_later_dimensions() -> None:
    x, mask = tensor(*X_SHAPE), torch.rand(5) > 0.5
    assert assert_imports_exactly("aten.index_put.default", x, [None, mask], tensor())


@pytest.mark.parametrize(
    ("values", "accumulate"), [(torch.ones(()), True), (torch.ones(3, 5, 6), False)]
)
def test_other_masks_decline(values: torch.Tensor, accumulate: bool) -> None:
    mask = torch.tensor([True, True, False, True])
    arguments = (tensor(*X_SHAPE), [mask], values, accumulate)
    graph, _ = imported(operator("aten.index_put.default"), arguments, {})
    assert "boolean index" in reasons(graph)[0]


def test_take_and_put() -> None:
    x, places = tensor(4, 5), index(20, 2, 3, low=-20)
    assert assert_imports_exactly("aten.take.default", x, places)
    for accumulate in (False, True):
        assert assert_imports_exactly("aten.put.default", x, places, tensor(2, 3), accumulate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"), [((4, 5), 1), ((4, 5), -2), ((), 0), ((0, 3), 0), ((4, 0), 0), ((1, 7), 1)]
)
def test_sorting(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = tensor(*shape, dtype=dtype)
    if dtype.is_floating_point and x.numel():
        x.view(-1)[0] = torch.nan
    for descending in (False, True):
        assert assert_imports_exactly("aten.sort.default", x, dim, descending)
        assert assert_imports_exactly(
            "aten.sort.stable", x, stable=True, dim=dim, descending=descending
        )
    count = min(2, x.shape[dim] if shape else 1)
    for largest in (False, True):
        assert assert_imports_exactly("aten.topk.default", x, count, dim, largest, True)
    for keepdim in (False, True):
        assert_imports_exactly("aten.kthvalue.default", x, 1, dim, keepdim)
        assert_imports_exactly("aten.median.dim", x, dim, keepdim)
        assert_imports_exactly("aten.nanmedian.dim", x, dim, keepdim)
        assert_imports_exactly("aten.mode.default", x, dim, keepdim)


@pytest.mark.parametrize("options", [{}, {"right": True}, {"out_int32": True}], ids=str)
def test_places_in_sorted_rows(options: dict[str, bool]) -> None:
    row = torch.tensor([-1.0, 0.0, 0.0, 1.5])
    for values in (tensor(7), tensor(2, 3), tensor(), tensor(0), row):
        assert assert_imports_exactly("aten.bucketize.Tensor", values, row, **options)
        assert_imports_exactly("aten.searchsorted.Tensor", row, values, **options)
    rows = tensor(3, 6).sort(1).values
    assert assert_imports_exactly("aten.searchsorted.Tensor", rows, tensor(3, 2), **options)
    assert assert_imports_exactly("aten.searchsorted.Tensor", rows, tensor(3, 2), side="right")


def test_histogram() -> None:
    x = tensor(5, 8)
    assert assert_imports_exactly("aten.histc.default", x)
    assert assert_imports_exactly("aten.histc.default", x, 7, -1, 2)
    assert assert_imports_exactly("aten.histc.default", x.double(), 3, 0.5, 2.5)


@pytest.mark.parametrize("name", ["nonzero", "masked_select", "bincount"])
def test_sizes_that_depend_on_values_decline(name: str) -> None:
    assert RULES[f"aten.{name}.default"](None) == Decline(
        "the size of the result depends on values"
    )
