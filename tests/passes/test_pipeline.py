"""Pipelines as text, and how they run: requirements, verification, failures."""

from __future__ import annotations

import dataclasses
import io
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import SymbolRange, symbol
from lynx.ir.errors import CompileError, InternalError, TextError
from lynx.ir.location import Location
from lynx.ir.ops.aten import Symbolic
from lynx.ir.types import ScalarType
from lynx.passes import (
    NAMED_PIPELINES,
    PASSES,
    Diff,
    Dump,
    PassContext,
    Pipeline,
    Reproducer,
    Requirement,
    Timer,
    Violation,
    parse_pipeline,
)
from lynx.passes.attention.choose import WAYS, ChooseAttention
from lynx.passes.decompose import Decompose
from tests.conftest import run_file


@dataclass(frozen=True)
class Options:
    """Has an option of each type."""

    name: ClassVar[str] = "test-options"
    requires: ClassVar[tuple[Requirement, ...]] = ()

    max_ops: int = 64
    verbose: bool = False
    label: str = "x"
    only: tuple[str, ...] = ()

    def run(self, module: Any, context: PassContext) -> Any:
        return module


@dataclass(frozen=True)
class Needy:
    """Has an option without a default."""

    name: ClassVar[str] = "test-needy"
    requires: ClassVar[tuple[Requirement, ...]] = ()

    size: int

    def run(self, module: Any, context: PassContext) -> Any:
        return module


@dataclass(frozen=True)
class Crash:
    """Fails in the way that it is told."""

    name: ClassVar[str] = "test-crash"
    requires: ClassVar[tuple[Requirement, ...]] = ()

    how: str = "error"

    def run(self, module: Graph, context: PassContext) -> Graph:
        if self.how == "compile-error":
            raise CompileError("bad-thing", "is bad", Location("model.py", 7))
        if self.how == "invalid":
            return dataclasses.replace(module, ops=module.ops[1:])
        raise ValueError("boom")


@dataclass(frozen=True)
class Picky:
    """Requires what never holds."""

    name: ClassVar[str] = "test-picky"
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("no ops at all", lambda module: Violation("found an op", Location("m.py", 3))),
    )

    def run(self, module: Any, context: PassContext) -> Any:
        raise AssertionError("must not run")


@pytest.fixture(autouse=True, scope="module")
def _test_passes() -> Iterator[None]:
    kinds: list[type[Any]] = [Options, Needy, Crash, Picky]
    for kind in kinds:
        PASSES[kind.name] = kind
    yield
    for kind in kinds:
        del PASSES[kind.name]


def chain(length: int = 3) -> Graph:
    """Return a graph of scalar ops of which the last is an output and the others are dead."""
    s0 = symbol("s0")
    x = Value(ScalarType("int", s0), name="x")
    ops: tuple[Op, ...] = tuple(Symbolic(s0 + index + 1) for index in range(length))
    return Graph("g", (x,), ops, (ops[-1].results[0],), symbols=(SymbolRange("s0"),))


def option_values(kind: Any) -> st.SearchStrategy[Any]:
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers()
    text = st.text('ab_-.,"\\\n[]{}=/ é\u2028\x00', max_size=6)
    return text if kind is str else st.lists(text, max_size=3).map(tuple)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    passes = []
    for kind in draw(st.lists(st.sampled_from([PASSES[name] for name in sorted(PASSES)]))):
        hints = typing.get_type_hints(kind)
        values = {f.name: draw(option_values(hints[f.name])) for f in dataclasses.fields(kind)}
        if kind is Decompose:  # knows which names there are
            values["only"] = tuple(draw(st.lists(st.sampled_from(["gelu", "softmax", "addmm"]))))
        if kind is ChooseAttention:  # knows which ways there are
            values["way"] = draw(st.sampled_from(WAYS))
        passes.append(kind(**values))
    return Pipeline(tuple(passes))


@given(st.data())
def test_text_round_trip(data: st.DataObject) -> None:
    pipeline = data.draw(pipelines())
    assert parse_pipeline(str(pipeline)) == pipeline


@pytest.mark.parametrize("name", sorted(PASSES))
def test_every_pass_has_readable_options(name: str) -> None:
    kind = PASSES[name]
    assert dataclasses.is_dataclass(kind)
    assert kind.__doc__
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        assert hints[field.name] in (bool, int, str, tuple[str, ...])
    assert name == name.lower().replace("_", "-")


def test_defaults_are_left_out() -> None:
    pipeline = Pipeline((Options(max_ops=64, only=("a", "b.c"), label="true"), Options()))
    assert str(pipeline) == 'test-options{label="true",only=[a,b.c]},test-options'


def test_spaces_comments_and_trailing_commas() -> None:
    text = "\n  test-options { max-ops = -3, },  // why\n  test-crash,\n"
    assert str(parse_pipeline(text)) == "test-options{max-ops=-3},test-crash"
    assert parse_pipeline("") == Pipeline()


@pytest.mark.parametrize("name", sorted(NAMED_PIPELINES))
def test_named_pipelines_expand(name: str) -> None:
    pipeline = parse_pipeline(f"{name},test-crash")
    assert pipeline.passes == (*NAMED_PIPELINES[name].passes, Crash())
    assert parse_pipeline(str(pipeline)) == pipeline


def test_each_mode_has_a_named_pipeline() -> None:
    modes = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    assert list(NAMED_PIPELINES) == [*modes, "overlap", "debug"]


