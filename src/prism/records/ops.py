"""OPS: an execution graph stored by rank class, with the ranks and groups it runs on.

A class is a set of ranks that run the same program. Ops name their group by slot ("dp", "pp"), and each rank says
which group fills the slot, so 8,192 ranks of four classes cost four programs.

Bytes of a communication op are those of the whole buffer as one rank sees it: the tensor of an all-reduce, the
gathered output of an all-gather, the full input of a reduce-scatter, everything sent in an all-to-all, one message.

A communication op that carries `duration_ns` was measured: it takes that long from the moment all its members have
arrived, and no cost model is asked. Ranks of one class that talk to different positions (a ring) name the other side
by `shift`, the distance from their own position, instead of `peer`.
"""

from __future__ import annotations

import polars as pl

from prism.records.shape import Shape, columns
from prism.records.spans import PAIR_KINDS

COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "barrier", "gather", "scatter",
)  # fmt: skip
POINT_TO_POINT = ("send", "recv")
OP_KINDS = ("compute", "host", *COLLECTIVES, *POINT_TO_POINT, "record", "wait", "alloc", "free")

OPS = Shape(
    name="ops",
    required=columns(
        {
            "class": pl.Int32,
            "seq": pl.Int32,  # program order within the class, over all its streams
            "stream": pl.Int32,
            "kind": pl.Enum(OP_KINDS),
            "name": pl.String,
            "step": pl.Int32,
            "duration_ns": pl.Int64,  # of compute and host ops; of a communication op where it was measured
            "slot": pl.String,  # which of the rank's groups communicates
            "peer": pl.Int32,  # position in the group: of the other side, or of the root
            "shift": pl.Int32,  # send and recv: the other side, counted from the own position, modulo the group's size
            "bytes": pl.Int64,
            "sizes": pl.List(pl.Int64),  # all_to_all: bytes to each position
            "event": pl.Int32,  # record and wait: which event
            "batch": pl.Int32,  # sends and receives issued as one call share this number
            "source": pl.String,  # file:line where known
        }
    ),
    nullable=frozenset({"step", "duration_ns", "slot", "peer", "shift", "bytes", "sizes", "event", "batch", "source"}),
)

RANKS = Shape(
    name="ranks",
    required=columns({"rank": pl.Int32, "class": pl.Int32, "host": pl.Int32, "local": pl.Int32}),
)
"""Which class each rank runs, on which host, as which GPU of it."""

GROUPS = Shape(
    name="groups",
    required=columns(
        {
            "group": pl.Int32,
            "slot": pl.String,
            "kind": pl.Enum(PAIR_KINDS),
            "rank": pl.Int32,
            "position": pl.Int32,
        }
    ),
)
"""One row per member: which rank holds which position of which group."""
