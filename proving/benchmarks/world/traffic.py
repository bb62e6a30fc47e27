"""Bursts: the packets of one transfer that follow each other without a pause, the unit that exporters work on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

KINDS = ("dp", "pp", "cp", "ep", "embedding", "control", "storage", "noise")
CODE = {kind: code for code, kind in enumerate(KINDS)}
COLUMNS = ("start", "end", "src", "dst", "payload", "connection", "transfer", "kind")


@dataclass
class Bursts:
    """Columns of bursts, appended in blocks; times in seconds, addresses and connections as numbers."""

    blocks: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    num_transfers: int = 0

    def new_transfers(self, count: int) -> np.ndarray:
        """Numbers for transfers that begin now."""
        numbers = np.arange(self.num_transfers, self.num_transfers + count)
        self.num_transfers += count
        return numbers

    def add(self, start: np.ndarray, end: np.ndarray, payload: np.ndarray, route: Route, transfer: np.ndarray) -> None:
        """Append bursts; those that never begin (a hang) or carry nothing are left out."""
        keep = np.isfinite(start) & np.isfinite(end) & (payload > 0)
        kind = np.full(len(start), CODE[route.kind], dtype=np.int8)
        block = (start, end, route.src, route.dst, payload, route.connection, transfer, kind)
        self.blocks.append(block if keep.all() else tuple(column[keep] for column in block))

    def columns(self) -> dict[str, np.ndarray]:
        """All blocks as one table of columns."""
        if not self.blocks:
            return {name: np.zeros(0) for name in COLUMNS}
        return {name: np.concatenate([b[i] for b in self.blocks]) for i, name in enumerate(COLUMNS)}


@dataclass(frozen=True)
class Route:
    """Who sends to whom over which connection, row by row, and what for."""

    src: np.ndarray
    dst: np.ndarray
    connection: np.ndarray
    kind: str