ERRORS = [
    ("cse,\n  tset-options", "unknown-pass", "did you mean 'test-options'", 2, 3),
    ("defualt", "unknown-pass", "did you mean 'default'", 1, 1),
    ("cse dce", "pipeline-syntax", "expected the end or ',' or '{', found 'dce'", 1, 5),
    ("cse,,dce", "pipeline-syntax", "found ','", 1, 5),
    ("cse?", "pipeline-syntax", "found '?'", 1, 4),
    ("test-options{", "pipeline-syntax", "found the end", 1, 14),
    ("test-options{max-op=1}", "unknown-option", "did you mean 'max-ops'", 1, 14),
    ("cse{fast=true}", "unknown-option", "'cse' has no option 'fast'", 1, 5),
    ("default{fast=true}", "unknown-option", "takes no options", 1, 1),
    ("test-options{max-ops=1,max-ops=2}", "duplicate-option", "given twice", 1, 24),
    ("test-needy", "missing-option", "needs the option 'size'", 1, 1),
    ("test-options{max-ops=true}", "bad-option", "expects an integer, got the truth value", 1, 22),
    (f"test-options{{max-ops={'9' * 5000}}}", "bad-option", "cannot be read", 1, 22),
    ("test-options{verbose=1}", "bad-option", "expects true or false, got the integer 1", 1, 22),
    ("test-options{label=[a]}", "bad-option", "expects a name or quoted text, got the list", 1, 20),
    ("test-options{only=a}", "bad-option", "expects a list of names such as [a,b]", 1, 19),
    ("test-options{only=[1]}", "bad-option", "got the list [1]", 1, 19),
]


@pytest.mark.parametrize(("text", "code", "message", "line", "column"), ERRORS)
def test_errors_point_at_the_mistake(
    text: str, code: str, message: str, line: int, column: int
) -> None:
    with pytest.raises(TextError) as caught:
        parse_pipeline(text)
    assert (caught.value.code, caught.value.line, caught.value.column) == (code, line, column)
    assert message in caught.value.message
    *_, source, caret = str(caught.value).splitlines()
    assert source == "  " + text.splitlines()[line - 1]
    assert caret == " " * (column + 1) + "^"


def test_requirements_are_checked() -> None:
    with pytest.raises(CompileError) as caught:
        Pipeline((Picky(),)).run(chain())
    assert caught.value.code == "requirement-not-met"
    assert "'test-picky' requires no ops at all: found an op" in str(caught.value)
    assert caught.value.loc.line == 3


def test_graph_passes_refuse_programs() -> None:
    with pytest.raises(CompileError, match="'dce' requires a graph"):
        parse_pipeline("dce").run("no graph", verify=False)


@pytest.mark.parametrize("how", ["error", "compile-error", "invalid"])
def test_failures_are_internal_errors(how: str) -> None:
    with pytest.raises(InternalError) as caught:
        Pipeline((Crash(how),)).run(chain(1))
    assert caught.value.code == "pass-failed"
    assert "pass 'test-crash' failed" in str(caught.value)
    assert isinstance(caught.value.__cause__, CompileError if how != "error" else ValueError)
    if how == "compile-error":
        assert caught.value.loc.line == 7


def test_a_bad_input_is_no_bug_of_lynx() -> None:
    graph = chain(1)
    with pytest.raises(CompileError):
        Pipeline().run(dataclasses.replace(graph, ops=()))


def test_verification_can_be_turned_off() -> None:
    assert Pipeline((Crash("invalid"),)).run(chain(1), verify=False).ops == ()


def test_reproducer_runs_as_a_test(tmp_path: Path) -> None:
    pipeline = parse_pipeline("dce,test-crash{how=invalid},test-options{max-ops=3}")
    with pytest.raises(InternalError) as caught:
        pipeline.run(chain(), observers=[Reproducer(tmp_path)])
    path = Path(caught.value.reproducer or "")
    assert path.parent == tmp_path
    first, *_ = path.read_text().splitlines()
    assert first == "// RUN: test-crash{how=invalid},test-options{max-ops=3}"
    assert parse_pipeline(first.removeprefix("// RUN: ")).passes == pipeline.passes[1:]
    with pytest.raises(InternalError) as again:
        pipeline.run(chain(), observers=[Reproducer(tmp_path)])
    assert again.value.reproducer != caught.value.reproducer


def test_reproducers_can_be_collected(tmp_path: Path) -> None:
    error = InternalError("pass-failed", "boom\nbang")
    Reproducer(tmp_path).failed("dce,cse", chain(), error)
    path = Path(error.reproducer or "")
    text = path.read_text()
    assert text.splitlines()[1] == "// error[pass-failed]: boom bang"
    assert run_file(path, text) == []


def test_a_failing_observer_does_not_hide_the_failure(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InternalError, match="boom") as caught:
        Pipeline((Crash(),)).run(chain(), observers=[Reproducer(blocked)])
    assert "Reproducer failed too" in caught.value.__notes__[0]


def test_observers_see_what_changed(tmp_path: Path) -> None:
    timer, stream = Timer(), io.StringIO()
    observers = [timer, Dump(tmp_path / "dump"), Diff(stream)]
    after = parse_pipeline("cse,dce,dce").run(chain(), observers=observers)
    assert len(after.ops) == 1
    rows = [(row.name, row.ops_before, row.ops_after, row.changed) for row in timer.timings]
    assert rows == [("cse", 3, 3, False), ("dce", 3, 1, True), ("dce", 1, 1, False)]
    assert "3 -> 1" in timer.table()
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert names == ["00-input.lynx", "02-dce.lynx"]
    assert stream.getvalue().startswith("// dce\n")
    assert "-  %" in stream.getvalue()
