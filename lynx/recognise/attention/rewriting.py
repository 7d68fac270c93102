"""Replace attention in a Dynamo graph by one operator, site by site."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from lynx.compat import is_batched, is_transformed, size_hint
from lynx.importer.locations import location_of
from lynx.passes import Remark
from lynx.recognise.nodes import (
    Inserter,
    Node,
    Refusal,
    changes_grad_mode,
    fold_sizes,
    is_same_shape,
    is_same_size,
    may_share_memory,
    tensor_of,
    traced,
)

from .analysis import plans_for
from .calls import is_call, written_out
from .checking import Computation, Unchecked, check, closure, is_costly, says_difference
from .emission import Sizes, substitute
from .modules import is_module, open_modules
from .plans import Placed, Plan
from .shrinking import Lengths, lengths_of, renamed, shrunk
from .sites import (
    Site,
    is_softmax,
    leads_to_attention,
    possible_outputs,
    sites_of,
    without_scores,
)
from .spellings import is_unused, respell
from .structure import Known, Memory, structure_of, transferred
from .tracing import called, dropout_probability, is_dropout
from .vocabulary import EXPONENTIALS, LAYOUT, NORMALIZING, kind_of
from .wording import description_of
from .writes import Writes, targets_of, write_out_of_place

SUBJECT = "attention"


def fuse_attention(graph: torch.fx.Graph, devices: Sequence[str]) -> Iterator[Remark]:
    """Replace what is found in a graph, in place; yield what was done and why others stayed.

    Only attention on these types of devices is looked at.
    """
    if not devices:
        return
    if not any(_may_attend(node) for node in graph.nodes):
        return
    write_out_of_place(graph)
    fold_sizes(graph)
    modules = open_modules(graph)
    memory = Memory(Writes(graph))
    for node in [node for node in graph.nodes if is_call(node)]:
        if _is_on(node, devices):
            yield Remark(SUBJECT, _fused_call(node, memory), location_of(node))
    spellings = respell(graph)
    yield from _fused_products(graph, devices, memory)
    spellings.undo()
    modules.undo()


def _may_attend(node: Node) -> bool:
    return is_call(node) or is_module(node) or kind_of(node) in EXPONENTIALS


def _fused_products(
    graph: torch.fx.Graph, devices: Sequence[str], memory: Memory
) -> Iterator[Remark]:
    """Replace pairs of products that are written out; say what was done."""
    done: set[Node] = set()
    for output, side, exponential in possible_outputs(graph):
        if output in done or not _is_on(output, devices) or is_unused(output):
            continue
        loc = location_of(output)
        message = _fused(output, side, exponential, memory)
        if message is None:
            continue
        done.add(output)
        yield Remark(SUBJECT, message, loc)


def _is_on(node: Node, devices: Sequence[str]) -> bool:
    """Whether a node's result is on one of these types of devices."""
    value = node.meta.get("example_value")
    first = value[0] if isinstance(value, tuple) and value else value
    return isinstance(first, torch.Tensor) and first.device.type in devices


def _fused_call(node: Node, memory: Memory) -> str:
    """Replace a call of attention; say what was done, or why not."""
    try:
        call = written_out(node)
    except Refusal as refusal:
        return f"not fused: {refusal.reason}"
    reasons: list[str] = []
    for site in sites_of(call.output, 0)[:1]:
        found = _try(site, reasons, memory)
        if found is not None:
            call.finish(*found)
            return f"fused: {description_of(found[0])}"
    call.undo()
    return f"not fused: {_best(reasons) if reasons else 'it is not understood'}"


def _fused(output: Node, side: int, exponential: Node, memory: Memory) -> str | None:
    """Replace one product of weights and values; say what was done, None for nothing to mention."""
    reasons: list[str] = []
    sites: list[Site] = []
    try:
        sites = sites_of(output, side)
        is_written = "lynx_respelled" not in output.meta
        if not sites and is_written and kind_of(exponential) in NORMALIZING:
            raise without_scores(exponential)
        for site in sites:
            found = _try(site, reasons, memory)
            if found is not None:
                return f"fused: {description_of(found[0])}"
    except Refusal as refusal:
        reasons.append(refusal.reason)
    is_named = kind_of(exponential) in NORMALIZING or any(is_softmax(s.path) for s in sites)
    return f"not fused: {_best(reasons)}" if reasons and is_named else None


