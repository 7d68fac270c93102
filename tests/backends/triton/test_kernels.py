"""Kernels of the kinds that models are made of, in Triton's interpreter, against the oracle."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from lynx.backends.reference.kernels import run_kernel
from lynx.backends.triton import print_module
from lynx.backends.triton.dtypes import torch_type
from lynx.backends.triton.interpreter import TritonInterpreter
from lynx.backends.triton.matmul import contraction_of
from lynx.backends.triton.module import print_product_module
from lynx.backends.triton.sizes import LIMITS, Limits
from lynx.ir.dims import Dim, evaluate, symbol
from lynx.ir.kernel import COMBINES, Buffer, Index, Kernel, Term
from lynx.ir.location import Location
from lynx.ir.types import DType
from tests.backends.triton import samples
from tests.backends.triton.samples import BF16, F32, Maker


def contents(buffer: Buffer, sizes: Mapping[str, int]) -> torch.Tensor:
    count, dtype = evaluate(buffer.extent, sizes), torch_type(buffer.dtype)
    if buffer.name in ("index", "target"):
        return torch.randint(0, 5, (count,))
    if buffer.dtype is DType.BOOL:
        return torch.rand(count) < 0.5
    if buffer.dtype.is_integer:
        return torch.randint(-4, 5, (count,)).to(dtype)
    return torch.randn(count).to(dtype)


def check(
    interpreter: TritonInterpreter,
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    limits: Limits = LIMITS,
    **options: bool,
) -> list[torch.Tensor]:
    """Compare with the interpreter of kernels; return the buffers."""
    torch.manual_seed(0)
    ours = [contents(buffer, sizes or {}) for buffer in kernel.buffers]
    theirs = [tensor.clone() for tensor in ours]
    interpreter.run_kernel(kernel, ours, sizes, limits=limits, **options)
    run_kernel(kernel, theirs, sizes)
    for buffer, got, want in zip(kernel.buffers, ours, theirs, strict=True):
        error = 1e-2 if buffer.dtype is BF16 else 1e-5
        torch.testing.assert_close(
            got, want, rtol=error, atol=10 * error, equal_nan=True,
            msg=lambda m, b=buffer: f"{b.name}: {m}",
        )  # fmt: skip
    return ours


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("size", [1, 1000, 4096])
def test_pointwise(size: int, dtype: DType, interpreter: TritonInterpreter) -> None:
    check(interpreter, samples.pointwise(size, dtype))


def test_transposes_use_tiles_of_two_dimensions(interpreter: TritonInterpreter) -> None:
    kernel = samples.transposed(70, 45)
    assert "YBLOCK" in print_module(kernel).text
    check(interpreter, kernel)


@pytest.mark.parametrize(("rows", "columns"), [(9, 33), (2, 9001), (1, 40000)])
def test_softmax(rows: int, columns: int, interpreter: TritonInterpreter) -> None:
    check(interpreter, samples.softmax(rows, columns))


def test_softmax_of_special_rows(interpreter: TritonInterpreter) -> None:
    inf = math.inf
    rows = [[-inf] * 4, [inf, 0, 1, 2], [math.nan, 0, 1, 2], [-inf, 0, -inf, 2]]
    for limits in (LIMITS, Limits(persistent=1, tile=2), Limits(split_along=2, part_along=2)):
        for kernel in (samples.softmax(4, 4), samples.reduction("softmax", 4, 4, "j")):
            ours = [torch.tensor(rows).flatten(), *(torch.zeros(16) for _ in kernel.buffers[1:])]
            theirs = [tensor.clone() for tensor in ours]
            if len(ours) == 3:
                ours, theirs = (
                    [t[:4] if i else t for i, t in enumerate(x)] for x in (ours, theirs)
                )
            interpreter.run_kernel(kernel, ours, limits=limits)
            run_kernel(kernel, theirs)
            for got, want in zip(ours, theirs, strict=True):
                torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("limits", [LIMITS, Limits(persistent=8, tile=256)], ids=["one", "loop"])
def test_layer_norm(limits: Limits, interpreter: TritonInterpreter) -> None:
    check(interpreter, samples.layer_norm(21, 100), limits=limits)
    check(interpreter, samples.layer_norm(5, 64, BF16), limits=limits)
    check(interpreter, samples.layer_norm_backward(40, 100), limits=limits)


def test_reductions_along_rows_and_columns_share_a_sweep(interpreter: TritonInterpreter) -> None:
    kernel = samples.layer_norm_backward(1100, 33)
    assert len(print_module(kernel).stages) == 2
    check(interpreter, kernel)
    few = Limits(programs=16, split_across=8, part_across=4)
    check(interpreter, samples.layer_norm_backward(symbol("s0"), 40), {"s0": 50}, limits=few)
    check(interpreter, samples.layer_norm_backward(symbol("s0"), 40), {"s0": 0}, limits=few)
    for combine in ("sum", "max", "argmin", "softmax", "prod"):
        m = Maker({"i": 50, "j": 20})
        x = m.input("x", "ij")
        centred = m.do("sub", x, m.reduce("max", x, "j"))
        m.output("y", "ij", centred)
        for place, result in enumerate(m.build.reduce(combine, centred, ("i",))):
            m.output(f"z{place}", "j", result)
        check(interpreter, m.build.build(combine), limits=few)


def test_cross_entropy(interpreter: TritonInterpreter) -> None:
    check(interpreter, samples.cross_entropy(7, 50))
    check(interpreter, samples.cross_entropy(3, 9001))


def test_a_failed_check_is_an_index_error(interpreter: TritonInterpreter) -> None:
    kernel = samples.cross_entropy(4, 10)
    tensors = [contents(buffer, {}) for buffer in kernel.buffers]
    place = [buffer.name for buffer in kernel.buffers].index("target")
    tensors[place][2] = 10
    with pytest.raises(IndexError, match="target out of range"):
        interpreter.run_kernel(kernel, tensors)


def test_gather(interpreter: TritonInterpreter) -> None:
    check(interpreter, samples.gather(11, 24, 5))


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16, DType.I64, DType.I8, DType.BOOL], ids=str)
def test_scatter_add(dtype: DType, is_deterministic: bool, interpreter: TritonInterpreter) -> None:
    kernel = samples.scatter_add(40, 20, 5, dtype)
    text = print_module(kernel, is_deterministic=is_deterministic).text
    is_atomic = dtype in (F32, BF16, DType.I64) and not (is_deterministic and dtype.is_floating)
    assert ("atomic_add" in text) == is_atomic
    if dtype is not DType.BOOL:
        check(interpreter, kernel, is_deterministic=is_deterministic)


def test_colliding_places_of_any_map_are_added_in_order(interpreter: TritonInterpreter) -> None:
    m = Maker({"i": 6, "j": 4})
    index = m.input("index", "i", DType.I64)
    grad = m.input("grad", "ij")
    out = m.build.buffer("out", F32, 20, is_written=True)
    m.build.store(out, Index((Term(index, 2), Term("j"))), grad, combine="add")
    kernel = m.build.build("overlapping")
    # Rows overlap: all points run one after the other in one program.
    assert "[(1)]" in print_module(kernel, is_deterministic=True).text.replace("(1,)", "(1)")
    check(interpreter, kernel, is_deterministic=True)


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("over", ["i", "j", "ij", "ji"])
def test_reductions(combine: str, over: str, interpreter: TritonInterpreter) -> None:
    dtype = DType.BOOL if combine in ("any", "all") else F32
    ways = (
        LIMITS,
        Limits(persistent=4, tile=64),
        Limits(programs=16, split_along=8, split_across=8, part_along=8, part_across=4, tile=32),
    )
    for limits in ways:
        check(interpreter, samples.reduction(combine, 13, 21, over, dtype), limits=limits)


@pytest.mark.parametrize("combine", ["argmax", "argmin"])
def test_ties_and_nan(combine: str, interpreter: TritonInterpreter) -> None:
    rows = [[1, 3, 3, 0, 0, 1], [0, math.nan, 5, math.nan, -5, 1], [-math.inf] * 6, [math.inf] * 6]
    kernel = samples.reduction(combine, 4, 6, "j")
    whole = samples.reduction(combine, 4, 6, "ji")
    for limits in (LIMITS, Limits(persistent=2, tile=4), Limits(split_along=2, part_along=2)):
        for one, count in ((kernel, 4), (whole, 1)):
            ours = [torch.tensor(rows).flatten(), torch.zeros(count), torch.zeros(count).long()]
            theirs = [tensor.clone() for tensor in ours]
            interpreter.run_kernel(one, ours, limits=limits)
            run_kernel(one, theirs)
            for got, want in zip(ours, theirs, strict=True):
                torch.testing.assert_close(got, want, equal_nan=True)


def test_batch_statistics_over_outer_and_inner_axes(interpreter: TritonInterpreter) -> None:
    m = Maker({"n": 6, "c": 3, "s": 40})
    x = m.input("x", "ncs")
    mean, squares = m.build.reduce("welford", x, ("n", "s"))
    m.output("y", "ncs", m.do("mul", m.do("sub", x, mean), m.do("rsqrt", squares)))
    m.output("mean", "c", mean)
    kernel = m.build.build("batch_norm")
    for limits in (LIMITS, Limits(persistent=16, tile=32), Limits(split_along=64, part_along=64)):
        check(interpreter, kernel, limits=limits)


def test_pairs_of_reductions_share_a_sweep(interpreter: TritonInterpreter) -> None:
    m = Maker({"i": 3, "j": 9000})
    x = m.input("x", "ij")
    centred = m.do("sub", x, m.do("div", m.reduce("sum", x, "j"), 9000.0))
    squares = m.reduce("sum", m.do("mul", centred, centred), "j")
    m.output("y", "ij", m.do("mul", centred, m.do("rsqrt", squares)))
    for kernel in (m.build.build("normalize"), samples.softmax(3, 9000)):
        assert print_module(kernel).text.count("for start in range") == 2
        check(interpreter, kernel)


def test_one_source_serves_all_sizes(interpreter: TritonInterpreter) -> None:
    batch, length = symbol("s0"), symbol("s1")
    for kernel in (
        samples.pointwise(batch * 12),
        samples.softmax(batch, length),
        samples.layer_norm(batch, 24),
        samples.layer_norm_backward(batch, 24),
        samples.cross_entropy(batch, length),
    ):
        for sizes in ({"s0": 1, "s1": 5}, {"s0": 33, "s1": 70}):
            check(interpreter, kernel, sizes)


def test_empty_sizes(interpreter: TritonInterpreter) -> None:
    check(interpreter, samples.pointwise(0))
    check(interpreter, samples.softmax(0, 5))
    check(interpreter, samples.softmax(symbol("s0"), 5), {"s0": 0})
    for combine in ("sum", "prod", "max", "min"):
        check(interpreter, samples.reduction(combine, 3, 0, "j"))
        check(interpreter, samples.reduction(combine, 3, symbol("s0"), "j"), {"s0": 0})


def test_writing_over_an_operand(interpreter: TritonInterpreter) -> None:
    m = Maker({"i": 10, "j": 40})
    buffer = m.build.buffer("x", F32, 400, is_written=True)
    x = m.build.load(buffer, m.at("ij"))
    shifted = m.do("sub", x, m.reduce("max", x, "j"))
    m.build.store(buffer, m.at("ij"), shifted)
    m.output("y", "j", m.reduce("sum", x, "i"))
    kernel = m.build.build("in_place")
    for limits in (LIMITS, Limits(persistent=8, tile=16)):
        check(interpreter, kernel, limits=limits)


def test_what_is_read_elsewhere_is_copied_first(interpreter: TritonInterpreter) -> None:
    m = Maker({"i": 5000})
    buffer = m.build.buffer("x", F32, 5000, is_written=True)
    backwards = m.build.load(buffer, Index((Term("i", -1),), 4999))
    m.build.store(buffer, m.at("i"), backwards)
    kernel = m.build.build("reverse")
    assert "clone()" in print_module(kernel).text
    check(interpreter, kernel)


def test_parts_of_a_concatenation_share_launches_where_axes_agree(
    interpreter: TritonInterpreter,
) -> None:
    m = Maker({"i": 30, "j": 8})
    out = m.build.buffer("out", F32, 480, is_written=True)
    for place, name in enumerate("ab"):
        index = Index((Term("i", 16), Term("j")), 8 * place)
        m.build.store(out, index, m.input(name, "ij"))
    kernel = m.build.build("concatenate")
    assert len(print_module(kernel).stages) == 1
    check(interpreter, kernel)


def test_large_buffers_are_indexed_with_64_bits() -> None:
    assert "tl.int64" in print_module(samples.pointwise(2**31)).text
    assert "tl.int64" not in print_module(samples.pointwise(2**30)).text
    text = print_module(samples.pointwise(symbol("s0"))).text
    assert "index = tl.int64 if" in text
    assert "do_not_specialize=['s0']" in text


def test_source_names_the_lines_of_the_user() -> None:
    m = Maker({"i": 8})
    x = m.input("x", "i")
    m.build.loc = Location("project/model.py", 12, "blocks.3.mlp")
    m.output("y", "i", m.do("exp", x))
    assert "# model.py:12 in blocks.3.mlp\n" in print_module(m.build.build("exp")).text


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_products(dtype: DType, interpreter: TritonInterpreter) -> None:
    for shape, prologue in (((2, 33, 50, 70), True), ((1, 16, 64, 64), False)):
        kernel = samples.product_of(*shape, dtype, prologue=prologue)
        contraction = contraction_of(kernel)
        assert not isinstance(contraction, str)
        printed = print_product_module(contraction)
        assert "tl.dot" in printed.text
        assert "tf32" not in printed.text
        torch.manual_seed(0)
        ours = [contents(buffer, {}) for buffer in kernel.buffers]
        theirs = [tensor.clone() for tensor in ours]
        interpreter.run_module(printed, ours, [])
        run_kernel(kernel, theirs)
        error = 2e-2 if dtype is BF16 else 1e-4
        for got, want in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, want, rtol=error, atol=10 * error)


def test_products_of_symbolic_rows(interpreter: TritonInterpreter) -> None:
    kernel = samples.product_of(1, symbol("s0"), 20, 17)
    contraction = contraction_of(kernel)
    assert not isinstance(contraction, str)
    for rows in (1, 37):
        ours = [contents(buffer, {"s0": rows}) for buffer in kernel.buffers]
        theirs = [tensor.clone() for tensor in ours]
        interpreter.run_module(print_product_module(contraction), ours, [rows])
        run_kernel(kernel, theirs, {"s0": rows})
        torch.testing.assert_close(ours[-1], theirs[-1], rtol=1e-4, atol=1e-4)


def test_what_is_no_product_says_why() -> None:
    assert contraction_of(samples.softmax(4, 4)) == "a product has one reduction, which is a sum"
    assert contraction_of(samples.reduction("sum", 4, 4, "j")) == "what is summed is no product"


def optimizer_step(sizes: list[Dim]) -> Kernel:
    """A step with momentum over many tensors, written over parameters and momenta."""
    m = Maker({f"i{place}": size for place, size in enumerate(sizes)})
    rate = m.build.load(m.build.buffer("rate", F32, 1), Index())
    for place, size in enumerate(sizes):
        at = Index((Term(f"i{place}"),))
        held = [
            m.build.buffer(f"{name}{place}", F32, size, is_written=name != "grad")
            for name in ("parameter", "grad", "momentum")
        ]
        parameter, grad, momentum = (m.build.load(buffer, at) for buffer in held)
        momentum = m.do("add", m.do("mul", momentum, 0.9), grad)
        parameter = m.do("sub", parameter, m.do("mul", momentum, rate))
        m.build.store(held[0], at, parameter)
        m.build.store(held[2], at, momentum)
    return m.build.build("sgd")


def test_many_small_tensors_share_launches(interpreter: TritonInterpreter) -> None:
    sizes: list[Dim] = [5 + 100 * place for place in range(20)]
    kernel = optimizer_step(sizes)
    assert len(print_module(kernel).stages) == 2
    check(interpreter, kernel)
    kernel = optimizer_step([3, symbol("s0"), 70, symbol("s1"), 0])
    assert len(print_module(kernel).stages) == 1
    check(interpreter, kernel, {"s0": 300, "s1": 2})
    check(interpreter, kernel, {"s0": 0, "s1": 1})


def test_parts_that_touch_the_same_memory_run_one_after_the_other() -> None:
    m = Maker({"i": 8, "j": 9})
    out = m.build.buffer("out", F32, 9, is_written=True)
    m.build.store(out, m.at("j"), m.input("a", "j"))
    m.output("y", "i", m.build.load(out, m.at("i")))
    assert len(print_module(m.build.build("dependent")).stages) == 2
