"""A driver that pretends to be a device: Triton compiles for it and launches, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver as drivers


@dataclass
class PretendedDriver:
    """Notes what is loaded and launched; `refuses` raises for kernels that the device refuses.

    It is also what Triton calls the utilities of a driver.
    """

    target: GPUTarget
    refuses: Callable[[str], None] = lambda name: None
    loaded: list[str] = field(default_factory=list)
    launched: list[tuple[str, tuple[int, int, int], tuple[Any, ...]]] = field(default_factory=list)

    @property
    def utils(self) -> PretendedDriver:
        return self

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[int, str, int, int, int]:
        self.refuses(name)
        self.loaded.append(name)
        return 1, name, 32, 0, 1024

    def unload_module(self, module: int) -> None:
        return

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            x, y, z, _, function, *_ = arguments
            self.launched.append((function, (x, y, z), arguments[9:]))

        return launch


@contextmanager
def pretended_device(
    refuses: Callable[[str], None] = lambda name: None,
) -> Iterator[PretendedDriver]:
    """Let Triton compile for a device of the generation of sm_90 that is not there."""
    driver = PretendedDriver(GPUTarget("cuda", 90, 32), refuses)
    before = drivers._active
    drivers.set_active(driver)
    try:
        yield driver
    finally:
        drivers._active = before
