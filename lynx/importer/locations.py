"""From what torch remembers of an FX node to a place in the user's model."""

from __future__ import annotations

import re
from functools import lru_cache

import torch.fx

from lynx.ir.location import UNKNOWN, Location

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_OURS = "lynx/operators/constrain.py"  # a function that models call; the place is the call
_PATH = re.compile(r"\[?['\"]?([A-Za-z0-9_]+)['\"]?\]?")


def location_of(node: torch.fx.Node) -> Location:
    """Return the innermost frame of the node's stack trace and the path of its module.

    Backward nodes carry the trace of the forward op that they differentiate.
    """
    file, line = _innermost_frame(node.meta.get("stack_trace") or "")
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    module = ""
    if stack:
        path, _ = list(stack.values())[-1]
        module = _module_path(str(path))
    return Location(file, line, module) if file or module else UNKNOWN


@lru_cache(maxsize=4096)
def _innermost_frame(trace: str) -> tuple[str, int]:
    frames = [frame for frame in _FRAME.findall(trace) if not frame[0].endswith(_OURS)]
    return (frames[-1][0], int(frames[-1][1])) if frames else ("", 0)


@lru_cache(maxsize=4096)
def _module_path(path: str) -> str:
    """Turn `L['self']._modules['blocks']._modules['3'].attn` into `blocks.3.attn`."""
    path = re.sub(r"^L\[['\"]\w+['\"]\]\.?", "", path)
    words = [word for word in _PATH.findall(path) if word not in ("_modules", "self")]
    return ".".join(words)
