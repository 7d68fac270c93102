"""Blocks, arenas kept for backward, and the private APIs of torch that they need."""

from __future__ import annotations

import torch

from lynx.ir import DType, TensorType, Value, ops
from lynx.ir.ops.aten import Aten
from lynx.runtime import BlockPool, may_alias
from lynx.runtime.dtypes import torch_dtype
from lynx.runtime.executor import size_class
from lynx.runtime.tensors import Memory, unshared
from lynx.runtime.torch_internals import (
    direct_call,
    empty_on_cpu,
    is_composite,
    reinterpreted,
    set_grad_enabled,
    storage_use_count,
)


def test_memory_is_idle_when_no_tensor_in_it_is_alive() -> None:
    memory = Memory(256, "cpu")
    assert storage_use_count(memory.storage) == 1
    base = memory.base(torch.float32)
    assert memory.base(torch.float32) is base
    del base
    assert memory.is_idle
    tensor = reinterpreted(memory.base(torch.float32), (4, 4), (4, 1), 16)
    view = tensor[1:]
    assert not memory.is_idle
    del tensor
    assert not memory.is_idle, "a view keeps what it is a view of"
    del view
    assert memory.is_idle


def test_placed_tensors_have_versions_of_their_own() -> None:
    memory = Memory(256, "cpu")
    a = reinterpreted(memory.base(torch.float32), (4,), (1,), 0)
    b = reinterpreted(memory.base(torch.int64), (2, 3), (1, 2), 8)
    before = a._version, b._version
    a.fill_(1)
    assert (a._version, b._version) == (before[0] + 1, before[1])
    assert b.data_ptr() - a.data_ptr() == 64
    assert a.data_ptr() == memory.start
    assert b.stride() == (1, 2)
    assert not a._is_view()
    empty = reinterpreted(memory.base(torch.float64), (0, 3), (3, 1), 16)
    assert empty.shape == (0, 3)
    assert memory.storage.nbytes() == 256


def test_memory_made_in_inference_mode() -> None:
    with torch.inference_mode():
        memory = Memory(64, "cpu")
        base = memory.base(torch.float32)
    tensor = reinterpreted(base, (4,), (1,), 0)
    tensor.fill_(1)
    assert not tensor.is_inference()


def test_reinterpreted_from_what_begins_later() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(reinterpreted(x[1], (2,), (2,), 1), torch.tensor([5.0, 7.0]))
    weight = torch.nn.Parameter(x)
    assert not reinterpreted(weight, (3,), (1,), 0).requires_grad


def test_empty_on_cpu() -> None:
    empty = empty_on_cpu((2, 3), (1, 2), torch.bfloat16)
    assert (empty.shape, empty.stride(), empty.dtype) == ((2, 3), (1, 2), torch.bfloat16)
    assert empty_on_cpu((), (), torch.int64).shape == ()


def test_set_grad_enabled() -> None:
    set_grad_enabled(False)
    try:
        assert not torch.is_grad_enabled()
    finally:
        set_grad_enabled(True)
    assert torch.is_grad_enabled()


def test_direct_calls() -> None:
    x = torch.randn(3)
    assert torch.equal(direct_call(torch.ops.aten.exp.default)(x), x.exp())
    out = torch.empty(3)
    direct_call(torch.ops.aten.add.out)(x, 2, out=out)
    assert torch.equal(out, x + 2)
    assert direct_call(torch.add) is torch.add


def test_composite() -> None:
    assert is_composite(torch.ops.aten.reshape.default)
    assert not is_composite(torch.ops.aten.add.Tensor)


def test_may_alias() -> None:
    type_ = TensorType(DType.F32, (4,))
    x = Value(type_)

    def answer(target: str) -> bool:
        return may_alias(Aten(target, (x,), (), (type_,)))

    assert not answer("aten.relu.default")
    assert not answer("aten.add.Tensor")
    assert answer("aten.view.default")
    assert answer("aten.contiguous.default")
    assert answer("aten._unsafe_view.default")
    assert answer("aten.no_such_operator.default")
    assert answer("mylib.custom.default")
    assert answer("higher_order.cond")
    assert answer("python.operator.add")
    assert may_alias(ops.Reshape(x, (2, 2)))
    assert not may_alias(ops.Exp(x))


def test_dtypes() -> None:
    for dtype in DType:
        assert torch_dtype(dtype).itemsize == dtype.itemsize
    assert torch_dtype(DType.BF16) is torch.bfloat16
    assert torch_dtype(DType.F8E4M3FN) is torch.float8_e4m3fn


def test_a_pool_never_lends_a_block_twice() -> None:
    pool = BlockPool()
    first, second = pool.take("cpu", 100), pool.take("cpu", 100)
    assert first is not second
    pool.give(first)
    assert pool.take("cpu", 50) is first
    pool.give(first)
    pool.give(second)
    larger = pool.take("cpu", 1000)
    assert larger.size == 1000
    assert pool.idle_bytes == 100, "a block too small is freed before a larger one is made"


def test_a_pool_keeps_few_blocks() -> None:
    pool = BlockPool()
    blocks = [pool.take("cpu", 64) for _ in range(20)]
    for block in blocks:
        pool.give(block)
    assert pool.idle_bytes <= 4 * 64


def test_unshared() -> None:
    x = torch.randn(4, 3)
    assert unshared(x, None, (torch.randn(2),)) is x
    copy = unshared(x.t(), None, (x,))
    assert torch.equal(copy, x.t())
    assert copy.data_ptr() != x.data_ptr()
    assert unshared(x.t(), (4, 1), (x,)).stride() == (4, 1)
    sparse = torch.eye(3).to_sparse()
    assert unshared(sparse, None, (x,)) is sparse


def test_size_classes() -> None:
    previous = 0
    for size in range(5000):
        rounded = size_class(size)
        assert size <= rounded <= size + size // 8 + 1
        assert rounded >= previous
        assert size_class(rounded) == rounded
        previous = rounded
    assert len({size_class(n * 4096) for n in range(64, 129)}) <= 10


def test_a_program_that_goes_while_its_block_is_in_use_leaves_nothing_there() -> None:
    pool = BlockPool()
    block = pool.take("cpu", 64)
    block.views[7] = {(): ()}
    pool.forget(7)  # what the finalizer of an executable does, at any time
    pool.give(block)
    assert pool.take("cpu", 64) is block
    assert not block.views
