"""The machine is described correctly, from the texts of several machines."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from lynx.ir.types import DType
from lynx.passes import Target
from lynx.target import (
    cache_sizes,
    cpu_flags,
    library_products,
    native_products,
    this_machine,
    vector_bits,
)

MACHINES = [
    ("flags\t\t: fpu sse avx avx2 f16c fma", "x86_64", 256, set()),
    ("flags\t: sse2", "x86_64", 128, set()),
    ("flags : avx2 avx512f avx512_bf16 amx_bf16", "x86_64", 512, {DType.BF16}),
    ("flags : avx2 avx512f amx_bf16 avx512_fp16", "x86_64", 512, {DType.BF16, DType.F16}),
    ("Features\t: fp asimd fphp asimdhp bf16", "aarch64", 128, {DType.BF16, DType.F16}),
    ("Features\t: fp asimd crc32", "aarch64", 128, set()),
    ("", "riscv64", 128, set()),
]


@pytest.mark.parametrize(("cpuinfo", "architecture", "bits", "types"), MACHINES)
def test_features(cpuinfo: str, architecture: str, bits: int, types: set[DType]) -> None:
    flags = cpu_flags(f"processor : 0\n{cpuinfo}\nbugs : bf16\n", {})
    assert vector_bits(architecture, flags) == bits
    assert native_products(flags) == types


def test_what_torch_tells_counts_too() -> None:
    flags = cpu_flags("", {"avx512_bf16": True, "amx_fp16": False, "cpu_name": "x"})
    assert native_products(flags) == {DType.BF16}


def test_cache_sizes(tmp_path: Path) -> None:
    levels = [("1", "Data", "32K"), ("1", "Instruction", "64K"), ("2", "Unified", "1024K")]
    for index, (level, kind, size) in enumerate(levels):
        entry = tmp_path / f"index{index}"
        entry.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (entry / name).write_text(f"{text}\n")
    assert cache_sizes(tmp_path) == (32 << 10, 1 << 20, 1 << 20)
    assert cache_sizes(tmp_path / "missing") is None
    (tmp_path / "index2" / "size").write_text("none")
    assert cache_sizes(tmp_path) is None


def test_this_machine() -> None:
    target = this_machine()
    assert target.cores >= 1
    assert target.vector_bits in (128, 256, 512)
    assert all(size > 0 for size in target.caches)
    assert target.balance > 0
    assert target is this_machine()


def test_the_library_multiplies_as_torch_does() -> None:
    path = library_products()
    if path is None:
        pytest.skip("torch exports no matrix product here")
    library = ctypes.CDLL(str(path))
    a, b = torch.randn(3, 5), torch.randn(5, 4)
    out = torch.empty(3, 4)
    m, n, k = (ctypes.byref(ctypes.c_int(size)) for size in (4, 3, 5))
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (b, a, out)]
    # Column-major: the transposed product of the transposed matrices.
    library.sgemm_(b"n", b"n", m, n, k, one, pointers[0], m, pointers[1], k, zero, pointers[2], m)
    assert torch.allclose(out, a @ b, rtol=1e-6, atol=1e-6)


def test_text_tells_targets_apart() -> None:
    both = frozenset({DType.F16, DType.BF16})
    a, b = Target(native_products=both), Target(native_products=frozenset([*both][::-1]))
    assert a.text == b.text
    assert Target(cores=2).text != Target(cores=4).text
    assert "native_products=('bf16', 'f16')" in a.text


def test_what_is_best_left_in_its_type() -> None:
    target = Target(native_products=frozenset({DType.BF16}))
    assert target.multiplies(DType.F32)
    assert target.multiplies(DType.BF16)
    assert not target.multiplies(DType.F16)
