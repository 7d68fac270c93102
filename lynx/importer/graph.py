"""Import an FX graph of ATen operators, as AOTAutograd makes it, into a Lynx graph."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import sympy
import torch
import torch.fx

from lynx.compat import (
    OpOverload,
    draws_random_numbers,
    forward_output_count,
    has_side_effect,
    is_plain_fake,
    static_input_indices,
    storage_identity,
)
from lynx.ir.core import (
    Builder,
    Foreign,
    Graph,
    InputSpec,
    Mutation,
    OutputSpec,
    Value,
    flatten,
)
from lynx.ir.dims import Dim, free_symbols, symbol
from lynx.ir.errors import CompileError, LynxError
from lynx.ir.ops.aten import Aten, Resource, Symbolic
from lynx.ir.types import DType, ScalarType, TensorType, Type, is_same_type

from .dims import DimReader, evaluate_size
from .locations import location_of
from .registry import RULES, Context, Decline
from .targets import name_of_target
from .types import ABSENT, constant, strides_of, type_of


def import_graph(module: torch.fx.GraphModule, name: str) -> Graph:
    """Return the Lynx graph of an FX graph, whose nodes hold traced values in `meta["val"]`.

    Every operator without an import rule becomes an `aten` op with the reason. `CompileError` if
    the graph holds something that value semantics cannot express: a mutation that is no trailing
    `copy_`, a size that no input determines.
    """
    return _Importer(module, name).run()


class _Importer:
    def __init__(self, module: torch.fx.GraphModule, name: str) -> None:
        self.module = module
        self.builder = Builder(name)
        self.dims = DimReader()
        self.env: dict[torch.fx.Node, Any] = {}
        self.mutations: dict[torch.fx.Node, Value] = {}
        self.layouts: dict[Value, tuple[tuple[Dim, ...], Dim]] = {}
        self.bound: set[str] = set()
        self.outputs: list[Value | None] = []
        self.output_specs: list[OutputSpec] = []

    def run(self) -> Graph:
        static = static_input_indices() if self.builder.name != "backward" else frozenset()
        for node in self.module.graph.nodes:
            self.builder.loc = location_of(node)
            if node.op == "placeholder":
                self._placeholder(node, static)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._output(node)
            else:
                raise CompileError("unknown-node", f"an FX graph with a {node.op} node")
        mutations = tuple(Mutation(self.env[node], v) for node, v in self.mutations.items())
        self._check_symbols()
        return self.builder.build(
            tuple(self.outputs), tuple(self.output_specs), mutations, self.dims.symbols
        )

    # inputs and constants

    def _placeholder(self, node: torch.fx.Node, static: frozenset[int]) -> None:
        traced = node.meta.get("val")
        type_ = type_of(traced, self.dims)
        spec = InputSpec()
        if isinstance(type_, TensorType):
            assert isinstance(traced, torch.Tensor)
            index = len(self.builder.inputs)
            strides = strides_of(traced, self.dims)
            if traced.is_neg() or traced.is_conj():
                strides = None  # its memory holds other numbers, so nobody may count on it
            offset = self.dims.read(traced.storage_offset())
            spec = InputSpec(strides, offset, index in static)
        value = self.builder.input(str(node.name), type_, spec)
        self._bind(type_)
        self._remember_layout(value, traced)
        self.env[node] = value

    def _attribute(self, node: torch.fx.Node) -> Any:
        target: Any = self.module
        for part in str(node.target).split("."):
            target = getattr(target, part)
        if not isinstance(target, torch.Tensor):
            return self._resource(str(node.target), target)
        type_ = type_of(target, self.dims)
        if not isinstance(type_, TensorType):
            raise CompileError(
                "constant-tensor", f"a constant that is no dense tensor: {node.target}"
            )
        key = self._resource(str(node.target), target.detach()).text
        value = self.builder.emit(Resource(key, type_.dtype, type_.shape, type_.device))
        self._remember_layout(value, target)
        return value

    def _resource(self, name: str, target: Any) -> Foreign:
        self.builder.resources[name] = target
        return Foreign("resource", name)

    # operators

    def _call(self, node: torch.fx.Node) -> None:
        target = node.target
        source = self._argument(node.args[0]) if target is operator.getitem else None
        if isinstance(source, tuple) and isinstance(node.args[1], int):
            self.env[node] = source[node.args[1]]
        elif target is torch.ops.aten.copy_.default and self._is_input(node.args[0]):
            self._mutation(node)
        elif _is_mutable(target):
            raise CompileError("mutation", f"{target} changes its operand", self.builder.loc)
        elif (known := self._known_size(node)) is not None:
            self.env[node] = known
        else:
            self._operator(node)

    def _is_input(self, item: Any) -> bool:
        return isinstance(item, torch.fx.Node) and item.op == "placeholder"

    def _mutation(self, node: torch.fx.Node) -> None:
        """Record a trailing `copy_` into an input. Nothing may read the input after it."""
        target, source = node.args[0], node.args[1]
        assert isinstance(target, torch.fx.Node)
        if target in self.mutations or not isinstance(self._argument(source), Value):
            raise CompileError("mutation", f"{target} is written twice", self.builder.loc)
        following = node.next
        while following.op != "output":
            if target in following.all_input_nodes or node in following.all_input_nodes:
                raise CompileError("mutation", f"{target} is read after it is written")
            following = following.next
        value = self._argument(source)
        if value.type != self.env[target].type:
            raise CompileError("mutation", f"{self.env[target].type} is given {value.type}")
        self.mutations[target] = value
        self.env[node] = self.env[target] if value is self.env[target] else value

    def _known_size(self, node: torch.fx.Node) -> Dim | None:
        """Return the value of a node that computes a size from symbols already known."""
        traced = node.meta.get("val")
        if isinstance(traced, bool) or not isinstance(traced, int | torch.SymInt):
            return None
        if has_side_effect(node):
            return None
        dim = self.dims.read(traced)
        self._derive_sizes()
        return dim if self.bound.issuperset(free_symbols([dim])) else None

    def _operator(self, node: torch.fx.Node) -> None:
        target = name_of_target(node.target)
        arguments = tuple(self._argument(a) for a in node.args)
        keywords = {k: self._argument(a) for k, a in node.kwargs.items()}
        if "val" not in node.meta:  # the partitioner adds some, such as to save generator states
            node.meta["val"] = Untraced()
        traced = list(flatten_results(node.meta["val"]))
        types = tuple(type_of(value, self.dims) for value in traced)
        self._derive_sizes()
        strides = tuple(strides_of(value, self.dims) for value in traced)
        results = self._structured(target, arguments, keywords, types, strides)
        if isinstance(results, str):
            results = self._through_torch(
                node, target, arguments, keywords, types, strides, reason=results
            )
        for type_ in types:
            self._bind(type_)
        for value, traced_value in zip(results, traced, strict=True):
            self._remember_layout(value, traced_value)
        self.env[node] = _nest(node.meta.get("val"), iter(results))

    def _structured(
        self,
        target: str,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        types: tuple[Type, ...],
        strides: tuple[tuple[Dim, ...] | None, ...],
    ) -> tuple[Value | None, ...] | str:
        """Import by the operator's rule, or return the reason why that is not possible."""
        rule = RULES.get(target)
        if rule is None:
            return "no structured op"
        values = list(flatten((arguments, tuple(keywords.values()))))
        present = tuple(type_ for type_ in types if type_ != ABSENT)
        reason = _unstructured(present) or _unstructured(tuple(value.type for value in values))
        if not reason and not self._has_known_size(present):
            reason = "the size of its result is told by nothing but the result"
        if reason:
            return reason
        arguments = self._with_sizes(arguments)
        keywords = {name: self._with_sizes(item) for name, item in keywords.items()}
        mark = len(self.builder.ops)
        context = Context(self.builder, target, types, strides, self.layouts, self.dims.ranges)
        try:
            imported = rule(context, *arguments, **keywords)
        except LynxError as error:
            imported = Decline(error.message)
        if not isinstance(imported, Decline):
            results = imported if isinstance(imported, tuple) else (imported,)
            given = tuple(ABSENT if value is None else value.type for value in results)
            if len(given) == len(types) and all(map(is_same_type, given, types)):
                return results
            imported = Decline(f"the op would give {_listed(given)}, torch gives {_listed(types)}")
        del self.builder.ops[mark:]
        return imported.reason

    def _has_known_size(self, types: tuple[Type, ...]) -> bool:
        """Whether the program knows the sizes of results before it has them.

        AOTAutograd may have merged ops after tracing, and left types that name a size which is by
        now that of another symbol.
        """
        shapes = (type_.shape for type_ in types if isinstance(type_, TensorType))
        return all(self.bound.issuperset(free_symbols(shape)) for shape in shapes)

    def _with_sizes(self, item: Any) -> Any:
        """Replace integers that are computed while running by their expressions."""
        if isinstance(item, tuple):
            return tuple(map(self._with_sizes, item))
        if isinstance(item, Value) and isinstance(item.type, ScalarType):
            dim = item.type.expr
            known = dim is not None and self.bound.issuperset(free_symbols([dim]))
            return dim if known else item
        return item

    def _through_torch(
        self,
        node: torch.fx.Node,
        target: str,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        types: tuple[Type, ...],
        strides: tuple[tuple[Dim, ...] | None, ...],
        *,
        reason: str,
    ) -> tuple[Value, ...]:
        named = tuple(keywords.items())
        operands = list(flatten((arguments, named)))
        layouts = [self.layouts.get(operand) for operand in operands]
        return self.builder.add(
            Aten(
                target,
                arguments,
                named,
                types,
                operand_strides=tuple(None if known is None else known[0] for known in layouts),
                strides=strides,
                random=draws_random_numbers(node.target),
                effect=has_side_effect(node),
                reason=reason,
                sequences=_sequences_of(node),
            )
        ).results

    def _argument(self, item: Any) -> Any:
        if isinstance(item, torch.fx.Node):
            return self.env[item]
        if isinstance(item, tuple | list):
            return tuple(self._argument(part) for part in item)
        if isinstance(item, dict) and _is_plain_dict(item):
            return tuple(self._argument(part) for part in item.values())
        if isinstance(item, slice | dict):
            return self._resource(f"constant{len(self.builder.resources)}", item)
        if isinstance(item, torch.SymInt):
            return self.dims.read(item)
        result = constant(item)
        if result is NotImplemented:
            return self._resource(f"constant{len(self.builder.resources)}", item)
        return result

    # outputs

    def _output(self, node: torch.fx.Node) -> None:
        user_outputs = forward_output_count() if self.builder.name == "forward" else None
        owners = self._storage_owners(node)
        for index, item in enumerate(_outputs(node)):
            result = self._argument(item)
            if result is not None and not isinstance(result, Value):
                result = self.builder.emit(Symbolic(result))
            self.outputs.append(result)
            saved = user_outputs is not None and index >= user_outputs
            traced = item.meta.get("val") if isinstance(item, torch.fx.Node) else None
            self.output_specs.append(self._output_spec(traced, saved, owners))

    def _output_spec(self, traced: Any, saved: bool, owners: dict[int, list[str]]) -> OutputSpec:
        if not is_plain_fake(traced):
            return OutputSpec(saved=saved)
        sharing = owners[storage_identity(traced)]
        group = list(owners).index(storage_identity(traced)) if len(sharing) > 1 else -1
        fresh = "input" not in sharing
        return OutputSpec(strides_of(traced, self.dims), fresh, saved, group if fresh else -1)

    def _storage_owners(self, node: torch.fx.Node) -> dict[int, list[str]]:
        """Return, for each storage, which inputs and outputs of the traced program lie in it."""
        owners: dict[int, list[str]] = {}
        for other in self.module.graph.nodes:
            if other.op == "placeholder" and is_plain_fake(traced := other.meta.get("val")):
                owners.setdefault(storage_identity(traced), []).append("input")
        for item in _outputs(node):
            if isinstance(item, torch.fx.Node) and is_plain_fake(traced := item.meta.get("val")):
                owners.setdefault(storage_identity(traced), []).append("output")
        return owners

    # symbols and layouts

    def _bind(self, type_: Type) -> None:
        """Note the symbols that a value of this type determines when the program runs."""
        if isinstance(type_, ScalarType) and isinstance(type_.expr, sympy.Symbol):
            self.bound.add(type_.expr.name)
        elif isinstance(type_, TensorType):
            self.bound.update(d.name for d in type_.shape if isinstance(d, sympy.Symbol))

    def _derive_sizes(self) -> None:
        """Compute the derived symbols that nothing has told, once what they depend on is known."""
        for name, (source, inner) in self.dims.derived.items():
            if name not in self.bound and self.bound.issuperset(inner):
                type_ = ScalarType("int", symbol(name))
                values = tuple((part, symbol(part)) for part in inner)
                reason = "a size that is no polynomial"
                self.builder.add(Aten(_SIZE, (source,), values, (type_,), reason=reason))
                self.bound.add(name)

    def _remember_layout(self, value: Value | None, traced: Any) -> None:
        strides = strides_of(traced, self.dims)
        if value is not None and strides is not None and isinstance(value.type, TensorType):
            self.layouts.setdefault(value, (strides, self.dims.read(traced.storage_offset())))

    def _check_symbols(self) -> None:
        missing = [s.name for s in self.dims.symbols if s.name not in self.bound]
        if missing:
            raise CompileError("unbound-symbol", f"no input determines {', '.join(missing)}")


