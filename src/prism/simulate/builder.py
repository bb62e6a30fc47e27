"""Write a graph by hand: programs op by op, then the groups and the ranks that run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from prism.errors import GraphError
from prism.records.ops import GROUPS, OPS, RANKS
from prism.records.spans import PAIR_KINDS
from prism.simulate.graph import Graph, make_graph


class ProgramBuilder:
    """One class's program; every method appends one op and ops keep the order of the calls."""

    def __init__(self, class_id: int) -> None:
        self.class_id = class_id
        self.step: int | None = None  # stamped on the ops that follow
        self._columns: dict[str, list[Any]] = {name: [] for name in OPS.required if name not in ("class", "seq")}
        self._open_batch: int | None = None
        self._num_batches = 0
        self._num_events = 0

    def compute(self, name: str, duration_ns: int, *, stream: int = 0, source: str | None = None) -> None:
        """A kernel, or many of them, that take this long on a GPU of normal speed."""
        self._append("compute", name, stream, duration_ns=duration_ns, source=source)

    def host(self, name: str, duration_ns: int, *, stream: int = 0, source: str | None = None) -> None:
        """A gap in which the stream waits for the host."""
        self._append("host", name, stream, duration_ns=duration_ns, source=source)

    def collective(
        self, kind: str, slot: str, size_bytes: int, *, stream: int = 0, name: str | None = None,
        root: int | None = None, sizes: Sequence[int] | None = None, duration_ns: int | None = None,
        source: str | None = None,
    ) -> None:  # fmt: skip
        """Any collective of the rank's group in `slot`; `sizes` are an all-to-all's bytes to each position."""
        self._append(
            kind, name or kind, stream, slot=slot, bytes=size_bytes, peer=root, source=source,
            sizes=None if sizes is None else list(sizes), duration_ns=duration_ns, batch=self._open_batch,
        )  # fmt: skip

    def all_reduce(self, slot: str, size_bytes: int, *, stream: int = 0, name: str | None = None) -> None:
        """Sum a tensor of this size over the group."""
        self.collective("all_reduce", slot, size_bytes, stream=stream, name=name)

    def all_gather(self, slot: str, size_bytes: int, *, stream: int = 0, name: str | None = None) -> None:
        """Gather shards into an output of this size."""
        self.collective("all_gather", slot, size_bytes, stream=stream, name=name)

    def reduce_scatter(self, slot: str, size_bytes: int, *, stream: int = 0, name: str | None = None) -> None:
        """Sum and shard an input of this size."""
        self.collective("reduce_scatter", slot, size_bytes, stream=stream, name=name)

    def all_to_all(
        self,
        slot: str,
        size_bytes: int,
        *,
        sizes: Sequence[int] | None = None,
        stream: int = 0,
        name: str | None = None,
    ) -> None:
        """Exchange; `size_bytes` is all this rank sends, `sizes` what it sends to each position."""
        self.collective("all_to_all", slot, size_bytes, sizes=sizes, stream=stream, name=name)

    def broadcast(self, slot: str, size_bytes: int, root: int, *, stream: int = 0, name: str | None = None) -> None:
        """Copy the root's tensor to the group."""
        self.collective("broadcast", slot, size_bytes, root=root, stream=stream, name=name)

    def barrier(self, slot: str, *, stream: int = 0, name: str | None = None) -> None:
        """Wait for every member."""
        self.collective("barrier", slot, 0, stream=stream, name=name)

    def send(
        self, slot: str, size_bytes: int, *, peer: int | None = None, shift: int | None = None, stream: int = 0,
        name: str | None = None, duration_ns: int | None = None, source: str | None = None,
    ) -> None:  # fmt: skip
        """Send to the position `peer` of the group, or `shift` positions further."""
        self._append(
            "send", name or "send", stream, slot=slot, peer=peer, shift=shift, bytes=size_bytes,
            batch=self._open_batch, duration_ns=duration_ns, source=source,
        )  # fmt: skip

    def recv(
        self, slot: str, size_bytes: int, *, peer: int | None = None, shift: int | None = None, stream: int = 0,
        name: str | None = None, duration_ns: int | None = None, source: str | None = None,
    ) -> None:  # fmt: skip
        """Receive from the position `peer` of the group, or from the one `shift` positions further."""
        self._append(
            "recv", name or "recv", stream, slot=slot, peer=peer, shift=shift, bytes=size_bytes,
            batch=self._open_batch, duration_ns=duration_ns, source=source,
        )  # fmt: skip

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Communication ops inside, all on one stream, start together and end together, as one call."""
        if self._open_batch is not None:
            raise GraphError("a batch cannot be opened inside a batch; close the first one")
        self._open_batch, self._num_batches = self._num_batches, self._num_batches + 1
        try:
            yield
        finally:
            self._open_batch = None

    def record(self, *, stream: int, source: str | None = None) -> int:
        """Mark a point of a stream; returns the event that other streams can wait for."""
        event, self._num_events = self._num_events, self._num_events + 1
        self._append("record", "record", stream, event=event, source=source)
        return event

    def wait(self, event: int, *, stream: int, source: str | None = None) -> None:
        """Hold a stream until the recorded point is reached."""
        self._append("wait", "wait", stream, event=event, source=source)

    def join(self, *, waiter: int, on: int) -> None:
        """Make stream `waiter` wait for all that stream `on` was given so far."""
        self.wait(self.record(stream=on), stream=waiter)

    def to_frame(self) -> pl.DataFrame:
        """The program as OPS rows."""
        schema = {name: dtype for name, dtype in OPS.required.items() if name in self._columns}
        frame = pl.DataFrame(self._columns, schema=schema, strict=False)
        seq = pl.int_range(pl.len(), dtype=pl.Int32).alias("seq")
        return frame.with_columns(seq, pl.lit(self.class_id, pl.Int32).alias("class")).select(list(OPS.required))

    def _append(self, kind: str, name: str, stream: int, **values: Any) -> None:
        values.update(kind=kind, name=name, stream=stream, step=self.step)
        for column, cells in self._columns.items():
            cells.append(values.get(column))


class GraphBuilder:
    """Collects programs, groups and ranks, and builds the graph from them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._programs: list[ProgramBuilder] = []
        self._ranks: list[pl.DataFrame] = []
        self._groups: list[pl.DataFrame] = []
        self._num_groups = 0

    def program(self) -> ProgramBuilder:
        """A new, empty class program."""
        self._programs.append(ProgramBuilder(len(self._programs)))
        return self._programs[-1]

    def rank(self, rank: int, program: ProgramBuilder, *, host: int = 0, local: int = 0) -> None:
        """One rank that runs `program` as GPU `local` of `host`."""
        self.ranks([rank], [program.class_id], [host], [local])

    def ranks(self, rank: ArrayLike, classes: ArrayLike, host: ArrayLike, local: ArrayLike) -> None:
        """Many ranks at once, one entry of each array per rank."""
        columns = {"rank": rank, "class": classes, "host": host, "local": local}
        frame = {name: np.asarray(values, dtype=np.int64) for name, values in columns.items()}
        self._ranks.append(RANKS.conform(pl.DataFrame(frame), "ranks"))

    def group(self, slot: str, members: Sequence[int], *, kind: str | None = None) -> int:
        """One group, its members in the order of their positions; returns its number."""
        return self.groups(slot, np.asarray([members], dtype=np.int64), kind=kind)[0]

    def groups(self, slot: str, members: ArrayLike, *, kind: str | None = None) -> list[int]:
        """Equal-sized groups, one per row of a two-dimensional array; `kind` is the slot's name where it is one."""
        table = np.atleast_2d(np.asarray(members, dtype=np.int64))
        num, size = table.shape
        ids = np.arange(self._num_groups, self._num_groups + num)
        self._num_groups += num
        named = kind or (slot if slot in PAIR_KINDS else "unknown")
        frame = pl.DataFrame(
            {
                "group": np.repeat(ids, size),
                "rank": table.ravel(),
                "position": np.tile(np.arange(size), num),
            }
        ).with_columns(pl.lit(slot).alias("slot"), pl.lit(named).alias("kind"))
        self._groups.append(GROUPS.conform(frame, f"groups of slot {slot}"))
        return [int(i) for i in ids]

    def build(self) -> Graph:
        """The finished graph; `verify` says whether it would run."""
        programs = [program.to_frame() for program in self._programs]
        return make_graph(
            self.name,
            pl.concat(programs) if programs else OPS.empty(),
            pl.concat(self._ranks) if self._ranks else RANKS.empty(),
            pl.concat(self._groups) if self._groups else GROUPS.empty(),
        )
