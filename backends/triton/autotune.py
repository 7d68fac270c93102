"""Measure schedules where that is asked for, and remember what was fastest.

A measurement picks among schedules of one kernel, or between a kernel and the library: it never
changes what is computed where, so ranks that measure differently still run the same program.
Results are kept in the artifact store, by kernel and device.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import triton
import triton.testing

from lynx.ir.dims import evaluate
from lynx.ir.kernel import Kernel
from lynx.ir.store import ArtifactStore

from .launch import Launchable, TritonKernel, load_module
from .matmul import contraction_of, product_candidates
from .module import PrintedModule, print_product_module, print_staged
from .precompile import precompile
from .schedule import Schedule, candidates, choose
from .sizes import estimate
from .stages import stage

Measure = Callable[[Callable[[], None]], float]
"""Returns how long a call takes, in any unit."""

KIND = "triton-schedule"


def device_time(call: Callable[[], None]) -> float:
    """Return the median time of a call on the device, in milliseconds."""
    return float(triton.testing.do_bench(call, warmup=5, rep=20, return_mode="median"))


def wall_time(call: Callable[[], None]) -> float:
    """Return the time of one call by the clock of the host, in seconds: for the interpreter."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


Make = Callable[[Kernel, PrintedModule], Launchable]
"""Makes of a printed module what can be launched."""


def loaded(kernel: Kernel, printed: PrintedModule) -> TritonKernel:
    """Return the launcher of a printed module."""
    return TritonKernel(printed, kernel.symbols, load_module(printed.text, printed.name))


@dataclass(frozen=True)
class Tuner:
    """How to measure, and where to remember it.

    `device` is the name under which results are kept, that of the device unless given; `make` makes
    modules launchable.
    """

    store: ArtifactStore | None = None
    measure: Measure = device_time
    device: str = ""
    make: Make = loaded

    def name_of(self, tensors: Sequence[torch.Tensor]) -> str:
        """Return the name under which results on the device of these tensors are kept."""
        device = tensors[0].device
        if self.device or device.type != "cuda":
            return self.device or device.type
        return torch.cuda.get_device_name(device)

    def fastest(
        self,
        calls: Sequence[Callable[[], None]],
        key: str,
        prepare: Callable[[], object] = lambda: None,
    ) -> int:
        """Return the index of the fastest call: the remembered one, or else by measurement.

        `prepare` is called before the first measurement. A call that raises, as one whose tile
        needs more memory than there is, is out. The first one is taken where all raise.
        """
        path = self.store.find(KIND, key) if self.store is not None else None
        if path is not None:
            remembered = _read(path.read_bytes(), len(calls))
            if remembered is not None:
                return remembered
        prepare()
        times = [_time(call, self.measure) for call in calls]
        best = min(range(len(calls)), key=lambda index: (times[index], index))
        if self.store is not None and math.isfinite(times[best]):
            contents = json.dumps({"fastest": best, "of": len(calls)}).encode()
            self.store.put(KIND, key, contents)
        return best