_SIZE = f"python.{evaluate_size.__module__}.{evaluate_size.__name__}"


def _outputs(node: torch.fx.Node) -> tuple[Any, ...]:
    """Return what an output node returns, of which AOTAutograd makes a flat sequence."""
    (outputs,) = node.args
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def _sequences_of(node: torch.fx.Node) -> tuple[str, ...]:
    """Return the kinds of the sequences in the arguments of an operator in Python."""
    if isinstance(node.target, OpOverload):
        return ()
    kinds: list[str] = []
    for item in (*node.args, *node.kwargs.values()):
        _collect_kinds(item, kinds)
    return () if all(kind == "list" for kind in kinds) else tuple(kinds)


def _collect_kinds(item: Any, kinds: list[str]) -> None:
    if isinstance(item, dict) and _is_plain_dict(item):
        kinds.append(" ".join(("dict", *item)))
        parts: Iterable[Any] = item.values()
    elif isinstance(item, tuple | list):
        kinds.append("tuple" if isinstance(item, tuple) else "list")
        parts = item
    else:
        return
    for part in parts:
        _collect_kinds(part, kinds)


def _is_plain_dict(item: dict[Any, Any]) -> bool:
    """Whether the keys of a dictionary are words."""
    return all(isinstance(key, str) and key.isidentifier() for key in item)


