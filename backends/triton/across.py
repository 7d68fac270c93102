"""Write a stage that combines along its columns and, over all its rows, across them.

Each program runs through many blocks of rows, so that what is combined over the rows stays in
registers until the end; then it stores its part, one number a column.
"""

from __future__ import annotations

from lynx.ir.dims import contiguous_strides
from lynx.ir.kernel import Index, Term

from .combines import Collected, lanes_of, result, update
from .dtypes import triton_type
from .parts import Partial
from .writer import StageWriter


def print_across(writer: StageWriter) -> None:
    """Write the loop over blocks of rows, and the parts behind it."""
    stage = writer.stage
    assert stage.across is not None
    writer.whole_columns()
    partials = [one for one in stage.kernel.body if isinstance(one, Partial)]
    lanes = {one: _lanes(writer, one) for one in partials}
    writer.emit(f"part = {_wide(writer, 'tl.program_id(0)')}")
    blocks = f"tl.cdiv({writer.sizes.text(writer.size_of(stage.rows))}, XBLOCK)"
    writer.emit(f"for block in range(part, {blocks}, {writer.sizes.text(stage.across)}):")
    writer.indent += 1
    writer.rows("block")
    for one in stage.kernel.body:
        if isinstance(one, Partial):
            _collect(writer, one, lanes[one])
        else:
            writer.instruction(one)
    writer.indent -= 1
    for one in partials:
        _store(writer, one, lanes[one])


def _wide(writer: StageWriter, text: str) -> str:
    index_type = writer.options.index_type
    return text if index_type == "tl.int32" else f"{text}.to({index_type})"


def _lanes(writer: StageWriter, partial: Partial) -> Collected:
    lanes = lanes_of(partial.combine, partial.x.dtype)
    names = tuple(writer.names.fresh(f"{partial.combine}{lane.suffix}_lanes") for lane in lanes)
    for name, lane in zip(names, lanes, strict=True):
        writer.emit(
            f"{name} = tl.full([XBLOCK, RBLOCK], {lane.neutral}, {triton_type(lane.dtype)})"
        )
    return Collected(partial.combine, partial.x.dtype, names, 0)


def _collect(writer: StageWriter, partial: Partial, lanes: Collected) -> None:
    writer.locate(partial)
    x = writer.use(partial.x)
    if writer.tiling.of(partial.x.axes) != (True, True):
        x = f"tl.broadcast_to({x}, [XBLOCK, RBLOCK])"
    position = writer.column_position(partial.over) if "arg" in partial.combine else ""
    writer.emit(*update(lanes, x, position, writer.mask((True, False))))


def _store(writer: StageWriter, partial: Partial, lanes: Collected) -> None:
    names = tuple(
        writer.names.fresh(f"{partial.combine}{lane.suffix}_part")
        for lane in lanes_of(partial.combine, partial.x.dtype)
    )
    writer.emit(*result(lanes, names))
    axes = partial.result_order
    sizes = tuple(writer.stage.kernel.sizes[axis] for axis in axes)
    index = Index(tuple(map(Term, axes, contiguous_strides(sizes))))
    tile = (False, True)
    mask = writer.mask(tile)
    start = f"part * {writer.sizes.text(writer.size_of(axes))}"
    for buffer, name in zip(partial.buffers, names, strict=True):
        place = f"{writer.buffers[buffer]} + ({start} + {writer.index.filled(index, tile)})"
        writer.emit(f"tl.store({place}, {name}{f', {mask}' if mask else ''})")