def _best(reasons: Sequence[str]) -> str:
    """Return the reason that says most: that ways were tried and failed says little."""
    return next((reason for reason in reasons if not says_difference(reason)), reasons[0])


def _try(site: Site, reasons: list[str], memory: Memory) -> tuple[Plan, Node] | None:
    """Replace a site if one of its plans works, and return both; note why others do not."""
    try:
        _check_place(site)
        key, nodes = structure_of(site, memory.writes)
        known = memory.find(key)
        if known is not None:
            return _try_again(site, known, nodes, reasons, memory.writes)
        known = Known(nodes)
        found = _try_all(site, known, memory.writes)
        memory.put(key, known)
        reasons += known.reasons
        return found
    except Exception as error:  # a model must go on, whatever is wrong in here
        reasons.append(_reason(error))
        return None


def _try_all(site: Site, known: Known, writes: Writes) -> tuple[Plan, Node] | None:
    for plan in plans_for(site, writes):
        try:
            if isinstance(plan, Refusal):
                raise plan
            _check_uses(site, plan)
            operation = _apply(site, plan)
        except Refusal as refusal:
            known.reasons.append(refusal.reason)
            continue
        known.plan = plan
        return plan, operation
    return None


def _try_again(
    site: Site, known: Known, nodes: Sequence[Node], reasons: list[str], writes: Writes
) -> tuple[Plan, Node] | None:
    """Do what was done at a site of the same structure, where it was checked."""
    plan = None if known.plan is None else transferred(known.plan, known.nodes, nodes)
    if plan is None:
        if known.plan is not None:
            return _try_all(site, Known(list(nodes)), writes)
        reasons += known.reasons
        return None
    _check_uses(site, plan)
    return plan, _apply(site, plan, is_checked=True)


def _reason(error: Exception) -> str:
    if isinstance(error, Refusal):
        return error.reason
    return f"it is not understood: {type(error).__name__}: {error}"


def _check_place(site: Site) -> None:
    """Check that nothing around or between the two products makes them something else."""
    needs = traced(site.scores).requires_grad
    for node in (site.scores, *site.path, site.output):
        value = tensor_of(node)
        if value is not None and (is_transformed(value) or is_batched(value)):
            raise Refusal("it runs inside a transform of torch.func")
        is_cut = value is not None and node in site.path and needs and _is_cut(node)
        if is_cut and is_same_shape(traced(node).shape, traced(site.scores).shape):
            raise Refusal(f"gradients do not flow through '{node}'")
    inside = {site.scores, *site.path, site.output}
    node = site.scores.next
    while node is not site.output:
        if changes_grad_mode(node):
            raise Refusal(f"'{node}' lies between the two products")
        if any(may_share_memory(t, n) for t in targets_of(node) for n in inside if _is_dense(n)):
            raise Refusal(f"'{node}' changes what others may look at")
        node = node.next


def _is_cut(node: Node) -> bool:
    """Whether no gradient flows through a node, and more is made of it than maxima."""
    return kind_of(node) == "detach" and any(
        kind_of(user) not in ("amax", "max") for user in node.users
    )


def _is_dense(node: Node) -> bool:
    return tensor_of(node) is not None


def _check_uses(site: Site, plan: Plan) -> None:
    """Check that operands are what they were, and that no gradient flows from elsewhere."""
    sources = [plan.q.node, plan.k.node, plan.v.node, *plan.operands]
    others = (plan.sink, plan.keep, *plan.value_factors)
    sources += [p.node for p in others if isinstance(p, Placed)]
    node, *_ = closure(site.output, sources)[0]
    while node is not site.output:
        for target in targets_of(node):
            if any(tensor_of(s) is not None and may_share_memory(target, s) for s in sources):
                raise Refusal(f"'{node}' writes to memory of an operand before the values are used")
        node = node.next
    inside = {*site.path, site.output}
    for item in (site.scores, *site.path):
        value = tensor_of(item)
        for user in item.users:
            if user in inside or value is None or not value.requires_grad or _is_number(user):
                continue
            if not (_is_only_returned(user) or is_unused(user) or leads_to_attention(user)):
                raise Refusal(f"'{item}' is also used by '{user}', with gradients")


def _is_number(node: Node) -> bool:
    """Whether a node is a number, as sizes are."""
    value = node.meta.get("example_value")
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.Size)