def _read(data: bytes, count: int) -> int | None:
    """Return the remembered index if it was among as many."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    valid = isinstance(found, dict) and found.get("of") == count
    index = found.get("fastest") if valid else None
    return index if isinstance(index, int) and 0 <= index < count else None


def _time(call: Callable[[], None], measure: Measure) -> float:
    try:
        return measure(call)
    except Exception:  # whatever Triton raises: what does not run is not fastest
        return float("inf")


def measurement_key(printed: PrintedModule, device: str, sizes: Sequence[int]) -> str:
    """Return the key of a measurement: of the text without comments, versions and device.

    Sizes count by their magnitude only, so that a new batch size is rarely measured anew.
    """
    text = re.sub(r"^\s*#.*\n", "", printed.text, flags=re.MULTILINE)
    magnitudes = [size.bit_length() for size in sizes]
    parts = (text, device, triton.__version__, magnitudes)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def autotune(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    sizes: Mapping[str, int],
    tuner: Tuner | None = None,
    *,
    is_deterministic: bool = False,
) -> PrintedModule:
    """Return the module with the schedules that are fastest on tensors like these, for each stage.

    What is written is written to copies.
    """
    tuner = tuner if tuner is not None else Tuner()
    staged = stage(kernel, is_deterministic=is_deterministic)
    chosen = [choose(part) for part in staged.stages]
    scratch = _copies(kernel, tensors, sizes)
    values = [sizes[symbol] for symbol in kernel.symbols]

    def printed_with(schedules: Sequence[Schedule]) -> PrintedModule:
        return print_staged(
            kernel, staged, is_deterministic=is_deterministic, schedules=tuple(schedules)
        )

    for place, part in enumerate(staged.stages):
        options = candidates(part)
        modules = [printed_with([*chosen[:place], o, *chosen[place + 1 :]]) for o in options]
        calls = [_call(tuner.make(kernel, module), scratch, values) for module in modules]
        key = measurement_key(modules[0], f"{tuner.name_of(tensors)} stage {place}", values)
        best = tuner.fastest(calls, key, functools.partial(_precompile, modules, tensors))
        chosen[place] = options[best]
    return printed_with(chosen)


WORTH_TUNING = 1 << 17
"""Bytes that a kernel must move at least: below, a launch takes longer than the work."""


def is_worth_tuning(kernel: Kernel) -> bool:
    """Whether a kernel moves so many bytes that its schedule may matter."""
    moved = sum(estimate(buffer.extent) * buffer.dtype.itemsize for buffer in kernel.buffers)
    return moved >= WORTH_TUNING or bool(kernel.symbols)


@dataclass(eq=False)
class TunedKernel:
    """Launches a kernel, measured on the first tensors of each magnitude of sizes.

    `printed` has the schedules that sizes suggest, for when there is no memory to measure.
    """

    kernel: Kernel
    printed: PrintedModule
    tuner: Tuner
    is_deterministic: bool = False
    chosen: dict[tuple[int, ...], Launchable] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
        """Launch on these tensors."""
        key = tuple(value.bit_length() for value in values)
        with self.lock:
            if key not in self.chosen:
                self.chosen[key] = self._tuned(tensors, values)
        self.chosen[key].launch(tensors, values)

    def _tuned(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> Launchable:
        sizes = dict(zip(self.kernel.symbols, values, strict=True))
        try:
            printed = autotune(
                self.kernel, tensors, sizes, self.tuner, is_deterministic=self.is_deterministic
            )
        except torch.OutOfMemoryError:
            printed = self.printed
        return self.tuner.make(self.kernel, printed)


def autotune_product(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    sizes: Mapping[str, int],
    library: Callable[[Sequence[torch.Tensor]], None],
    tuner: Tuner | None = None,
    *,
    allow_tf32: bool = False,
) -> PrintedModule | None:
    """Return the module of the fastest tiled product, None where the library is not slower.

    `library` computes the same into the same tensors. None too if the kernel is no matrix product.
    """
    tuner = tuner if tuner is not None else Tuner()
    contraction = contraction_of(kernel)
    if isinstance(contraction, str):
        return None
    options = [replace(one, tf32=allow_tf32) for one in product_candidates(contraction)]
    modules = [print_product_module(contraction, schedule) for schedule in options]
    scratch = _copies(kernel, tensors, sizes)
    values = [sizes[symbol] for symbol in kernel.symbols]
    calls: list[Callable[[], None]] = [lambda: library(scratch)]
    calls.extend(_call(tuner.make(kernel, module), scratch, values) for module in modules)
    key = measurement_key(modules[0], f"{tuner.name_of(tensors)} product", values)
    best = tuner.fastest(calls, key, functools.partial(_precompile, modules, tensors))
    return None if best == 0 else modules[best - 1]


def _precompile(modules: Sequence[PrintedModule], tensors: Sequence[torch.Tensor]) -> None:
    """Compile what will be measured side by side; what does not compile will not be fastest."""
    device = tensors[0].device
    if device.type == "cuda":
        precompile([(module, str(device)) for module in modules])


def _call(
    launchable: Launchable, tensors: Sequence[torch.Tensor], values: Sequence[int]
) -> Callable[[], None]:
    return lambda: launchable.launch(tensors, values)


def _copies(
    kernel: Kernel, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]
) -> list[torch.Tensor]:
    """Return the tensors, with copies of all the memory that is written."""
    copies = []
    for buffer, tensor in zip(kernel.buffers, tensors, strict=True):
        if buffer.is_written:
            tensor = tensor.data.as_strided((evaluate(buffer.extent, sizes),), (1,)).clone()
        copies.append(tensor)
    return copies
