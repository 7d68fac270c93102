"""The machine that a program is compiled for, as far as decisions of passes depend on it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lynx.ir.types import DType


@dataclass(frozen=True, slots=True)
class Target:
    """A machine. The defaults describe a small one of which nothing is known.

    `device` is the type of the device; `architecture` names the instruction set as `uname -m`
    does. `caches` are the bytes of a core's first and second level and of the shared third.
    `bandwidth` (bytes a second) and `flops` (`f32` operations a second) are of all cores together,
    rough, and meant for comparisons only. `native_products` lists the low-precision types that the
    device multiplies at least as fast as `f32`. With `has_products` a segment may call the matrix
    products of the library; with `generates_code` a back end builds kernels, and without it every
    op runs through torch; with `has_attention` it has kernels of whole attentions. With `launches`
    the host launches each kernel, as on a GPU, whose library has products of all types; it is asked
    with `is_deterministic` to give the same bits each time.
    """

    device: str = "cpu"
    architecture: str = ""
    cores: int = 1
    vector_bits: int = 128
    caches: tuple[int, int, int] = (32 << 10, 1 << 20, 16 << 20)
    bandwidth: float = 10e9
    flops: float = 32e9
    native_products: frozenset[DType] = frozenset()
    has_products: bool = False
    generates_code: bool = False
    has_attention: bool = False
    launches: bool = False
    is_deterministic: bool = False

    @property
    def text(self) -> str:
        """All of it in one line, the same for equal targets: a part of cache keys."""
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, frozenset):
                value = tuple(sorted(str(item) for item in value))
            parts.append(f"{field.name}={value}")
        return "; ".join(parts)

    @property
    def is_cpu(self) -> bool:
        """Whether kernels run in native segments, next to the library of a CPU."""
        return self.device == "cpu" and not self.launches

    @property
    def balance(self) -> float:
        """The `f32` operations that take as long as moving one byte."""
        return self.flops / self.bandwidth

    def multiplies(self, dtype: DType) -> bool:
        """Whether products of this element type are best left in it."""
        return not dtype.is_low_precision or dtype in self.native_products
