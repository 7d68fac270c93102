"""Put the kernels of an attention into one module, with the function that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lynx.ir.dims import Dim, contiguous_strides, python_source
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Buffer, Check, Kernel
from lynx.ir.native import AttentionBackwardCall, AttentionCall, Strided
from lynx.ir.program import same_strides
from lynx.passes.attention.device import why_not_such_operands

from .attention_backward import gradient_printers
from .attention_forward import ForwardPrinter
from .attention_memory import AttentionMemory
from .attention_tiles import choose_tiles
from .attention_writer import LEAST_DOT, Tiles
from .dtypes import torch_name
from .module import Host, PrintedModule, head, index_type_of
from .parts import Staged
from .printer import PrintedStage
from .writer import PrintOptions


@dataclass(frozen=True)
class AttentionOptions:
    """How attentions are printed besides what they compute."""

    is_deterministic: bool = False
    allow_tf32: bool = False
    is_amd: bool = False

    @property
    def precision(self) -> str:
        """How factors of `f32` are rounded before they are multiplied."""
        return "tf32" if self.allow_tf32 else "ieee"


@dataclass(frozen=True)
class PrintedAttention:
    """A module, and a kernel that stands for it: its buffers and symbols are those of `run`."""

    kernel: Kernel
    printed: PrintedModule


def print_attention(
    call: AttentionCall | AttentionBackwardCall,
    options: AttentionOptions = AttentionOptions(),
    tiles: Tiles | None = None,
) -> PrintedAttention:
    """Return the module of an attention, in one direction; `CompileError` if there is none."""
    memory = AttentionMemory(call)
    forward = memory.forward
    depths = (forward.sizes.depth, forward.sizes.value_depth)
    reason = why_not_such_operands(forward.q.dtype, depths)
    if reason or len({x.dtype for x in (forward.q, forward.k, forward.v, forward.out)}) > 1:
        raise CompileError("kernel-unsupported", reason or "operands are of several types")
    reaches = _reaches(memory)
    index_type = index_type_of(reaches)
    how = PrintOptions(index_type, options.is_deterministic)
    name = "attention_backward" if memory.is_backward else "attention"
    kernel = memory.kernel(name)
    printers = [ForwardPrinter] if isinstance(call, AttentionCall) else gradient_printers(call)
    stages = []
    for printer in printers:
        chosen = tiles or choose_tiles(printer.kind, forward, is_amd=options.is_amd)
        stages.append(printer(memory, chosen, how, options.precision).print())
    host = AttentionHost(memory, kernel, stages, index_type, reaches).text()
    texts = [one.text for one in stages]
    text = "\n\n".join([head(texts, host), *texts, host])
    checks = [one for one in forward.score.body if isinstance(one, Check)]
    messages = () if memory.is_backward else tuple(check.message for check in checks)
    return PrintedAttention(kernel, PrintedModule(name, text, tuple(stages), messages))


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
        scratch = tuple(self._scratch(memory))
        super().__init__(kernel, Staged((), scratch, {}), printed, index_type)
        self.memory = memory
        self.reaches = reaches

    @staticmethod
    def _scratch(memory: AttentionMemory) -> Iterator[Buffer]:
        if memory.is_backward:
            yield from (*memory.rows.values(), memory.lows, *memory.added.values())

    def text(self) -> str:
        """Return the function."""
        buffers = [self.names[buffer] for buffer in self.kernel.buffers]
        arguments = ", ".join([*buffers, "failures", *self.kernel.symbols])
        self.lines.append(f"def run({arguments}):")
        self.lines.append(f'    """Run {self.kernel.name} on its tensors."""')
        call = self.memory.call
        if isinstance(call, AttentionBackwardCall):
            self._allocate(call)
        self.choose_index_type(self.reaches)
        sizes = call.sizes if isinstance(call, AttentionCall) else call.forward.sizes
        for name, depth in (("DBLOCK", sizes.depth), ("EBLOCK", sizes.value_depth)):
            if not isinstance(depth, int):
                width = f"max(triton.next_power_of_2({python_source(depth)}), {LEAST_DOT})"
                self.spelled[name] = width
        for one in self.printed:
            self.launch(one)
        if isinstance(call, AttentionBackwardCall):
            self._sum_up(call)
        return "\n".join(self.lines) + "\n"

    def _allocate(self, call: AttentionBackwardCall) -> None:
        """Print the memory for numbers of rows, and for gradients of operands."""
        memory = self.memory
        used = {p.stands_for for one in self.printed for p in one.parameters}
        device = f"{self.names[memory.role('queries')]}.device"
        for buffer in self.staged.scratch:
            if buffer not in used:
                continue
            name, size = self.names[buffer], python_source(buffer.extent)
            target = self._target(call, buffer)
            if target is not None:
                flat = f"torch.as_strided({target}, ({size},), (1,), {target}.storage_offset())"
                self.lines.append(f"    {name} = {flat}.zero_()")
                continue
            made = "empty" if buffer in memory.rows.values() else "zeros"
            kind = torch_name(buffer.dtype)
            self.lines.append(f"    {name} = torch.{made}({size}, dtype={kind}, device={device})")

    def _target(self, call: AttentionBackwardCall, buffer: Buffer) -> str | None:
        """Return the gradient that lies as what is added up does, None if there is none."""
        for (name, own), tensor in zip(self.memory.added.items(), call.operands, strict=True):
            is_dense = same_strides(tensor.shape, tensor.strides, contiguous_strides(tensor.shape))
            if own is buffer and tensor.dtype is buffer.dtype and is_dense:
                return self.names[self.memory.role(name)]
        return None

    def _sum_up(self, call: AttentionBackwardCall) -> None:
        """Print how gradients of sinks and operands are written."""
        sizes = call.forward.sizes
        if call.sink is not None:
            rows = _tuple((sizes.batch, sizes.heads, sizes.queries))
            of_sinks = self.names[self.memory.rows["of_sinks"]]
            total = f"{of_sinks}.view({rows}).sum_to_size({_tuple(call.sink.shape)})"
            self.lines.append(f"    {self._strided('grad_sinks', call.sink)}.copy_({total})")
        for (name, buffer), tensor in zip(self.memory.added.items(), call.operands, strict=True):
            if self._target(call, buffer) is None:
                shaped = f"{self.names[buffer]}.view({_tuple(tensor.shape)})"
                self.lines.append(f"    {self._strided(name, tensor)}.copy_({shaped})")

    def _strided(self, role: str, tensor: Strided) -> str:
        name = self.names[self.memory.role(role)]
        layout = f"{_tuple(tensor.shape)}, {_tuple(tensor.strides)}"
        return f"torch.as_strided({name}, {layout}, {name}.storage_offset())"


def _tuple(dims: tuple[Dim, ...]) -> str:
    return f"({''.join(f'{python_source(dim)}, ' for dim in dims)})"
