"""Files like checkpoints that a program wrote: a sign of progress where it reports no steps."""

from __future__ import annotations

import os
from pathlib import Path

_SUFFIXES = {".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npz", ".npy", ".pkl", ".h5", ".msgpack"}
_WORDS = ("checkpoint", "ckpt", "state", "snapshot", "resume", "last")
_MAX_DEPTH = 4
_MAX_ENTRIES = 20_000  # a folder of data may hold millions of files


def find_saved(folder: Path, since_s: float, without: Path) -> str:
    """The path of a checkpoint-like file below a folder that was written after a moment; empty if none was found."""
    pending, seen = [(folder, 0)], 0
    while pending:
        place, depth = pending.pop(0)
        try:
            entries = list(os.scandir(place))
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > _MAX_ENTRIES:
                return ""
            try:
                if entry.is_dir(follow_symlinks=False):
                    if depth < _MAX_DEPTH and not entry.name.startswith(".") and Path(entry.path) != without:
                        pending.append((Path(entry.path), depth + 1))
                elif _is_like_checkpoint(entry) and entry.stat().st_mtime > since_s:
                    return entry.path
            except OSError:
                continue
    return ""


def _is_like_checkpoint(entry: os.DirEntry[str]) -> bool:
    name = entry.name.lower()
    return Path(name).suffix in _SUFFIXES or any(word in name for word in _WORDS)
