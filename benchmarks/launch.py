"""Run a benchmark on several processes of one thread each, which leave what they found as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def is_launched() -> bool:
    """Whether this process is one of several."""
    return "RANK" in os.environ


def launched(module: str, arguments: Sequence[str], processes: int) -> tuple[int, Any]:
    """Return the exit status of a module on several processes, and what it wrote if that is 0.

    Its arguments get an option `--out`, the file in which the first process leaves its JSON.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command = [sys.executable, *launcher, str(processes), "-m", module, *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.run([*command, "--out", str(out)], env=environment, check=False)
        code = process.returncode
        return code, json.loads(out.read_text()) if code == 0 else None
