"""Strides known at compile time are those that torch gives."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.backends.reference import call_of
from lynx.ir import DType, Op, TensorType, Value, ops
from lynx.ir.dims import contiguous_strides, symbol
from lynx.passes.layouts import has_rule, is_dense, reshape_strides, view_strides
from lynx.runtime.tensors import copied, restrided

SHAPES = ((), (1,), (3,), (2, 3), (2, 1, 3), (1, 1), (4, 2, 3), (2, 0, 3), (3, 3))


def layouts(shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Return tensors of a shape: contiguous, in other orders, repeated, with gaps."""
    found = []
    for order in itertools.islice(itertools.permutations(range(len(shape))), 6):
        base = torch.empty([shape[dim] for dim in order])
        found.append(base.permute([order.index(dim) for dim in range(len(shape))]))
    found.append(torch.empty([2 * size for size in shape])[tuple(slice(0, s) for s in shape)])
    found.append(torch.empty(()).expand(shape))
    found.append(torch.empty((*shape, 3))[..., 1])
    return found


def views(x: Value, seed: random.Random) -> list[Op]:
    shape = tuple(int(size) for size in x.shape)
    rank = len(shape)
    made: list[Op] = [
        ops.Permute(x, tuple(seed.sample(range(rank), rank))),
        ops.Broadcast(x, (*seed.choice(((), (1,), (2, 1), (3,))), *shape)),
        ops.Broadcast(x, tuple(2 if size == 1 else size for size in shape)),
        *(ops.Unsqueeze(x, dim) for dim in range(rank + 1)),
        ops.Squeeze(x, tuple(dim for dim in range(rank) if shape[dim] == 1)),
        ops.Bitcast(x, DType.I32),
    ]
    for dim, size in enumerate(shape):
        if size:
            made.append(ops.Select(x, dim, size - 1))
            made.append(ops.Unfold(x, dim, 1, 2))
        made.append(ops.Slice(x, dim, 0, size, 2))
        made.append(ops.Slice(x, dim, size // 2, size))
    if rank > 1:
        made.append(ops.Diagonal(x, 0, *seed.sample(range(rank), 2)))
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strides_of_views(shape: tuple[int, ...]) -> None:
    seed = random.Random(0)
    for tensor in layouts(shape):
        for op in views(Value(TensorType(DType.F32, shape)), seed):
            call = call_of(op)
            arguments = [tensor if isinstance(a, Value) else a for a in call.arguments]
            result = call.function(*arguments)
            assert has_rule(op)
            assert view_strides(op, tensor.stride()) == result.stride(), (op, tensor.stride())


def refinements(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    numel = torch.Size(shape).numel()
    candidates = [(numel,), (1, *shape), (*shape, 1), tuple(s for s in shape if s != 1)]
    candidates += [(2, numel // 2), (numel // 2, 2), (3, numel // 3), (2, 1, numel // 2)]
    candidates += [
        (*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :]) for i in range(len(shape) - 1)
    ]
    return [new for new in candidates if torch.Size(new).numel() == numel]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strides_of_reshapes(shape: tuple[int, ...]) -> None:
    for tensor in layouts(shape):
        for new in refinements(shape):
            op = ops.Reshape(Value(TensorType(DType.F32, shape)), new)
            strides = reshape_strides(op, tensor.stride())
            result = tensor.reshape(new)
            shares = result.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            if strides is None:
                assert not shares or tensor.numel() == 0
            else:
                assert strides == result.stride(), (tensor.stride(), new)


def test_symbolic_reshapes() -> None:
    n = symbol("n")
    x = Value(TensorType(DType.F32, (n, 4, 6)))
    strides = contiguous_strides((n, 4, 6))
    assert reshape_strides(ops.Reshape(x, (n * 4, 6)), strides) == (6, 1)
    assert reshape_strides(ops.Reshape(x, (n, 24)), strides) == (24, 1)
    assert reshape_strides(ops.Reshape(x, (n, 2, 12)), strides) == (24, 12, 1)
    assert reshape_strides(ops.Reshape(x, (n * 24,)), (24, 1, 4)) is None


def test_dense() -> None:
    assert is_dense((2, 3), (3, 1))
    assert is_dense((2, 3), (1, 2))
    assert is_dense((2, 1, 3), (3, 77, 1))
    assert is_dense((0, 3), (9, 9))
    assert not is_dense((2, 3), (4, 1))
    assert not is_dense((2, 3), (0, 1))


@given(
    st.sampled_from(SHAPES),
    st.integers(0, 8),
    st.integers(0, 8),
)
@settings(max_examples=200, deadline=None)
def test_restrided_tensors_keep_their_values(
    shape: tuple[int, ...], given_: int, wanted: int
) -> None:
    sources = layouts(shape)
    tensor = sources[given_ % len(sources)]
    tensor.untyped_storage().fill_(0)  # it may hold NaN, which equals nothing
    if not any(stride == 0 for stride in tensor.stride()):
        tensor.copy_(torch.randn(shape))
    strides = sources[wanted % len(sources)].stride()
    if 0 in strides and tensor.numel() > 1:
        tensor = torch.full((), 2.5).expand(shape).contiguous()
    for result in (restrided(tensor, strides), copied(tensor, strides)):
        assert result.stride() == strides
        assert torch.equal(result, tensor)
    assert torch.equal(copied(tensor), tensor)
    fresh = copied(tensor, strides).untyped_storage().data_ptr()
    assert tensor.numel() == 0 or fresh != tensor.untyped_storage().data_ptr()
