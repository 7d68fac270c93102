"""Check one operator of torch's database, for one element type, on one backend, against eager."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tests.tools.compare import describe, largest_of

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "bool": torch.bool,
    "bfloat16": torch.bfloat16,
}
# Relative and absolute errors; integers must be equal.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-5),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float16: (5e-3, 1e-3),
    torch.complex64: (1e-4, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
# The contents of these are whatever lay there.
WITHOUT_CONTENTS = ("empty", "new_empty", "resize", "empty_permuted")
BACKENDS: dict[str, dict[str, Any]] = {
    "lynx": {"backend": "lynx", "options": {"strict": True}},
    "lynx-lenient": {"backend": "lynx"},
    "aot_eager": {"backend": "aot_eager"},
    "inductor": {"backend": "inductor"},
}


@dataclass(frozen=True, order=True)
class Pair:
    """An operator, by its name and variant in the database, with the name of an element type."""

    operator: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator}-{self.dtype}"


@dataclass
class Outcome:
    """What running gave: results and the gradients of inputs, or the error, as text."""

    results: Any = None
    gradients: Any = None
    error: str = ""


def name_of(op: Any) -> str:
    """Return the name under which the database has an operator, unique with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


OPERATORS = {name_of(op): op for op in op_db}


def all_pairs() -> list[Pair]:
    """Return all operators with all of our element types that they take on a CPU, in order."""
    return sorted(
        Pair(name, dtype)
        for name, op in OPERATORS.items()
        for dtype in DTYPES
        if DTYPES[dtype] in op.supported_dtypes("cpu")
    )


def differentiable(pair: Pair) -> bool:
    """Tell whether backward is to be checked too."""
    op, dtype = OPERATORS[pair.operator], DTYPES[pair.dtype]
    return bool(op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"))


def check(pair: Pair, backends: list[str], samples: int = 2, device: str = "cpu") -> dict[str, str]:
    """Return, by backend, `pass`, `eager fails`, or how it failed on one of the first samples."""
    verdicts = dict.fromkeys(backends, "pass")
    for sample in samples_of(pair, samples, device):
        expected = run(pair, sample, lambda function: function)
        if expected.error:
            continue
        for backend in backends:
            if verdicts[backend] == "pass":
                actual = run(pair, sample, compiler_of(backend))
                verdict = compare(pair, actual, expected)
                if verdict != "pass" and not is_as_accurate(pair, sample, actual, expected):
                    verdicts[backend] = verdict
    return verdicts


def compiler_of(backend: str) -> Callable[[Any], Any]:
    """Return what turns a function into a compiled one, from scratch."""

    def compile_anew(function: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(function, **BACKENDS[backend])

    return compile_anew


def samples_of(pair: Pair, count: int, device: str = "cpu") -> list[Any]:
    """Return the first samples of the database; always the same."""
    op = OPERATORS[pair.operator]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = op.sample_inputs(device, DTYPES[pair.dtype], requires_grad=differentiable(pair))
        return list(itertools.islice(made, count))


def run(pair: Pair, sample: Any, compiler: Callable[[Any], Any]) -> Outcome:
    """Run forward and, where there is one, backward, on copies of a sample's inputs."""
    op = OPERATORS[pair.operator].get_op()

    def call(*arguments: Any, **keywords: Any) -> Any:
        return op(*arguments, **keywords)

    arguments, keywords = own_copy(((sample.input, *sample.args), sample.kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(1)
            results = compiler(call)(*arguments, **keywords)
            return Outcome(results, gradients_of(results, (arguments, keywords)))
        except Exception as error:  # whatever an operator throws is a finding
            return Outcome(error=f"{type(error).__name__}: {str(error)[:300]}")


def own_copy(inputs: Any) -> Any:
    """Copy tensors, keeping strides and what requires grad; generators and the like too."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return copy.copy(leaf)

    return pytree.tree_map(one, inputs)


def gradients_of(results: Any, inputs: Any) -> Any:
    """Return the gradients of the inputs under fixed gradients of the results."""
    outputs = [r for r in pytree.tree_leaves(results) if is_differentiable(r) and r.requires_grad]
    leaves = [x for x in pytree.tree_leaves(inputs) if is_differentiable(x) and x.requires_grad]
    if not outputs or not leaves:
        return None
    torch.manual_seed(2)
    seeds = [torch.randn(o.shape, dtype=torch.float32).to(o) for o in outputs]
    return torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)


def is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def compare(pair: Pair, actual: Outcome, expected: Outcome) -> str:
    """Return `pass` or the first difference."""
    if actual.error:
        return actual.error
    contents = not pair.operator.startswith(WITHOUT_CONTENTS)
    for kind in ("results", "gradients"):
        ours, our_tree = pytree.tree_flatten(getattr(actual, kind))
        theirs, their_tree = pytree.tree_flatten(getattr(expected, kind))
        if our_tree != their_tree:
            return f"{kind}: structure {our_tree} is not {their_tree}"
        for a, b in zip(ours, theirs, strict=True):
            if difference := difference_of(a, b, contents, layout=kind == "results"):
                return f"{kind}: {difference}"
    return "pass"


def is_as_accurate(pair: Pair, sample: Any, actual: Outcome, expected: Outcome) -> bool:
    """Tell whether only digits differ, and errors against `f64` are at most twice those of eager.

    That is so where eager rounds between steps, and a backend does not.
    """
    if actual.error or pair.dtype not in ("float32", "bfloat16"):
        return False
    wide = copy.copy(sample)
    wide.input, wide.args, wide.kwargs = widened((sample.input, sample.args, sample.kwargs))
    true = run(pair, wide, lambda function: function)
    if true.error:
        return False
    for kind in ("results", "gradients"):
        values = (getattr(outcome, kind) for outcome in (actual, expected, true))
        ours, theirs, exact = (pytree.tree_leaves(value) for value in values)
        if not len(ours) == len(theirs) == len(exact):
            return False
        for leaves in zip(ours, theirs, exact, strict=True):
            if not _is_leaf_accurate(*leaves, layout=kind == "results"):
                return False
    return True


def _is_leaf_accurate(actual: Any, expected: Any, true: Any, layout: bool) -> bool:
    if not is_differentiable(expected) or not difference_of(actual, expected, True, layout):
        return not difference_of(actual, expected, True, layout)
    if describe(actual, layout) != describe(expected, layout) or true.shape != expected.shape:
        return False
    if not bool((actual.isfinite() & expected.isfinite() & true.isfinite()).all()):
        return False
    allowed = 2 * largest_of(expected - true) + torch.finfo(expected.dtype).eps * largest_of(true)
    return largest_of(actual - true) <= allowed


def widened(inputs: Any) -> Any:
    """Return inputs with `f64` for floating types."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.detach().double().requires_grad_(leaf.requires_grad)
        return leaf

    return pytree.tree_map(one, inputs)


def difference_of(actual: Any, expected: Any, contents: bool, layout: bool) -> str:
    """Return in what two leaves differ, or nothing."""
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        same = type(actual) is type(expected) and (actual == expected or actual != actual)
        return "" if same else f"{actual!r} is not {expected!r}"
    ours, theirs = describe(actual, layout), describe(expected, layout)
    if ours != theirs:
        return "; ".join(f"{k} {ours[k]} is not {theirs[k]}" for k in ours if ours[k] != theirs[k])
    if not contents:
        return ""
    relative, absolute = TOLERANCES.get(expected.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(
            actual.detach(), expected.detach(), rtol=relative, atol=absolute, equal_nan=True
        )
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""
