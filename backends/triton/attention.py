"""Put the kernels of an attention into one module, with the function that runs them."""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.dims import Dim
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Check, Kernel
from lynx.ir.native import AttentionBackwardCall, AttentionCall
from lynx.ir.types import DType

from .attention_forward import ForwardPrinter
from .attention_memory import AttentionMemory
from .attention_writer import Tiles, parts_of
from .module import Host, PrintedModule, head, index_type_of
from .parts import Staged
from .printer import PrintedStage
from .writer import PrintOptions

ELEMENTS = (DType.F32, DType.BF16, DType.F16)
"""The types of queries, keys and values."""

MOST_DEPTH = 256
"""A tile of queries as deep as this fits into registers, just so."""


@dataclass(frozen=True)
class AttentionOptions:
    """How attentions are printed besides what they compute."""

    is_deterministic: bool = False
    allow_tf32: bool = False

    @property
    def precision(self) -> str:
        """How factors of `f32` are rounded before they are multiplied."""
        return "tf32" if self.allow_tf32 else "ieee"


@dataclass(frozen=True)
class PrintedAttention:
    """A module, and a kernel that stands for it: its buffers and symbols are those of `run`."""

    kernel: Kernel
    printed: PrintedModule


def why_unsupported(dtype: DType, depths: tuple[Dim, Dim]) -> str:
    """Return why there is no kernel for such operands, empty if there is one."""
    if dtype not in ELEMENTS:
        return f"kernels for GPUs attend to no {dtype}"
    if not all(isinstance(depth, int) for depth in depths):
        return "kernels for GPUs attend only to known depths"
    if any(isinstance(depth, int) and not 0 < depth <= MOST_DEPTH for depth in depths):
        return f"kernels for GPUs attend to depths up to {MOST_DEPTH}, not {max(depths)}"
    return ""


def print_attention(
    call: AttentionCall | AttentionBackwardCall,
    options: AttentionOptions = AttentionOptions(),
    tiles: Tiles | None = None,
) -> PrintedAttention:
    """Return the module of an attention, in one direction; `CompileError` if there is none."""
    memory = AttentionMemory(call)
    forward = memory.forward
    depths = (forward.sizes.depth, forward.sizes.value_depth)
    reason = why_unsupported(forward.q.dtype, depths)
    if reason or len({x.dtype for x in (forward.q, forward.k, forward.v, forward.out)}) > 1:
        raise CompileError("kernel-unsupported", reason or "operands are of several types")
    reaches = _reaches(memory)
    index_type = index_type_of(reaches)
    how = PrintOptions(index_type, options.is_deterministic)
    name = "attention_backward" if memory.is_backward else "attention"
    kernel = memory.kernel(name)
    chosen = tiles or choose_tiles(memory)
    stages: list[PrintedStage] = [ForwardPrinter(memory, chosen, how, options.precision).print()]
    host = AttentionHost(memory, kernel, stages, index_type, reaches).text()
    texts = [one.text for one in stages]
    text = "\n\n".join([head(texts, host), *texts, host])
    checks = [one for one in forward.score.body if isinstance(one, Check)]
    messages = () if memory.is_backward else tuple(check.message for check in checks)
    return PrintedAttention(kernel, PrintedModule(name, text, tuple(stages), messages))


def choose_tiles(memory: AttentionMemory) -> Tiles:
    """Return the tiles that depths and types suggest."""
    call = memory.forward
    depths = (call.sizes.depth, call.sizes.value_depth)
    width = max(sum(part.width for part in parts_of(int(depth))) for depth in depths)
    wide = call.q.dtype is DType.F32
    if wide:
        return Tiles(32, 32, 4, 2) if width > 64 else Tiles(64, 32, 4, 2)
    if width > 128:
        return Tiles(64, 32, 4, 2)
    return Tiles(128, 64, 8, 2) if width > 64 else Tiles(128, 64, 4, 3)


def _reaches(memory: AttentionMemory) -> list[Dim]:
    sizes = memory.forward.sizes
    found: list[Dim] = [buffer.extent for buffer in memory.slots.values()]
    return [*found, sizes.queries, sizes.keys, sizes.batch * sizes.heads]


class AttentionHost(Host):
    """Prints the function that launches the kernels of an attention."""

    def __init__(
        self,
        memory: AttentionMemory,
        kernel: Kernel,
        printed: list[PrintedStage],
        index_type: str,
        reaches: list[Dim],
    ) -> None:
        super().__init__(kernel, Staged((), (), {}), printed, index_type)
        self.memory = memory
        self.reaches = reaches

    def text(self) -> str:
        """Return the function."""
        buffers = [self.names[buffer] for buffer in self.kernel.buffers]
        arguments = ", ".join([*buffers, "failures", *self.kernel.symbols])
        self.lines.append(f"def run({arguments}):")
        self.lines.append(f'    """Run {self.kernel.name} on its tensors."""')
        self.choose_index_type(self.reaches)
        for one in self.printed:
            self.launch(one)
        return "\n".join(self.lines) + "\n"