def _is_only_returned(node: Node) -> bool:
    """Whether a node and all that is made of it are only rearranged and returned."""
    stack = [node]
    seen = {node}
    while stack:
        item = stack.pop()
        if item.op == "output":
            continue
        value = tensor_of(item)
        if value is not None and not value.requires_grad:
            continue
        if not _is_rearranged(item) or len(seen) > 64:
            return False
        for user in item.users:
            if user not in seen:
                seen.add(user)
                stack.append(user)
    return True


def _is_rearranged(node: Node) -> bool:
    """Whether a node holds elements of another, or averages of some of them."""
    kind = kind_of(node)
    is_average = kind in ("mean", "sum") and len(node.args) + len(node.kwargs) > 1
    return kind in LAYOUT | {"to", "float", "type", "type_as"} or is_average


def _apply(site: Site, plan: Plan, *, is_checked: bool = False) -> Node:
    """Put the operator into the graph and return it; undo everything if that does not work."""
    insert = Inserter(site.output)
    early: Inserter | None = None
    try:
        noise = None
        if plan.is_dropout:
            assert plan.keep is not None
            early = Inserter(plan.keep.node)
            noise = _noise(early, plan.keep.node)
        result, operation = substitute(plan, insert, site.output, noise)
        result = _laid_out(insert, result, site.output)
        _check_result(result, site.output)
        if not is_checked:
            _check_numbers(site, plan, insert, result, noise)
    except Exception as error:  # whatever goes wrong, the graph must be what it was
        insert.undo()
        if early is not None:
            early.undo()
        if isinstance(error, Refusal):
            raise
        raise Refusal(f"the operator does not take it: {error}") from error
    site.output.replace_all_uses_with(result)
    _remove(site, plan, noise)
    return operation


def _check_numbers(
    site: Site, plan: Plan, insert: Inserter, result: Node, noise: Node | None
) -> None:
    placed = (plan.q, plan.k, plan.v, plan.sink, plan.keep, *plan.value_factors)
    sources = [p.node for p in placed if
               isinstance(p, Placed) and not (p is plan.keep and plan.is_dropout)]  # fmt: skip
    sources += plan.operands
    sources += [f.item for f in plan.factors if isinstance(f.item, Node)]
    before, leaves = closure(site.output, sources)
    given = dict.fromkeys([*leaves, *closure(result, [*sources, *_of(noise)])[1]])
    dropouts = {node: noise for node in before if noise is not None and is_dropout(node)}
    after = [node for node in insert.added if node not in given]
    computation = Computation(
        tuple(n for n in given if n is not noise), tuple(before), site.output, tuple(after),
        result, dropouts, site.scores, plan.numbers, plan.hides_nan,
    )  # fmt: skip
    if is_costly(computation):
        with contextlib.suppress(Refusal):
            _check_small(site, plan, computation)
            return
    try:
        check(computation)
    except Unchecked:
        _check_small(site, plan, computation)


def _check_small(site: Site, plan: Plan, computation: Computation) -> None:
    """Check a version of a site with small sizes, of which the same must be made."""
    reasons: list[str] = []
    for lengths in lengths_of(plan):
        try:
            small = shrunk(site, computation, lengths)
            if _is_small_alike(small, plan, lengths, reasons):
                return
        except Refusal as refusal:
            reasons.append(refusal.reason)
    raise Refusal(reasons[0] if reasons else "it is not understood at other sizes")


def _is_small_alike(small: Site, plan: Plan, lengths: Lengths, reasons: list[str]) -> bool:
    """Whether the same is made of a small version, and computes what it should."""
    for found in plans_for(small, Writes(small.output.graph)):
        if isinstance(found, Refusal) or found.score != renamed(plan.score, lengths):
            continue
        if len(found.operands) != len(plan.operands):
            continue
        if (found.zero_empty, found.hides_nan) != (plan.zero_empty, plan.hides_nan):
            continue
        try:
            _apply(small, found)
        except Refusal as refusal:
            reasons.append(refusal.reason)
            continue
        return True
    return False


def _of(node: Node | None) -> list[Node]:
    return [] if node is None else [node]


def _noise(insert: Inserter, dropout: Node) -> Node:
    """Draw what a dropout would draw, as what it multiplies by."""
    value = traced(dropout)
    if not value.is_contiguous():
        raise Refusal(f"'{dropout}' draws in another order than elements lie")
    sizes = Sizes(insert)
    shape = [sizes.node(sizes.reader.read(size)) for size in value.shape]
    ones = insert.call(torch.ones, shape, dtype=value.dtype, device=value.device)
    return insert.call(torch.nn.functional.dropout, ones, dropout_probability(dropout), True)


