"""FLOWS of a solved graph: what the network would show of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.errors import BadConfigError
from prism.records.flows import FLOWS
from prism.simulate.cluster import Cluster
from prism.simulate.endpoints import choose_spines, hash_columns, list_endpoints, name_paths
from prism.simulate.messages import find_messages
from prism.simulate.solving.kernel import END, RANK_NOTES, START
from prism.simulate.solving.solver import Solution

Ints = NDArray[np.int64]
ROCE_PORT = 4791  # UDP destination of RoCEv2
_DYNAMIC_PORTS = 49_152, 16_384  # first and number of the ports that a sender picks from (RFC 6335)


@dataclass(frozen=True)
class OpTimes:
    """Looks up the times of many ops at once in a solution that kept them."""

    solution: Solution

    @cached_property
    def _place(self) -> Ints:
        """By class and seq: where the op lies among those of its rank, -1 for what has no time."""
        program, ops = self.solution.program, self.solution.graph.ops
        seq = ops["seq"].to_numpy()
        bounds = program.code.class_op_start
        place = np.full((len(program.classes), int(seq.max(initial=-1)) + 1), -1, np.int64)
        for index in range(len(program.classes)):
            rows = program.row[bounds[index] : bounds[index + 1]]
            timed = rows >= 0
            place[index, seq[rows[timed]]] = np.flatnonzero(timed)
        return place

    def rows_of(self, rank: Ints, seq: Ints) -> Ints:
        """Where the ops `seq` of the ranks lie in the table of times."""
        solved = self.solution.wiring.cell[rank]
        first = self.solution.state.ranks[solved, RANK_NOTES]
        return np.asarray(first + self._place[self.solution.wiring.wires.rank_class[solved], seq])

    @property
    def table(self) -> Ints:
        """Start, ready and end of every noted op; ready is when the last side of a transfer arrived."""
        if not len(self.solution.state.times):
            raise BadConfigError("the times of single ops were not kept; solve with note_ops=True")
        return self.solution.state.times


@dataclass(frozen=True)
class MessageTimes:
    """When messages are on the wire.

    A message begins once its sender is there: the receiver's buffers were given out when the call was enqueued (NCCL's
    proxies, a kernel's socket buffers), so the first bytes leave though the receiver may still compute.
    """

    messages: pl.DataFrame

    @cached_property
    def _ops(self) -> tuple[Ints, Ints]:
        return self.messages["rank"].to_numpy(), self.messages["seq"].to_numpy()

    def look_up(self, times: OpTimes, first_op: int = 0) -> tuple[Ints, Ints]:
        """Start and end of every message in a solution, with the programs starting at op `first_op`."""
        rank, seq = self._ops
        at = times.rows_of(rank, seq + first_op)
        return times.table[at, START], times.table[at, END]


def make_flows(solution: Solution, cluster: Cluster, epoch_ns: int = 0) -> pl.DataFrame:
    """FLOWS of everything that crosses hosts, one record per message, sorted by start."""
    messages = find_messages(solution.graph, cluster)
    times = OpTimes(solution)
    start, end = MessageTimes(messages).look_up(times)
    names = list_endpoints(cluster, range(int(solution.graph.ranks["host"].max() or 0) + 1))["address"]  # type: ignore[arg-type]
    source, target = messages["src"].to_numpy(), messages["dst"].to_numpy()
    connections = describe_connections(messages, cluster)
    flows = pl.DataFrame(
        {
            "start_ns": epoch_ns + start,
            "end_ns": epoch_ns + end,
            "src": names.gather(source),
            "dst": names.gather(target),
            "bytes": messages["bytes"],
            "src_port": connections["src_port"],
            "dst_port": np.full(len(start), ROCE_PORT),
            "qp": connections["qp"],
            "path": connections["path"],
        }
    )
    return FLOWS.conform(flows, "flows").sort("start_ns", "src", "dst", "qp")


def describe_connections(messages: pl.DataFrame, cluster: Cluster) -> pl.DataFrame:
    """Queue pair, sender's port, spine and path of each message; a group keeps one connection per pair of NICs."""
    src, dst, group = (messages[c].cast(pl.Int64).to_numpy() for c in ("src", "dst", "group"))
    mark = hash_columns(group, src, dst)
    first, count = _DYNAMIC_PORTS
    port = (first + (mark >> np.uint64(40)) % np.uint64(count)).astype(np.int64)
    spine = choose_spines(cluster, src, dst, port)
    return pl.DataFrame(
        {
            "src_port": port,
            "qp": ((mark >> np.uint64(16)) % np.uint64(2**24)).astype(np.int64),  # 24 bits on the wire
            "spine": spine,
            "path": name_paths(cluster, src, dst, spine),
        }
    )
