"""The torch APIs of this package that are private or differ between versions 2.11 and 2.14.

What other packages need of the kind is in their `torch_internals`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch._decomp
import torch._dispatch.python
import torch._dynamo
import torch._dynamo.backends.common
import torch._dynamo.exc
import torch._functorch.config
import torch._functorch.partitioners
import torch._guards
import torch._higher_order_ops.flex_attention
import torch._inductor.config
import torch._ops
import torch._subclasses.fake_tensor
import torch.fx
import torch.fx.experimental.proxy_tensor
import torch.fx.experimental.symbolic_shapes
import torch.utils._python_dispatch
import torch.utils._sympy.printers

CompilerFunction = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]

FakeTensor = torch._subclasses.fake_tensor.FakeTensor
OpOverload = torch._ops.OpOverload
HigherOrderOperator = torch._ops.HigherOrderOperator
get_decompositions = torch._decomp.get_decompositions

CONTROL_FLOW_ERRORS: tuple[type[BaseException], ...] = tuple(
    getattr(torch._dynamo.exc, name)
    for name in (
        "RestartAnalysis",
        "SkipFrame",
        "TensorifyScalarRestartAnalysis",
        "SpeculationRestartAnalysis",
    )
    if hasattr(torch._dynamo.exc, name)
)
"""Exceptions that Dynamo uses to steer itself: a back end must let them through."""

GRAD_MODE_CHANGES: tuple[Any, ...] = (
    torch._C._set_grad_enabled,
    torch.autograd.grad_mode._enter_inference_mode,
)
"""Functions that Dynamo calls to turn the recording of gradients on or off."""

OPERATOR_SPACES: tuple[Any, ...] = (torch._C._nn, torch._C)
"""Modules whose functions Dynamo may call instead of those of the same name in `torch`."""

FLEX_ATTENTION: Any = torch.ops.higher_order.flex_attention
"""What `flex_attention` becomes in the graphs of Dynamo."""

ENCODER_LAYER: Any = torch._transformer_encoder_layer_fwd
"""What `torch.nn.TransformerEncoderLayer` calls where no gradients are needed."""


def aot_autograd(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: CompilerFunction,
    backward: CompilerFunction,
    inference: CompilerFunction,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Trace forward and backward of a Dynamo graph and compile each with the function given.

    Mutations of inputs stay in the graphs as trailing `copy_`. Saved tensors are chosen by min-cut
    partitioning. Donated buffers are off: they forbid `retain_graph=True`, which eager allows.
    What backward needs in memory may be recomputed too, which halves what a GELU keeps.
    `fallback_random` keeps random operators whose result is unused, so that the generator moves as
    in eager.
    """

    def forward_without_donation(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        context = torch._guards.TracingContext.try_get()
        if context is not None and context.fw_metadata is not None:
            # Where the entry says None, the check at run time takes it for a donation.
            context.fw_metadata.bw_donated_idxs = []
        return forward(module, inputs)

    compiler = torch._dynamo.backends.common.aot_autograd(
        fw_compiler=forward_without_donation,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=torch._functorch.partitioners.min_cut_rematerialization_partition,
        decompositions=dict(decompositions),
        keep_inference_input_mutations=True,
    )
    with (
        torch._functorch.config.patch(
            donated_buffer=False, ban_recompute_materialized_backward=False
        ),
        torch._inductor.config.patch(fallback_random=True),
    ):
        compiled: Callable[..., Any] = compiler(graph_module, inputs)
    return compiled


def tangents_by_memory_format() -> contextlib.AbstractContextManager[None]:
    """Let traced programs take gradients of any size, in the memory format of the outputs.

    Otherwise each is copied into a tensor with the size and the strides of the traced output, which
    a part of it does not have.
    """
    context: contextlib.AbstractContextManager[None] = torch._functorch.config.patch(
        guess_tangent_strides_as_outputs=False
    )
    return context


@contextlib.contextmanager
def outside_tracing() -> Iterator[None]:
    """Step out of the fake-tensor mode in which AOTAutograd calls compilers, to touch real data."""
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        yield


def boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark a function as taking one list of arguments, which it clears."""
    function._boxed_call = True  # type: ignore[attr-defined]  # torch's convention
    return function


def forward_output_count() -> int | None:
    """Return how many leading outputs of the graph being compiled go to the user, if known.

    The rest are tensors and symbolic integers saved for backward.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return None if metadata is None else int(metadata.num_forward)


def static_input_indices() -> frozenset[int]:
    """Return the positions of the inputs whose address stays the same: parameters and buffers."""
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return frozenset() if metadata is None else frozenset(metadata.static_input_indices or ())


def value_range(shape_env: Any, symbol: Any) -> tuple[int | None, int | None]:
    """Return the closed range that torch knows of a symbol; None where it is unbounded."""
    known = shape_env.var_to_range.get(symbol)
    if known is None:
        return None, None
    bounds = [
        None if abs(bound) >= 2**62 or not bound.is_finite else int(bound)
        for bound in (known.lower, known.upper)
    ]
    return bounds[0], bounds[1]


def has_side_effect(node: torch.fx.Node) -> bool:
    """Whether a node does more than compute its results; drawing random numbers does not count."""
    try:
        return bool(node.is_impure(impure_random=False))
    except TypeError:  # before 2.12 the question has no such option
        return bool(node.is_impure()) and not draws_random_numbers(node.target)


def draws_random_numbers(target: Any) -> bool:
    """Whether an operator draws from a random generator."""
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in target.tags
    )


