"""All settings of Lynx, typed, with their environment names: the only reader of `os.environ`."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lynx.backends.c import PRODUCTS
from lynx.ir.errors import UsageError
from lynx.passes.distribution.machine import read_target
from lynx.records import RECORDS

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {"pipeline": "default"},
    "reduce-overhead": {"pipeline": "reduce-overhead", "cuda_graphs": True},
    "max-autotune": {"pipeline": "max-autotune", "cuda_graphs": True, "autotune": True},
    "max-autotune-no-cudagraphs": {"pipeline": "max-autotune-no-cudagraphs", "autotune": True},
}
"""What each `mode=` of `torch.compile` sets; torch takes a mode or options, never both."""

ATTENTION = ("auto", "none")
"""Whether attention is recognised."""

DISTRIBUTION = ("auto", "gather")

CPU_KERNELS = ("c", "triton", "none")

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "cpu_kernels": CPU_KERNELS,
    "attention": ATTENTION,
    "products": PRODUCTS,
    "distribution": DISTRIBUTION,
}

_OF_TESTS = ("LYNX_TEST_", "LYNX_FUZZ")
"""How the names begin of what the test suite reads."""


def _setting(default: Any, environment: str, help: str) -> Any:  # noqa: A002 - the natural name
    return field(default=default, metadata={"environment": environment, "help": help})


@dataclass(frozen=True)
class Settings:
    """What can be set, by `torch.compile(..., options={...})` or by the environment.

    Options win over the environment, the environment over the defaults.
    """

    pipeline: str = _setting("default", "LYNX_PIPELINE", "the passes to run, as text or a name")
    verify: bool = _setting(True, "LYNX_VERIFY", "check the program after every pass")
    cpu_kernels: str = _setting(
        "c",
        "LYNX_CPU_KERNELS",
        "who makes kernels of CPU tensors: c, none (all runs through torch), or triton, as for a "
        "GPU and run in its interpreter, to try without a GPU what one would run",
    )
    cuda_graphs: bool = _setting(
        False, "LYNX_CUDA_GRAPHS", "record launches on GPUs, and replay them: one launch a graph"
    )
    autotune: bool = _setting(
        False, "LYNX_AUTOTUNE", "measure on GPUs which schedules are fastest, and remember them"
    )
    strict: bool = _setting(False, "LYNX_STRICT", "raise where Lynx would fall back to torch")
    debug: int = _setting(
        0,
        "LYNX_DEBUG",
        "1: what was compiled, 2: passes with times and op counts, 3: IR after each change, "
        "4: generated source",
    )
    dump_dir: str = _setting(
        "", "LYNX_DUMP_DIR", "write a text file there for each graph and pass that changed it"
    )
    reproducer_dir: str = _setting(
        "",
        "LYNX_REPRODUCER_DIR",
        "where a crash writes its test file (default: a temporary folder)",
    )
    cache: bool = _setting(True, "LYNX_CACHE", "keep what was compiled on disk")
    cache_dir: str = _setting(
        "", "LYNX_CACHE_DIR", "the folder for it (default: lynx in the user's cache folder)"
    )
    cache_size: int = _setting(2048, "LYNX_CACHE_SIZE", "its limit in MiB; oldest entries go first")
    fused_loss_bytes: int = _setting(
        8 << 20,
        "LYNX_FUSED_LOSS_BYTES",
        "fuse a projection with the cross-entropy of its logits if those take this many bytes",
    )
    attention: str = _setting(
        "auto",
        "LYNX_ATTENTION",
        "'auto' recognises attention where there is a kernel for it, 'none' leaves it as written",
    )
    products: str = _setting(
        "auto",
        "LYNX_PRODUCTS",
        "who multiplies matrices on the CPU: library, own, or auto (own f32 on AMD processors, "
        "own bf16 where the processor multiplies pairs of those and has no unit for blocks)",
    )
    distribution: str = _setting(
        "auto",
        "LYNX_DISTRIBUTION",
        "programs over distributed tensors: 'auto' finds out how all values lie, 'gather' computes "
        "the whole on each process, to compare with",
    )
    machine: str = _setting(
        "",
        "LYNX_MACHINE",
        "the machines of a mesh, by name or by file in TOML: what travels together, and when, "
        "depends on how fast their links are (default: h100 on GPUs, cpu-gloo on CPUs)",
    )
    collective_timeout: int = _setting(
        300, "LYNX_COLLECTIVE_TIMEOUT", "seconds after which a collective that hangs is an error"
    )
    progress: bool = _setting(True, "LYNX_PROGRESS", "show progress of long work on a terminal")

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            _check_choice(f"option '{setting.name}'", setting.name, getattr(self, setting.name))
        if self.machine:
            read_target(self.machine)  # a machine that nobody knows is an error before any work

    @property
    def reproducers(self) -> str:
        """The folder for reproducers."""
        return self.reproducer_dir or os.path.join(tempfile.gettempdir(), "lynx-reproducers")

    @property
    def cache_folder(self) -> str:
        """The folder of the cache: where the user's system keeps such things, unless set."""
        return os.path.expanduser(self.cache_dir) or _user_cache_folder(os.environ)


