"""Pipelines: sequences of passes, how they are run, checked, written and read as text."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import time
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lark import Lark, Token, Tree, UnexpectedInput
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from lynx.ir.errors import CompileError, InternalError, TextError, UsageError

from .base import PASSES, Pass, PassContext
from .modules import location_of, verify_module
from .observers import Observer

NAMED_PIPELINES: dict[str, Pipeline] = {}


@dataclass(frozen=True)
class Pipeline:
    """Passes in the order in which they run.

    `str` gives the text that `parse_pipeline` reads: `canonicalize,cse,fuse{max-ops=64}`.
    """

    passes: tuple[Pass, ...] = ()

    def run(
        self,
        module: Any,
        context: PassContext | None = None,
        observers: Sequence[Observer] = (),
        *,
        verify: bool = True,
    ) -> Any:
        """Run the passes on a graph or program and return the result.

        Raises `CompileError` if the module breaks an invariant (checked with `verify`) or a pass
        requires a form that it does not have, and `InternalError` for everything that goes wrong
        within a pass, ill-typed results included; then the observers have seen `failed`.
        """
        context = PassContext() if context is None else context
        if verify:
            verify_module(module)
        for index, step in enumerate(self.passes):
            check_requirements(step, module)
            for observer in observers:
                observer.before(step, module)
            start = time.perf_counter()
            try:
                after = step.run(module, context)
                seconds = time.perf_counter() - start
                if verify and after is not module:
                    verify_module(after, before=module)
            except Exception as error:
                failure = _as_internal(step, error)
                _report(observers, Pipeline(self.passes[index:]), module, failure)
                raise failure from (None if failure is error else error)
            for observer in observers:
                observer.after(step, module, after, seconds)
            module = after
        return module

    def __str__(self) -> str:
        return ",".join(format_pass(step) for step in self.passes)


def check_requirements(step: Pass, module: Any) -> None:
    """Raise `CompileError` if the module has not the form that the pass requires."""
    for requirement in step.requires:
        violation = requirement.find(module)
        if violation is not None:
            message = f"pass '{step.name}' requires {requirement.name}: {violation.message}"
            raise CompileError("requirement-not-met", message, violation.loc)


def _as_internal(step: Pass, error: Exception) -> InternalError:
    if isinstance(error, InternalError):
        return error
    text = str(error) or type(error).__name__
    return InternalError("pass-failed", f"pass '{step.name}' failed: {text}", location_of(error))


def _report(
    observers: Iterable[Observer], rest: Pipeline, module: Any, failure: InternalError
) -> None:
    """Tell the observers of a failure; one that fails in turn must not hide it."""
    for observer in observers:
        try:
            observer.failed(str(rest), module, failure)
        except Exception as error:
            failure.add_note(f"{type(observer).__name__} failed too: {error}")


def format_pass(step: Pass) -> str:
    """Return the text of one pass, without the options that have their default."""
    options = []
    for field in dataclasses.fields(step):  # type: ignore[arg-type]  # passes are dataclasses
        value = getattr(step, field.name)
        if value != _default(field):
            options.append(f"{field.name.replace('_', '-')}={_format_value(value)}")
    return step.name + (f"{{{','.join(options)}}}" if options else "")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(_format_value(part) for part in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.\-]*", value) and value not in ("true", "false"):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


@functools.cache
def _parser() -> Lark:
    """Return the parser; making it takes longer than anything else in the import of Lynx."""
    return Lark.open(
        "pipeline.lark",
        rel_to=__file__,
        parser="lalr",
        start="pipeline",
        propagate_positions=True,
        maybe_placeholders=False,
    )


_READABLE = {
    "LBRACE": "'{'", "RBRACE": "'}'", "LSQB": "'['", "RSQB": "']'", "COMMA": "','",
    "EQUAL": "'='", "NAME": "a name", "INTEGER": "an integer", "TEXT": "quoted text",
    "TRUE": "'true'", "FALSE": "'false'", "$END": "the end",
}  # fmt: skip


def parse_pipeline(text: str, *, file: str = "<pipeline>") -> Pipeline:
    """Read a pipeline; the name of a named pipeline stands for its passes.

    Raises `TextError` with line and column for a mistake in the text, for unknown passes and
    options (naming the nearest known), and for options of the wrong type.
    """
    if text in NAMED_PIPELINES:
        return NAMED_PIPELINES[text]
    return _Reader(text, file).read()


class _Reader:
    """Turns one text into passes, and mistakes into errors that point at them."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    def error(self, code: str, message: str, line: int, column: int) -> TextError:
        return TextError(code, message, self.text, line, column, file=self.file)

    def read(self) -> Pipeline:
        try:
            tree = _parser().parse(self.text)
        except UnexpectedInput as error:
            raise self._syntax_error(error) from None
        passes: list[Pass] = []
        for step in tree.children:
            assert isinstance(step, Tree), step
            passes += self._step(step)
        return Pipeline(tuple(passes))

    def _syntax_error(self, error: UnexpectedInput) -> TextError:
        line, column = error.line, error.column
        if isinstance(error, UnexpectedToken):
            expected, found = error.accepts or error.expected, f"'{error.token}'"
            if error.token.type == "$END":
                lines = self.text.splitlines() or [""]
                line, column, found = len(lines), len(lines[-1]) + 1, "the end"
        else:
            assert isinstance(error, UnexpectedCharacters), error
            expected, found = error.allowed, f"'{error.char}'"
        names = [_READABLE[name] for name in sorted(expected) if name in _READABLE]
        message = f"expected {' or '.join(names)}, found {found}"
        return self.error("pipeline-syntax", message, line, column)

    def _step(self, tree: Tree[Token]) -> tuple[Pass, ...]:
        name, *options = tree.children
        assert isinstance(name, Token), name
        line, column = name.line or 1, name.column or 1
        if name in NAMED_PIPELINES:
            if options:
                message = f"the named pipeline '{name}' takes no options"
                raise self.error("unknown-option", message, line, column)
            return NAMED_PIPELINES[name].passes
        if name not in PASSES:
            message = f"unknown pass '{name}'{_suggest(name, [*PASSES, *NAMED_PIPELINES])}"
            raise self.error("unknown-pass", message, line, column)
        kind = PASSES[name]
        hints = typing.get_type_hints(kind)
        fields = {f.name.replace("_", "-"): f for f in dataclasses.fields(kind)}
        given: dict[str, Any] = {}
        for option in options:
            assert isinstance(option, Tree), option
            key, value = option.children
            assert isinstance(key, Token), key
            self._check_option(name, key, fields, given)
            given[fields[key].name] = self._value(f"{name}.{key}", hints[fields[key].name], value)
        for option_name, field in fields.items():
            if field.name not in given and _default(field) is dataclasses.MISSING:
                message = f"pass '{name}' needs the option '{option_name}'"
                raise self.error("missing-option", message, line, column)
        try:
            return (kind(**given),)
        except UsageError as error:
            raise self.error(error.code, error.message, line, column) from None

    def _check_option(
        self, name: str, key: Token, fields: dict[str, Any], given: dict[str, Any]
    ) -> None:
        line, column = key.line or 1, key.column or 1
        if key not in fields:
            message = f"pass '{name}' has no option '{key}'{_suggest(key, fields)}"
            raise self.error("unknown-option", message, line, column)
        if fields[key].name in given:
            message = f"the option '{key}' is given twice"
            raise self.error("duplicate-option", message, line, column)

    def _value(self, option: str, expected: Any, tree: Any) -> Any:
        try:
            value = _plain(tree)
        except ValueError as error:  # more digits than Python reads
            message = f"the option '{option}' cannot be read: {error}"
            raise self.error("bad-option", message, tree.meta.line, tree.meta.column) from None
        if not _fits(value, expected):
            message = f"the option '{option}' expects {_describe(expected)}, got {_kind(value)}"
            raise self.error("bad-option", message, tree.meta.line, tree.meta.column)
        return value


def _plain(tree: Any) -> Any:
    if tree.data in ("true", "false"):
        return tree.data == "true"
    if tree.data == "list":
        return tuple(_plain(part) for part in tree.children)
    (token,) = tree.children
    if tree.data == "integer":
        return int(token)
    return json.loads(str(token)) if tree.data == "text" else str(token)


def _fits(value: Any, expected: Any) -> bool:
    if typing.get_origin(expected) is tuple:
        return isinstance(value, tuple) and all(type(part) is str for part in value)
    return type(value) is expected


def _describe(expected: Any) -> str:
    if typing.get_origin(expected) is tuple:
        return "a list of names such as [a,b]"
    return {bool: "true or false", int: "an integer", str: "a name or quoted text"}[expected]


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"the list {_format_value(value)}"
    kind = "text" if isinstance(value, str) else "truth value" if isinstance(value, bool) else ""
    return f"the {kind or 'integer'} {_format_value(value)}"


def _suggest(name: str, known: Iterable[str]) -> str:
    candidates = sorted(known)
    nearest = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
    if nearest:
        return f"; did you mean '{nearest[0]}'?"
    return f"; expected one of {', '.join(candidates)}" if candidates else "; it has none"