def is_unsafe_to_record(target: str) -> bool:
    """Whether an operator, by its qualified name, must not be part of a CUDA graph."""
    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.rpartition(".")
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    function = getattr(packet, overload, None)
    return tag is not None and tag in getattr(function, "tags", ())


def graph_break_reasons(
    function: Callable[..., Any], *args: Any, **kwargs: Any
) -> list[tuple[str, str]]:
    """Run a function under Dynamo and return the reason and place of each graph break."""
    explanation = torch._dynamo.explain(function)(*args, **kwargs)
    reasons = []
    for reason in explanation.break_reasons:
        stack = list(reason.user_stack)
        place = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else ""
        reasons.append((str(reason.reason), place))
    return reasons


@contextlib.contextmanager
def eager_backward_compilation() -> Iterator[None]:
    """Compile backward graphs together with their forward, not at the first backward call."""
    with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
        yield


def storage_identity(tensor: torch.Tensor) -> int:
    """Return a number that two tensors, fake ones too, share when they share memory."""
    return int(tensor.untyped_storage()._cdata)


def is_plain_fake(value: Any) -> bool:
    """Whether a traced value is an ordinary dense tensor, which a `TensorType` can describe."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_nested
        and not value.is_quantized
        and value.device.type != "meta"
        and (type(value) in (FakeTensor, torch.Tensor, torch.nn.Parameter))
    )


def is_transformed(value: torch.Tensor) -> bool:
    """Whether a tensor is seen from inside a transform of `torch.func`."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


def is_batched(value: torch.Tensor) -> bool:
    """Whether a tensor stands for one element of a batch, inside `torch.func.vmap`."""
    while is_transformed(value):
        if torch._C._functorch.is_batchedtensor(value):
            return True
        value = torch._C._functorch.get_unwrapped(value)
    return False


def statically_equal(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two traced sizes are equal whatever their symbols are; adds no guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(torch.fx.experimental.symbolic_shapes.statically_known_true(a == b))


def has_no_memory(node: torch.fx.Node) -> bool:
    """Whether an input of a Dynamo graph is a tensor of zeros without memory.

    Dynamo compiles anew for others, since it looks at the kind of each tensor.
    """
    given = getattr(node.meta.get("grapharg"), "example", None)
    return isinstance(given, torch.Tensor) and torch._is_zerotensor(given)


def size_hint(size: int | torch.SymInt) -> int | None:
    """Return the value that a symbolic size had when it was traced, None if there was none."""
    if isinstance(size, int):
        return size
    return size.node.hint if size.node.has_hint() else None


def symbolic_expression(value: torch.SymInt | torch.SymBool | torch.SymFloat) -> Any:
    """Return the sympy expression of a symbolic number."""
    return value.node.expr


def size_source(expression: Any) -> str:
    """Return Python source that evaluates a sympy expression; it may use `math` and `torch`."""
    return str(torch.utils._sympy.printers.PythonPrinter().doprint(expression))


def shape_environment(value: torch.SymInt) -> Any:
    """Return the shape environment that knows the symbols of a symbolic integer."""
    return value.node.shape_env


def fake_mode_of(value: torch.Tensor) -> Any:
    """Return the mode in which a fake tensor was made, None for a tensor that is none."""
    return value.fake_mode if isinstance(value, FakeTensor) else None


def guard_count(value: torch.Tensor) -> int:
    """Return how many guards on sizes the shape environment of a fake tensor has.

    Those that leave out a single size, as slices ask whether they take all, are not counted: they
    cost one compilation more if that size comes.
    """
    mode = fake_mode_of(value)
    environment = None if mode is None else mode.shape_env
    guards = [] if environment is None else environment.guards
    return sum(not isinstance(guard.expr, sympy.Ne) for guard in guards)


def python_dispatch() -> contextlib.AbstractContextManager[None]:
    """Let operators on symbolic sizes run their decompositions in Python, as AOTAutograd does."""
    context: contextlib.AbstractContextManager[None] = (
        torch._dispatch.python.enable_python_dispatcher()
    )
    return context


def traced_graph(function: Callable[..., Any], arguments: Sequence[Any]) -> torch.fx.GraphModule:
    """Trace a function to ATen operators of which none changes anything in place."""
    make = torch.fx.experimental.proxy_tensor.make_fx
    functional = torch.func.functionalize(function)
    traced: torch.fx.GraphModule = make(functional)(*arguments)
    return traced
