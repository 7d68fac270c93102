"""Compile kernels ahead of time, for devices that need not be there, and read what they take."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lynx.ir.errors import InternalError
from lynx.ir.kernel import Buffer, Kernel

from .launch import load_module
from .module import PrintedModule, print_module
from .printer import PrintedStage
from .threads import parsed_again

SM_90 = GPUTarget("cuda", 90, 32)
GFX942 = GPUTarget("hip", "gfx942", 64)
TARGETS = {"sm_90": SM_90, "gfx942": GFX942}
"""The devices for which kernels are checked, by name."""


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: registers of a thread, what spilled, bytes of shared memory.

    On AMD, registers are vector registers, and spills are registers and not bytes.
    """

    kernel: str
    target: str
    registers: int
    spills: int
    shared: int
    warps: int


def compile_ahead(kernel: Kernel, target: str) -> tuple[Resources, ...]:
    """Compile all launches of a kernel for a target of `TARGETS`; return what each takes."""
    return compile_module(print_module(kernel), target)


def compile_module(printed: PrintedModule, target: str) -> tuple[Resources, ...]:
    """Compile all kernels of a printed module."""
    namespace = load_module(printed.text, printed.name)
    return tuple(_compile(namespace[one.name], one, target) for one in printed.stages)


def _compile(function: Any, stage: PrintedStage, target: str) -> Resources:
    signature = {p.name: p.type_text for p in stage.parameters}
    constants = {
        name: triton.language.int32 if name == "INDEX" else value
        for name, value in stage.constants.items()
    }
    signature.update(dict.fromkeys(constants, "constexpr"))
    # Buffers are aligned to 16 bytes, as torch's allocator does.
    aligned: dict[tuple[int, ...], list[list[object]]] = {
        (place,): [["tt.divisibility", 16]]
        for place, parameter in enumerate(stage.parameters)
        if isinstance(parameter.stands_for, Buffer | None)
    }
    options = dict(stage.options)
    return compile_function(function, stage.name, signature, constants, aligned, target, options)


def compile_function(
    function: Any,
    name: str,
    signature: dict[str, str],
    constants: dict[str, Any],
    attributes: dict[tuple[int, ...], list[list[object]]],
    target: str,
    options: dict[str, Any],
) -> Resources:
    """Compile one function of Triton for a target, and read what it takes."""
    source = ASTSource(
        fn=function,
        signature=signature,
        constexprs={(list(signature).index(key),): value for key, value in constants.items()},
        attrs=attributes,
    )
    compiled = parsed_again(lambda: triton.compile(source, target=TARGETS[target], options=options))
    if TARGETS[target].backend == "cuda":
        registers, spills = read_ptx(compiled.asm["ptx"])
    else:
        registers, spills = read_amdgcn(compiled.asm["amdgcn"])
    metadata = compiled.metadata
    return Resources(name, target, registers, spills, metadata.shared, metadata.num_warps)


def read_amdgcn(text: str) -> tuple[int, int]:
    """Return vector registers and spills (of vector and scalar registers) from AMD assembly."""

    def number(key: str) -> int:
        found = re.search(rf"^\s*\.{key}:\s*(\d+)", text, re.MULTILINE)
        return int(found.group(1)) if found else 0

    return number("vgpr_count"), number("vgpr_spill_count") + number("sgpr_spill_count")


def read_ptx(text: str) -> tuple[int, int]:
    """Assemble PTX with an assembler that Triton brings; return registers and spilled bytes."""
    target = re.search(r"\.target\s+(\w+)", text)
    assert target is not None, "PTX without a target"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text)
        command = ["-v", f"--gpu-name={target.group(1)}", "-o", str(binary), str(source)]
        report = _assemble(command)
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    spilled = sum(map(int, spills.groups())) if spills else 0
    return int(registers.group(1)) if registers else 0, spilled


def _assemble(arguments: list[str]) -> str:
    """Return what the first of Triton's assemblers that takes this version of PTX reports."""
    tools = triton.knobs.nvidia
    reports = []
    for name in ("ptxas_blackwell", "ptxas"):
        tool = getattr(tools, name, None)
        if tool is not None:
            done = subprocess.run([tool.path, *arguments], capture_output=True, text=True)
            if done.returncode == 0:
                return done.stderr + done.stdout
            reports.append(done.stderr)
    raise InternalError("ptx-assembly", f"no assembler takes the PTX of a kernel: {reports}")


def table(found: Iterable[Resources]) -> str:
    """Return resources as a text table, a kernel a line."""
    lines = [
        f"{'kernel':40} {'target':8} {'warps':>5} {'registers':>9} {'shared':>7} {'spills':>6}"
    ]
    lines.extend(
        f"{one.kernel:40} {one.target:8} {one.warps:5} {one.registers:9} {one.shared:7} "
        f"{one.spills:6}"
        for one in found
    )
    return "\n".join(lines)


def check_kernels(kernels: Iterable[Kernel], targets: Iterable[str] = TARGETS) -> list[Resources]:
    """Compile kernels for targets; `AssertionError` names those that spill registers."""
    wanted = tuple(targets)
    found = [one for k in kernels for target in wanted for one in compile_ahead(k, target)]
    spilling = [one for one in found if one.spills]
    assert not spilling, f"kernels spill registers:\n{table(spilling)}"
    return found
