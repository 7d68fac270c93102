"""Check the invariants of a graph, which every pass may rely on and must keep.

1.  Operands, outputs and the values of mutations are defined before they are used
    (`used-before-definition`), in this graph and not in another (`foreign-value`).
2.  Each value is defined once: no input and no op occurs twice (`defined-twice`).
3.  The results of an op are its own (`foreign-result`) and have the types that its inference gives
    (`type-mismatch`, or the error of the inference).
4.  Sizes are not negative (`negative-size`).
5.  Every symbol in a type, a spec or an attribute is declared (`undeclared-symbol`).
6.  A symbol is declared once (`symbol-declared-twice`) and its range is not empty
    (`empty-symbol-range`).
7.  There is one spec for each input and output (`spec-count`), and its strides have the rank of the
    tensor (`stride-count`).
8.  A mutation writes to an input (`mutation-target`) a value of the same type (`mutation-type`),
    to each at most once (`mutated-twice`).
9.  Resources that are named exist, unless the graph holds none, as after parsing
    (`unknown-resource`).
10. A sharding has an entry for each dimension (`sharding-rank`), uses a mesh axis once
    (`axis-used-twice`), combines partial values in a known way (`unknown-reduction`), and names
    axes of the graph's mesh, if it has one (`unknown-axis`).
11. An output lies on the mesh as promised (`output-sharding`). How values lie is derived from the
    operands of each op (`Op.derive_shardings`), so a collective that is missing, doubled or wrong
    is an error of types.
12. A region keeps these invariants like a graph, with values of its own only. It holds no region,
    and no op that draws random numbers, has an effect or reads a resource (`bad-region`).
13. What is started arrives before it is read: see `schedule_verifier`.

The first broken invariant is reported, with the op and the place in the user's model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy

from .core import Foreign, Graph, Op, OutputSpec, Value
from .dims import Dim
from .errors import CompileError
from .ops.aten import Resource
from .ops.fusion import Region
from .printer import format_op, format_range
from .schedule_verifier import verify_schedule
from .sharding import REDUCTIONS, Sharding, replicated
from .types import OpaqueType, ScalarType, TensorType, Type, is_same_type


def verify(graph: Graph, *, known: Graph | None = None) -> None:
    """Raise `CompileError` at the first broken invariant.

    Ops and types that the graph shares with `known`, which was verified, are not checked again but
    for where they stand: they cannot have changed.
    """
    _Verifier(graph, known).run()


class _Verifier:
    def __init__(self, graph: Graph, known: Graph | None) -> None:
        self.graph = graph
        self.symbols = {entry.name for entry in graph.symbols}
        self.axes = None if graph.mesh is None else {name for name, _ in graph.mesh.axes}
        self.defined: set[Value] = set()
        self.seen_ops: set[Op] = set()
        # Types repeat, so each is checked once.
        self.good_types: set[Type] = set()
        same_scope = (
            known is not None
            and known.symbols == graph.symbols
            and known.mesh == graph.mesh
            and known.resources is graph.resources
        )
        self.known_ops = set(known.ops) if known is not None and same_scope else set()

    def run(self) -> None:
        self.check_symbols()
        self.check_inputs()
        for op in self.graph.ops:
            self.check_operands(op)
            if op not in self.known_ops:
                self.check_types(op)
                self.check_attributes(op)
                for region in op.regions.values():
                    _RegionVerifier(self.graph, op, region).run()
            self.define(op)
        self.check_outputs()
        self.check_mutations()
        verify_schedule(self.graph)

    def fail(self, code: str, message: str, op: Op | None = None) -> CompileError:
        if op is None:
            return CompileError(code, f"graph '{self.graph.name}': {message}")
        return CompileError(code, f"{message}, in '{format_op(op)}'", op.loc)

    def check_symbols(self) -> None:
        seen: set[str] = set()
        for entry in self.graph.symbols:
            if entry.name in seen:
                raise self.fail("symbol-declared-twice", f"symbol {entry.name} is declared twice")
            seen.add(entry.name)
            if None not in (entry.lower, entry.upper) and entry.lower > entry.upper:  # type: ignore[operator]  # neither is None
                raise self.fail("empty-symbol-range", f"no integer is {format_range(entry)}")

    def check_inputs(self) -> None:
        graph = self.graph
        if len(graph.inputs) != len(graph.input_specs):
            counts = f"{len(graph.inputs)} inputs and {len(graph.input_specs)} specs"
            raise self.fail("spec-count", f"expected one spec for each input, got {counts}")
        for value, spec in zip(graph.inputs, graph.input_specs, strict=True):
            what = f"input '{value.name}'"
            if value in self.defined:
                raise self.fail("defined-twice", f"{what} occurs twice")
            if value.op is not None:
                raise self.fail("foreign-value", f"{what} is the result of an op")
            self.defined.add(value)
            self.check_type(value.type, what)
            self.check_strides(spec.strides, value.type, what)
            self.check_declared((spec.offset,), what)

    def check_operands(self, op: Op) -> None:
        if op in self.seen_ops:
            raise self.fail("defined-twice", "the op occurs twice", op)
        for operand in op.operands:
            if operand not in self.defined:
                raise self.undefined(operand, "operand", op)

    def define(self, op: Op) -> None:
        self.seen_ops.add(op)
        self.defined.update(op.results)

    def undefined(self, value: Value, what: str, op: Op | None = None) -> CompileError:
        """Return the error for a value that is not defined, which tells whether it ever is."""
        if value.op is not None and value.op in set(self.graph.ops):
            return self.fail("used-before-definition", f"{what} {value} is defined only later", op)
        return self.fail("foreign-value", f"{what} {value} belongs to another graph", op)

    def check_types(self, op: Op) -> None:
        for index, result in enumerate(op.results):
            if result.op is not op or result.index != index:
                raise self.fail("foreign-result", f"result {index} is not the op's own", op)
        types = op.result_types()
        if len(types) != len(op.results):
            counts = f"{len(op.results)} results, inference gives {len(types)}"
            raise self.fail("type-mismatch", f"has {counts}", op)
        for result, type_ in zip(op.results, types, strict=True):
            if not is_same_type(result.type, type_):
                message = f"result of type {result.type}, inference gives {type_}"
                raise self.fail("type-mismatch", message, op)
            self.check_type(type_, "result", op)

    def check_type(self, type_: Type, what: str, op: Op | None = None) -> None:
        if type_ in self.good_types or isinstance(type_, OpaqueType):
            return
        if isinstance(type_, ScalarType):
            self.check_declared((type_.expr,), what, op)
        else:
            for dim in type_.shape:
                if isinstance(dim, int) and dim < 0:
                    message = f"{what} of type {type_} has the negative size {dim}"
                    raise self.fail("negative-size", message, op)
            self.check_declared(type_.shape, what, op)
            if type_.sharding is not None:
                self.check_sharding(type_, type_.sharding, what, op)
        self.good_types.add(type_)

    def check_sharding(
        self, type_: TensorType, sharding: Sharding, what: str, op: Op | None
    ) -> None:
        if len(sharding.dims) != type_.rank:
            message = f"{what} of type {type_} has a sharding of {len(sharding.dims)} dimensions"
            raise self.fail("sharding-rank", message, op)
        used: set[str] = set()
        for axis in sharding.axes:
            if axis in used:
                message = f"{what} of type {type_} uses the mesh axis '{axis}' twice"
                raise self.fail("axis-used-twice", message, op)
            used.add(axis)
            if self.axes is not None and axis not in self.axes:
                message = f"{what} of type {type_} uses '{axis}', which is no axis of the mesh"
                raise self.fail("unknown-axis", message, op)
        for partial in sharding.partial:
            if partial.reduction not in REDUCTIONS:
                known = ", ".join(REDUCTIONS)
                message = f"{what} of type {type_} has {partial}, expected one of {known}"
                raise self.fail("unknown-reduction", message, op)

    def check_declared(self, items: Iterable[Any], what: str, op: Op | None = None) -> None:
        for item in items:
            if isinstance(item, sympy.Expr):
                for name in sorted(symbol.name for symbol in item.free_symbols):
                    if name not in self.symbols:
                        message = f"{what} mentions {name}, which the graph does not declare"
                        raise self.fail("undeclared-symbol", message, op)
            elif isinstance(item, tuple):
                self.check_declared(item, what, op)
            elif isinstance(item, Foreign) and item.kind == "resource":
                self.check_resource(item.text, op)

    def check_attributes(self, op: Op) -> None:
        for name in op.attribute_fields:
            item = getattr(op, name)
            if isinstance(item, sympy.Expr | tuple):
                self.check_declared((item,), f"attribute '{name}'", op)
        for name in op.operand_fields:
            item = getattr(op, name)
            if not isinstance(item, Value):
                self.check_declared((item,), f"operand '{name}'", op)
        if isinstance(op, Resource):
            self.check_resource(op.key, op)

    def check_resource(self, key: str, op: Op | None) -> None:
        resources = self.graph.resources
        if resources and key not in resources:
            raise self.fail("unknown-resource", f"the graph holds no resource '{key}'", op)

    def check_strides(self, strides: tuple[Dim, ...] | None, type_: Type, what: str) -> None:
        if strides is None:
            return
        rank = type_.rank if isinstance(type_, TensorType) else None
        if len(strides) != rank:
            message = f"{what} of type {type_} has {len(strides)} strides"
            raise self.fail("stride-count", message)
        self.check_declared(strides, what)

    def check_outputs(self) -> None:
        graph = self.graph
        if len(graph.outputs) != len(graph.output_specs):
            counts = f"{len(graph.outputs)} outputs and {len(graph.output_specs)} specs"
            raise self.fail("spec-count", f"expected one spec for each output, got {counts}")
        for index, value in enumerate(graph.outputs):
            spec: OutputSpec = graph.output_specs[index]
            if value is None:
                continue
            if value not in self.defined:
                raise self.undefined(value, f"output {index}")
            self.check_strides(spec.strides, value.type, f"output {index}")
            self.check_promise(spec, value, index)

    def check_promise(self, spec: OutputSpec, value: Value, index: int) -> None:
        if spec.sharding is None or not isinstance(value.type, TensorType):
            return
        actual = value.type.sharding or replicated(value.type.rank)
        if actual != spec.sharding:
            message = f"output {index} lies as {actual}, promised was {spec.sharding}"
            raise self.fail("output-sharding", message)

    def check_mutations(self) -> None:
        inputs = set(self.graph.inputs)
        mutated: set[Value] = set()
        for target, value in ((m.target, m.value) for m in self.graph.mutations):
            if target not in inputs:
                raise self.fail("mutation-target", f"{target} is mutated but is no input")
            if target in mutated:
                raise self.fail("mutated-twice", f"input '{target.name}' is mutated twice")
            mutated.add(target)
            if value not in self.defined:
                raise self.undefined(value, f"the new value of '{target.name}',")
            if not is_same_type(target.type, value.type):
                message = f"input '{target.name}' of type {target.type} cannot become {value.type}"
                raise self.fail("mutation-type", message)


class _RegionVerifier(_Verifier):
    """Checks a region as the graph that it would be."""

    def __init__(self, graph: Graph, owner: Op, body: Region) -> None:
        region = Graph(
            "region",
            body.parameters,
            body.ops,
            body.results,
            symbols=graph.symbols,
            resources=graph.resources,
            mesh=graph.mesh,
        )
        super().__init__(region, None)
        self.owner = owner

    def fail(self, code: str, message: str, op: Op | None = None) -> CompileError:
        if op is None:
            text = f"in the region, {message}, in '{format_op(self.owner)}'"
            return CompileError(code, text, self.owner.loc)
        return super().fail(code, message, op)

    def check_attributes(self, op: Op) -> None:
        if op.region_fields:
            raise self.fail("bad-region", "a region holds another one", op)
        if op.is_random:
            raise self.fail("bad-region", "a region draws random numbers", op)
        if not op.is_removable:
            raise self.fail("bad-region", "a region holds an op with an effect", op)
        if isinstance(op, Resource) or _names_resource(op):
            raise self.fail("bad-region", "a region reads a resource of the graph", op)
        super().check_attributes(op)


def _names_resource(op: Op) -> bool:
    stack: list[Any] = [getattr(op, name) for name in op.operand_fields]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            stack += item
        elif isinstance(item, Foreign) and item.kind == "resource":
            return True
    return False