def read_settings(
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings from options, a mode and the environment; `UsageError` on a bad one.

    A variable of the environment that looks like one of Lynx's and is none gives a warning.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for setting in dataclasses.fields(Settings):
        name = setting.metadata["environment"]
        if name in environment:
            value = _parse(name, environment[name], type(setting.default))
            _check_choice(name, setting.name, value)
            values[setting.name] = value
    _warn_of_unknown(environment)
    if mode is not None:
        values.update(_settings_of_mode(mode))
    known = {setting.name: setting for setting in dataclasses.fields(Settings)}
    for key, value in (options or {}).items():
        name = key.replace("-", "_")
        if name not in known:
            raise UsageError("unknown-option", f"unknown option {key!r}{suggest(name, known)}")
        values[name] = _checked(key, value, type(known[name].default))
    return Settings(**values)


def _check_choice(what: str, name: str, value: Any) -> None:
    """Raise `UsageError` unless a setting can have a value; `what` says where that came from."""
    known = _CHOICES.get(name)
    if known is not None and value not in known:
        raise UsageError("bad-option", f"{what} takes {', '.join(known)}, got {value!r}")
    if name == "debug" and not 0 <= value <= 4:
        raise UsageError("bad-option", f"{what} takes 0 to 4, got {value}")


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    known = [setting.metadata["environment"] for setting in dataclasses.fields(Settings)]
    for name in sorted(environment):
        if name.startswith("LYNX_") and name not in known and not name.startswith(_OF_TESTS):
            RECORDS.warn(f"lynx: there is no setting {name}{suggest(name, known)}")


def _user_cache_folder(environment: Mapping[str, str]) -> str:
    """Return `lynx` in the folder that the XDG rules, macOS or Windows give to caches."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the rules say to ignore it then
        default = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}
        base = os.path.expanduser(default.get(sys.platform, "~/.cache"))
    return os.path.join(base, "lynx")


def describe() -> str:
    """Return a table of all settings: name, environment name, default and meaning."""
    rows = [
        (s.name, s.metadata["environment"], repr(s.default), s.metadata["help"])
        for s in dataclasses.fields(Settings)
    ]
    first, second, third, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(
        f"{name:<{first}}  {environment:<{second}}  {default:<{third}}  {help_}"
        for name, environment, default, help_ in rows
    )


def suggest(word: str, known: Mapping[str, Any] | list[str]) -> str:
    """Return `; did you mean 'x'?`, or the list of what there is."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known are {', '.join(sorted(known))}"


def _settings_of_mode(mode: str) -> Mapping[str, Any]:
    if mode not in MODES:
        raise UsageError("unknown-mode", f"unknown mode {mode!r}{suggest(mode, MODES)}")
    return MODES[mode]


def _checked(key: str, value: Any, kind: type[Any]) -> Any:
    if isinstance(value, os.PathLike) and kind is str:
        return os.fspath(value)
    if type(value) is not kind:
        expected = kind.__name__
        raise UsageError("bad-option", f"option {key!r} takes {expected}, got {value!r}")
    return value


def _parse(name: str, text: str, kind: type[Any]) -> Any:
    if kind is str:
        return text
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if kind is bool and text.lower() in words:
        return words[text.lower()]
    if kind is int and text.strip().isdigit():
        with contextlib.suppress(ValueError):  # some digits are no numbers: superscripts
            return int(text)
    expected = "0 or 1" if kind is bool else "a number"
    raise UsageError("bad-option", f"{name} takes {expected}, got {text!r}")