def _laid_out(insert: Inserter, result: Node, output: Node) -> Node:
    """Return the result in memory as it was, where that can be seen."""
    before, after = traced(output), traced(result)
    if _is_alike(before, after) or not _needs_layout(output, after):
        return result
    order = _order_of(before)
    if order == list(range(before.dim())):
        return insert.call("contiguous", result)
    dense = insert.call("contiguous", insert.call("permute", result, *order))
    return insert.call("permute", dense, *(order.index(n) for n in range(len(order))))


def _is_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether elements of two tensors of one shape lie at the same places."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    sizes = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(is_same_size(x, y) or is_same_size(size, 1) for size, x, y in sizes)


def _order_of(value: torch.Tensor) -> list[int]:
    """Return the dimensions of a dense tensor, outermost in memory first."""
    strides = [size_hint(stride) for stride in value.stride()]
    sizes = [size_hint(size) for size in value.shape]
    if any(number is None for number in (*strides, *sizes)):
        raise Refusal("how its result lies in memory is not known")
    order = sorted(range(value.dim()), key=lambda n: (-strides[n], n))  # type: ignore[operator]
    expected = 1
    for n in reversed(order):
        if sizes[n] != 1 and strides[n] != expected:
            raise Refusal("its result has gaps in memory")
        expected *= sizes[n]  # type: ignore[operator]
    return order


def _needs_layout(output: Node, value: torch.Tensor) -> bool:
    """Whether it can be seen how a result lies: outside, by a view, or by what is drawn like it."""
    known: dict[Node, Any] = {output: value}
    queue = [output]
    for node in queue:
        for user in node.users:
            if user in known:
                continue
            if user.op == "output" or _reads_memory(user):
                return True
            try:
                known[user] = _again(user, known)
            except (RuntimeError, TypeError, ValueError, Refusal):
                return True
            pairs = _pairs(user.meta.get("example_value"), known[user])
            if pairs is None:
                return True
            if not all(_is_alike(before, now) for before, now in pairs):
                queue.append(user)
    return False


def _pairs(before: Any, now: Any) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Return tensors next to what they would be, None if that is not known; numbers are none."""
    if isinstance(before, tuple | list) and isinstance(now, tuple | list):
        found = [_pairs(a, b) for a, b in zip(before, now, strict=True)]
        return None if None in found else [pair for some in found if some for pair in some]
    if isinstance(before, int | float | torch.SymInt | torch.SymFloat):
        return []
    if isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor):
        return [(before, now)]
    return None


_DRAWS = ("rand", "bernoulli", "dropout", "normal", "multinomial", "exponential", "as_strided",
          "stride", "is_contiguous", "data_ptr", "storage")  # fmt: skip


def _reads_memory(node: Node) -> bool:
    """Whether a node draws numbers in the order of memory, writes there, or asks how it lies."""
    kind = kind_of(node) or ""
    return any(word in kind for word in _DRAWS) or bool(targets_of(node))


def _again(user: Node, known: dict[Node, Any]) -> Any:
    """Return what a node would compute of other tensors."""
    args, kwargs = torch.fx.map_arg(
        (user.args, user.kwargs),
        lambda n: known[n] if n in known else n.meta.get("example_value"),
    )
    with torch.no_grad():
        return called(user, args, kwargs)


def _check_result(result: Node, output: Node) -> None:
    value, wanted = traced(result), traced(output)
    if value.dtype != wanted.dtype or not is_same_shape(value.shape, wanted.shape):
        raise Refusal(f"the operator would give {value.dtype} of shape {tuple(value.shape)}")


def _remove(site: Site, plan: Plan, noise: Node | None) -> None:
    """Erase what nothing needs any more; what is used elsewhere stays, computed of its own."""
    graph = site.output.graph
    graph.erase_node(site.output)
    candidates: Sequence[Node] = (*reversed(site.path), site.scores)
    for node in candidates:
        if is_dropout(node) and node.users and noise is not None:
            insert = Inserter(node)
            node.replace_all_uses_with(insert.call(torch.mul, node.args[0], noise))
        if not node.users:
            graph.erase_node(node)