class Untraced:
    """Stands for the results of a node that was not traced, kept as one object."""


def flatten_results(traced: Any) -> Iterator[Any]:
    """Yield the results of an operator in the order of what tracing saw; None alone is none."""
    if traced is None:
        return
    if isinstance(traced, tuple | list):
        for part in traced:
            if isinstance(part, tuple | list):
                yield from flatten_results(part)
            else:
                yield part
    else:
        yield traced


def _nest(traced: Any, results: Iterator[Value | None]) -> Any:
    """Give results the structure of what tracing saw."""
    if traced is None:
        return None
    if isinstance(traced, tuple | list):
        return tuple(
            _nest(part, results) if isinstance(part, tuple | list) else next(results)
            for part in traced
        )
    return next(results)


def _unstructured(types: tuple[Type, ...]) -> str:
    """Return why values of these types need torch, or the empty text."""
    for type_ in types:
        if isinstance(type_, TensorType):
            if type_.dtype.is_complex:
                return "complex numbers run through torch"
            if type_.dtype in _EXOTIC:
                return f"{type_.dtype} runs through torch"
        elif not isinstance(type_, ScalarType) or type_.kind != "int" or type_.expr is None:
            return f"{type_} runs through torch"
    return ""


_EXOTIC = frozenset(
    d for d in DType if d.value.startswith("f8") or d.value in ("u16", "u32", "u64")
)


def _listed(types: tuple[Type, ...]) -> str:
    return ", ".join(map(str, types))


def _is_mutable(target: Any) -> bool:
    return isinstance(target, OpOverload) and target._schema.is_mutable
