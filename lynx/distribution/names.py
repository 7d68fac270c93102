"""What the author of a model calls the inputs and outputs of its graphs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch.fx

_ARGUMENT = re.compile(r"args\[(\d+)\]")
_MEMBER = re.compile(r"_(?:modules|parameters|buffers)\b")
_WORD = re.compile(r"\w+", re.ASCII)


def input_names(module: torch.fx.GraphModule) -> dict[str, str]:
    """Return the names of the inputs of a Dynamo graph, by what AOTAutograd calls them.

    Parameters and buffers have the names that `named_parameters` gives, inputs those of plans:
    `inputs.x`.
    """
    nodes = module.graph.find_nodes(op="placeholder")
    return {f"args[{index}]": _name(node) for index, node in enumerate(nodes)}


def _name(node: torch.fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    given = getattr(source, "name", "")
    text = given() if callable(given) else str(given)
    words = _WORD.findall(text)
    if len(words) < 2:
        return str(node.name)
    places = [index for index, word in enumerate(words) if _MEMBER.fullmatch(word)]
    if places:
        return ".".join(word for word in words[places[0] :] if not _MEMBER.fullmatch(word))
    return ".".join(["inputs" if words[0] == "L" else words[0], *words[1:]])


def title(text: str, names: Mapping[str, str]) -> str:
    """Return what an input or output of a graph is, in words; empty for what users never see.

    `text` is what AOTAutograd calls it, such as `__grad(args[1])`.
    """
    found = _ARGUMENT.search(text)
    name = names.get(f"args[{found[1]}]", found[0]) if found else ""
    if text.startswith("output["):
        return f"output {text.removeprefix('output[').removesuffix(']')}"
    if text.startswith("__grad("):
        return f"gradient of {name}"
    if text.startswith("__input_mutation("):
        return f"new {name}"
    if text.startswith("__output_tangent("):
        inner = text.removeprefix("__output_tangent(").removesuffix(")")
        return f"gradient of {title(inner, names)}"
    return name if found and found[0] == text else ""
