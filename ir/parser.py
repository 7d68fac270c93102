"""Read graphs, types and dimensions from text, with a place for every mistake."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lark import Lark, Token, UnexpectedInput
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from .build import GraphBuilder
from .core import Graph
from .dims import Dim
from .errors import TextError
from .parser_values import Mistake, OpNode, Reader
from .types import Type

GRAMMAR = Path(__file__).with_name("grammar.lark")
"""The grammar, which is also the specification of the language."""

_HUMAN: Mapping[str, str] = {
    "VALUE": "a value such as %x",
    "NAME": "a name",
    "AT": "a name such as @forward",
    "INT": "an integer",
    "FLOAT": "a number",
    "STRING": "text in quotes",
    "FOREIGN": "a constant such as #layout",
    "OPAQUE": "a type",
    "DEVICE": "a device such as cuda:0",
    "REPLICATED": "'replicated'",
    "$END": "the end of the text",
}
_START_OF_LITERAL = {"MINUS", "LPAR", "LSQB", "FLOAT", "FOREIGN"}
_OPERATORS = {"PLUS", "MINUS", "STAR", "PERCENT", "_FLOORDIV", "_POWER"}
_T = TypeVar("_T")


class Language:
    """A grammar ready to parse: that of the IR, or one that extends it.

    `extension` is grammar text to append, `reader` the class with a method for each of its rules,
    and `starts` the rules that a text may consist of.
    """

    def __init__(
        self,
        starts: tuple[str, ...],
        extension: str = "",
        reader: Callable[[], Reader] = Reader,
    ) -> None:
        self._lark = Lark(
            GRAMMAR.read_text(encoding="utf-8") + extension,
            parser="lalr",
            start=list(starts),
            transformer=reader(),
            maybe_placeholders=True,
        )

    def read(self, text: str, start: str, build: Callable[[Any], _T], file: str) -> _T:
        """Parse the text and build something of the nodes; `TextError` tells every mistake."""
        try:
            return build(self._lark.parse(text, start=start))
        except UnexpectedInput as error:
            raise self._syntax_error(error, text, file) from None
        except Mistake as mistake:
            line, column = self._position(mistake, text, start)
            raise TextError(
                mistake.code, mistake.message, text, line, column, file=file
            ) from mistake
        except RecursionError:
            line, column = _deepest(text)
            message = "brackets nest too deeply"
            raise TextError("syntax-error", message, text, line, column, file=file) from None

    def _syntax_error(self, error: UnexpectedInput, text: str, file: str) -> TextError:
        expected = self._expected(error)
        line, column = error.line, error.column
        if isinstance(error, UnexpectedToken) and error.token.type != "$END":
            found = f"'{error.token}'"
        elif isinstance(error, UnexpectedCharacters):
            found = f"'{error.char}'"
        else:
            found, line, column = "the end of the text", *_end(text)
        message = f"expected {expected}, got {found}"
        return TextError("syntax-error", message, text, line, column, file=file)

    def _expected(self, error: UnexpectedInput) -> str:
        names = set(getattr(error, "accepts", None) or getattr(error, "expected", None) or ())
        names |= set(getattr(error, "allowed", None) or ())
        if names >= _START_OF_LITERAL:
            names -= {*_START_OF_LITERAL, "INT", "NAME", "STRING", "VALUE"}
            words = ["a value such as %x", "a literal"]
        elif {"MINUS", "LPAR", "INT", "NAME"} <= names:
            names -= {*_START_OF_LITERAL, "INT", "NAME"}
            words = ["an expression"]
        else:
            words = []
        if names & _OPERATORS:
            names -= _OPERATORS
            words.append("an operator")
        words += sorted(self._human(name) for name in names)
        return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]])) or "nothing more"

    def _human(self, name: str) -> str:
        if name in _HUMAN:
            return _HUMAN[name]
        return f"'{self._lark.get_terminal(name).pattern.value}'"

    def _position(self, mistake: Mistake, text: str, start: str) -> tuple[int, int]:
        """Return where a mistake is; one without a token is found by parsing again in steps."""
        at = mistake.at
        if at is None:
            tokens: list[Token] = []
            try:
                for token in self._lark.parse_interactive(text, start=start).iter_parse():
                    tokens.append(token)
                at = tokens[-1]
            except Mistake:
                # The parser has seen one token more before it knew that a construct is complete.
                at = tokens[-2] if len(tokens) > 1 else tokens[-1]
        return (at.line or 1, at.column or 1) if at is not None else (1, 1)


def _deepest(text: str) -> tuple[int, int]:
    """Return the line and the column of the innermost bracket."""
    depth = deepest = at = 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth > deepest:
            deepest, at = depth, index
    before = text[:at].split("\n")
    return len(before), len(before[-1]) + 1


def _end(text: str) -> tuple[int, int]:
    lines = text.rstrip().split("\n")
    return len(lines), len(lines[-1]) + 1


@functools.cache
def _language() -> Language:
    return Language(("module", "op", "type", "expr"))


def parse_module(
    text: str,
    *,
    file: str = "<text>",
    resources: Mapping[str, Any] | None = None,
    locate: bool = False,
) -> list[Graph]:
    """Read any number of graphs; `TextError` at the first mistake.

    `file` names the text in errors. `resources` become those of every graph. With `locate`, ops
    that are written without a location get their place in the text.
    """

    def build(nodes: Any) -> list[Graph]:
        return [GraphBuilder(file if locate else "").graph(node, resources) for node in nodes]

    return _language().read(text, "module", build, file)


def parse_graph(
    text: str,
    *,
    file: str = "<text>",
    resources: Mapping[str, Any] | None = None,
    locate: bool = False,
) -> Graph:
    """Read exactly one graph; the arguments are those of `parse_module`."""
    graphs = parse_module(text, file=file, resources=resources, locate=locate)
    if len(graphs) != 1:
        raise TextError(
            "graph-count", f"expected one graph, got {len(graphs)}", text, 1, 1, file=file
        )
    return graphs[0]


def parse_type(text: str, *, file: str = "<text>") -> Type:
    """Read a type such as `f32[s0 @ dp, 8] on cuda:0`."""
    result: Type = _language().read(text, "type", lambda node: node.type, file)
    return result


def parse_dim(text: str, *, file: str = "<text>") -> Dim:
    """Read a dimension such as `2*s0 + 1`; all names in it are symbols."""
    return _language().read(text, "expr", Reader.dimension, file)


def parse_op_line(text: str, *, file: str = "<text>") -> OpNode:
    """Read the syntax of one op; nothing in it needs to be defined."""
    node: OpNode = _language().read(text, "op", lambda node: node, file)
    return node
