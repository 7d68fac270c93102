"""Compilation: what is shared, stored and rebuilt, and what happens when it fails."""

from __future__ import annotations

import re
import shutil
import struct
import threading
from pathlib import Path

import pytest
import torch

from lynx.backends.c import KernelBuildError, compile_segments, find_compiler
from lynx.backends.c import compiler as compiler_module
from lynx.backends.c.compiler import CANDIDATES
from lynx.backends.c.math import HELPERS
from lynx.ir import DType, Kernel, symbol
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Index, KernelBuilder, Term
from lynx.ir.location import Location
from lynx.ir.native import KernelCall, Matrix, Pointer, ProductCall, Segment
from tests.backends.c.examples import EXAMPLES, Sheet
from tests.backends.c.running import call, compiled, row_major, segment_of

F32, I64 = DType.F32, DType.I64


class FolderStore:
    """A store in a folder, without checks: a back end must not trust what it finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, kind: str, key: str) -> Path | None:
        path = self.folder / f"{kind}-{key}"
        return path if path.exists() else None

    def put(self, kind: str, key: str, contents: bytes) -> Path:
        path = self.folder / f"{kind}-{key}"
        path.write_bytes(contents)
        return path


def scaled(factor: float, count: int = 8) -> Kernel:
    b = KernelBuilder()
    b.loc = Location("model.py", 7, "block.act")
    b.axis("i", count)
    index = row_major(b, "i")
    x = b.load(b.buffer("x", F32, count), index)
    out = b.buffer("y", F32, count, is_written=True)
    b.store(out, index, b.apply("mul", x, b.constant(factor, F32), dtype=F32))
    return b.build("scaled")


def runs(segment: Segment, **options: object) -> torch.Tensor:
    (function,) = compile_segments((segment,), **options)  # type: ignore[arg-type]
    x, y = torch.arange(8.0), torch.zeros(8)
    call(function, [x.data_ptr(), y.data_ptr()])
    return y


def test_a_second_compilation_runs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    assert torch.equal(runs(segment_of(scaled(3.0)), store=store), torch.arange(8.0) * 3)
    monkeypatch.setattr(compiler_module, "_start", None)
    assert torch.equal(runs(segment_of(scaled(3.0)), store=store), torch.arange(8.0) * 3)


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "text"])
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, damage: str) -> None:
    store = FolderStore(tmp_path)
    segment = segment_of(scaled(5.0 + len(damage)))
    expected = runs(segment, store=store)
    (entry,) = tmp_path.iterdir()
    contents = entry.read_bytes()
    middle = len(contents) // 2
    damaged = {
        "truncated": contents[:middle],
        "empty": b"",
        "changed": contents[:middle] + bytes([contents[middle] ^ 255]) + contents[middle + 1 :],
        "text": b"no library",
    }[damage]
    entry.unlink()
    entry.write_bytes(damaged)
    assert torch.equal(runs(segment, store=store), expected)
    assert entry.read_bytes() == contents or len(entry.read_bytes()) > middle


def test_no_compiler() -> None:
    with pytest.raises(CompileError) as caught:
        find_compiler("no-such-compiler")
    assert caught.value.code == "no-compiler"
    with pytest.raises(CompileError):
        compile_segments((segment_of(scaled(1.0)),), compiler="no-such-compiler")


def test_the_kernel_that_does_not_build_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Sheet(4, 5)
    b.write("y", b.f("sigmoid", b.read("x", "i", "j")), "i", "j")
    bad, good = b.build("bad"), scaled(2.0)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    broken = "INLINE f32 lynx_sigmoid_f32(f32 x, f32 one) { oops }"
    monkeypatch.setitem(HELPERS, "lynx_sigmoid_f32", broken)
    with pytest.raises(KernelBuildError) as caught:
        compile_segments((segment_of(good), segment_of(bad)))
    assert caught.value.kernels == (bad,)
    assert caught.value.path is not None
    assert "kernel" in caught.value.path.read_text()
    assert "oops" in str(caught.value)


def test_kernels_that_cannot_be_printed_are_all_named() -> None:
    def complex_copy() -> Kernel:
        b = KernelBuilder()
        b.axis("i", 3)
        x = b.load(b.buffer("x", DType.C64, 3), row_major(b, "i"))
        b.store(b.buffer("y", DType.C64, 3, is_written=True), row_major(b, "i"), x)
        return b.build("complex")

    first, second = complex_copy(), complex_copy()
    with pytest.raises(KernelBuildError) as caught:
        compile_segments((segment_of(first), segment_of(scaled(1.0)), segment_of(second)))
    assert caught.value.kernels == (first, second)
    assert caught.value.code == "kernel-build"


def test_an_overlapping_overwrite_is_refused() -> None:
    b = KernelBuilder()
    b.axis("i", 7)
    x = b.buffer("x", F32, 8, is_written=True)
    b.store(x, row_major(b, "i"), b.load(x, Index((Term("i"),), 1)))
    with pytest.raises(KernelBuildError):
        compiled([b.build("moved")])


def test_equal_kernels_are_printed_once() -> None:
    kernels = [scaled(2.0), scaled(2.0), scaled(2.0, 9), scaled(4.0)]
    (function,) = {f.source: f for f in compile_segments(tuple(map(segment_of, kernels)))}.values()
    definitions = re.findall(r"^static void (kernel\d+_\w+)", function.source, re.MULTILINE)
    assert definitions == ["kernel0_mul", "kernel1_mul", "kernel2_mul"]
    assert "model.py:7 in block.act" in function.source


def test_sizes_of_flat_kernels_are_parameters() -> None:
    functions = compile_segments((segment_of(scaled(2.0, 5000)), segment_of(scaled(2.0, 7000))))
    assert functions[0].source.count("\nstatic void kernel") == 1
    for count, function in zip((5000, 7000), functions, strict=True):
        x, y = torch.randn(count), torch.zeros(count)
        call(function, [x.data_ptr(), y.data_ptr()])
        assert torch.equal(y, x * 2)


def test_many_kernels_are_compiled_in_two_files() -> None:
    kernels = [scaled(float(n), 10 + n) for n in range(40)]
    functions = compile_segments(tuple(map(segment_of, kernels)))
    assert functions[0].source.count("typedef float f32;") == 2
    for n, function in enumerate(functions):
        x, y = torch.randn(10 + n), torch.zeros(10 + n)
        call(function, [x.data_ptr(), y.data_ptr()])
        assert torch.equal(y, x * n)


def test_checks_tell_the_first_message_and_finish() -> None:
    b = KernelBuilder()
    b.axis("i", 6)
    index = row_major(b, "i")
    place = b.load(b.buffer("p", I64, 6), index)
    for limit, message in ((10, "index out of range"), (5, "index too large")):
        b.check(b.apply("lt", place, b.constant(limit, I64), dtype=DType.BOOL), message)
    b.store(b.buffer("y", I64, 6, is_written=True), index, place)
    (function,) = compile_segments((segment_of(b.build("checked")),))
    assert function.messages == ("index out of range", "index too large")
    for values, code in (([0] * 6, 0), ([0, 7, 0, 0, 0, 0], 2), ([0, 7, 0, 0, 10, 0], 1)):
        p, y = torch.tensor(values), torch.zeros(6, dtype=torch.int64)
        assert function.run(struct.pack("2q", p.data_ptr(), y.data_ptr())) == code
        assert torch.equal(y, p)


def test_masked_loads_touch_nothing() -> None:
    b = KernelBuilder()
    b.axis("i", 100)
    x = b.buffer("x", DType.BF16, 1)
    mask = b.load(b.buffer("m", DType.BOOL, 100), row_major(b, "i"))
    loaded = b.load(x, Index((Term("i", 1 << 40),)), mask, 2.0)
    b.store(b.buffer("y", DType.BF16, 100, is_written=True), row_major(b, "i"), loaded)
    (runner,) = compiled([b.build("masked")])
    buffers = {"x": torch.ones(1, dtype=torch.bfloat16), "m": torch.zeros(100, dtype=torch.bool),
               "y": torch.zeros(100, dtype=torch.bfloat16)}  # fmt: skip
    buffers["m"][0] = True
    runner(buffers, {})
    assert buffers["y"].tolist() == [1.0] + [2.0] * 99


def test_a_segment_of_kernels_and_products() -> None:
    """Steps that depend on each other, in an arena, with offsets that depend on a symbol."""
    n = symbol("n")
    b = Sheet(n, 8)
    b.write("y", b.f("add", b.read("x", "i", "j"), 1.0), "i", "j")
    more = b.build("more")
    middle, last = Pointer(1, 0), Pointer(1, n * 32)
    calls = (
        KernelCall(more, (Pointer(0), middle)),
        KernelCall(more, (middle, last)),
        ProductCall(F32, 1, n, 8, 8, Matrix(last, (n * 8, 8, 1)), Matrix(Pointer(2), (64, 8, 1)),
                    Matrix(middle, (n * 8, 8, 1))),
        KernelCall(more, (middle, Pointer(3))),
    )  # fmt: skip
    (function,) = compile_segments((Segment("both", calls, 4, ("n",)),))
    for rows in (1, 5, 3000):
        x, w = torch.randn(rows, 8), torch.randn(8, 8)
        arena, out = torch.empty(2, rows, 8), torch.empty(rows, 8)
        call(function, [t.data_ptr() for t in (x, arena, w, out)], [rows])
        torch.testing.assert_close(out, (x + 1 + 1) @ w + 1)


def test_calls_from_several_threads() -> None:
    kernel = EXAMPLES[0](300, 700)
    (runner,) = compiled([kernel])
    x = torch.randn(300 * 700)
    expected = x.view(300, 700).softmax(1).view(-1)
    wrong = []

    def work() -> None:
        for _ in range(20):
            buffers = {"x": x, "y": torch.zeros(300 * 700)}
            runner(buffers, {})
            if not torch.allclose(buffers["y"], expected, atol=1e-6):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_no_segments() -> None:
    assert compile_segments(()) == ()
    (function,) = compile_segments((Segment("empty", (), 0, ()),))
    assert function.run(b"") == 0


@pytest.mark.parametrize("compiler", [c for c in CANDIDATES if shutil.which(c)])
@pytest.mark.parametrize("combine", ["max", "min"])
def test_the_best_of_infinities_and_of_nothing(compiler: str, combine: str) -> None:
    """Reductions of one compiler begin with infinity, those of another with a finite number."""
    b = Sheet(6, symbol("m"))
    b.write("best", b.reduce(combine, b.read("x", "i", "j"), ("j",))[0], "i")
    kernel = b.build("best")
    (function,) = compile_segments((segment_of(kernel),), compiler=compiler)
    worst = float("-inf") if combine == "max" else float("inf")
    finite = torch.finfo(torch.float32).min if combine == "max" else torch.finfo(torch.float32).max
    for columns in (70, 1, 0):
        x = torch.randn(6, columns)
        rows = ((0, worst), (1, finite), (2, float("nan")), (3, -worst))
        for row, fill in rows:
            x[row] = fill
        x[4, 1:] = worst
        best = torch.zeros(6)
        given = {"x": x, "best": best}
        call(function, [given[buffer.name].data_ptr() for buffer in kernel.buffers], [columns])
        expected = torch.full((6,), worst)
        if columns:
            expected = x.amax(1) if combine == "max" else x.amin(1)
        torch.testing.assert_close(best, expected, equal_nan=True)


def test_a_compiler_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "PATIENCE", 1)
    script = tmp_path / "slow-cc"
    script.write_text("#!/bin/sh\nsleep 600\n")
    script.chmod(0o755)
    with pytest.raises(KernelBuildError, match="was ended after 1 s"):
        runs(segment_of(scaled(3.0)), compiler=str(script))
