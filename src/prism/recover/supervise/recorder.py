"""Switches PyTorch's Flight Recorder on, so that a hang leaves a record of which rank missed a collective."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_DUMP_NAME = "nccl_trace_rank_"  # the rank is appended
# Names that torch knows from 2.9 on, and those before it. The newer torch warns about the older names in every rank's
# log, so both are set only if the installed torch is old or unknown.
_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
}


def recorder_variables(folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables by which ranks record their collectives into the attempt's folder, without those already set."""
    present = os.environ if environment is None else environment
    values = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / _DUMP_NAME),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / _DUMP_NAME),
    }
    chosen: dict[str, str] = {}
    for name, value in values.items():
        older = _NAMES[name]
        if name not in present and older not in present:
            chosen |= {name: value} if _knows_new_names() else {name: value, older: value}
    return chosen


def ask_for_dumps(folder: Path) -> int:
    """Ask the ranks of this machine for their dumps, before a hung attempt is ended; returns how many were asked."""
    asked = 0
    for pipe in sorted(folder.glob(f"{_DUMP_NAME}*.pipe")):
        try:
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # fails, instead of waiting, if the rank has closed it
        except OSError:
            continue
        with os.fdopen(handle, "wb", buffering=0) as writer:
            writer.write(b"1\n")
            asked += 1
    return asked


def _knows_new_names() -> bool:
    try:
        major, minor = version("torch").split(".")[:2]
        return (int(major), int(minor)) >= (2, 9)
    except (PackageNotFoundError, ValueError):
        return False
