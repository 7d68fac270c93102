"""Print how segments call attentions, each of which is a file of its own."""

from __future__ import annotations

from collections.abc import Callable

from lynx.ir.kernel import Kernel
from lynx.ir.native import (
    AttentionBackwardCall,
    AttentionCall,
    KernelCall,
    NativeCall,
    Pointer,
    Strided,
)

from .attention import AttentionText, ForwardPrinter
from .attention_backward import BackwardPrinter
from .text import SymbolNames, dim

NO_MEMORY = "out of memory for the scratch space of kernels"


def attention_text(call: AttentionCall | AttentionBackwardCall) -> AttentionText:
    """Return the file of an attention; `CompileError` if it cannot be printed."""
    if isinstance(call, AttentionBackwardCall):
        return BackwardPrinter(call).print()
    return ForwardPrinter(call).print()


def kernel_of(call: NativeCall) -> Kernel:
    """Return the kernel by which a call is known that could not be compiled."""
    if isinstance(call, AttentionBackwardCall):
        return call.derivative
    assert isinstance(call, AttentionCall | KernelCall), call
    return call.score if isinstance(call, AttentionCall) else call.kernel


def call_lines(
    call: AttentionCall | AttentionBackwardCall, text: AttentionText, name: str,
    message: Callable[[str], int], pointer: Callable[[Pointer], str], names: SymbolNames,
) -> list[str]:  # fmt: skip
    """Return the statements that call the function of an attention."""
    forward = call if isinstance(call, AttentionCall) else call.forward
    place = [f"    /* {str(forward.loc).replace('*/', '* /')} */"] if forward.loc.is_known else []
    sizes = forward.sizes
    fields = {
        name: dim(getattr(sizes, name), names)
        for name in (
            "batch", "heads", "kv_heads", "queries", "keys", "depth", "value_depth",
        )
    }  # fmt: skip
    for field, tensor in _tensors(call).items():
        if tensor is not None:
            fields[field] = _strided(tensor, pointer, names)
    fields["keep_scale"] = repr(forward.keep_scale)
    operands = [f"(void *)({pointer(at)})" for at in forward.operands]
    grads: list[str] = []
    if isinstance(call, AttentionBackwardCall):
        grads = [pointer(tensor.pointer) for tensor in call.operands]
        if call.sink is not None:
            shape = ", ".join(dim(size, names) for size in call.sink.shape)
            fields["sink_shape"] = f"{{{shape}}}"
    codes = [str(message(said)) for said in text.messages]
    numbers = [names(symbol) for symbol in text.arguments.symbols]
    return [
        "  {",
        *place,
        f"    void *operands[] = {{{', '.join([*operands, '0'])}}};",
        f"    void *grads[] = {{{', '.join([*(f'(void *)({g})' for g in grads), '0'])}}};",
        f"    const i64 numbers[] = {{{', '.join([*numbers, '0'])}}};",
        f"    const i64 codes[] = {{{', '.join([*codes, '0'])}}};",
        "    struct attention x = {",
        *(f"      .{field} = {value}," for field, value in fields.items()),
        "      .operands = operands, .grads = grads, .numbers = numbers,",
        "      .failed = &failed, .codes = codes,",
        "      .take = lynx_take, .give = lynx_give, .run = lynx_run};",
        f"    if (!{name}_attention(&x)) return {message(NO_MEMORY)};",
        "  }",
    ]


def _tensors(call: AttentionCall | AttentionBackwardCall) -> dict[str, Strided | None]:
    if isinstance(call, AttentionCall):
        return {name: getattr(call, name) for name in ("q", "k", "v", "out", "lse", "sink", "keep")}
    grads = {f"grad_{name}": getattr(call, name) for name in ("q", "k", "v", "sink")}
    more = {"grad_out": call.grad_out, "grad_lse": call.grad_lse}
    return {**_tensors(call.forward), **more, **grads}


def _strided(tensor: Strided, pointer: Callable[[Pointer], str], names: SymbolNames) -> str:
    steps = ", ".join(dim(stride, names) for stride in tensor.strides)
    return f"{{{pointer(tensor.pointer)}, {{{steps}}}}}"
