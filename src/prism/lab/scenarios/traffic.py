"""The records of all jobs and of storage before they are measured, and the FLOWS made from the measured ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from prism.lab.scenarios.measurement import Measurement
from prism.lab.scenarios.naming import STORAGE_SWITCH, Naming
from prism.lab.scenarios.planted import Planted
from prism.lab.scenarios.scenario import Scenario
from prism.lab.scenarios.storage import Transfers, read_samples, write_checkpoints
from prism.lab.scenarios.timeline import JobRun
from prism.records import FLOWS
from prism.simulate.cluster import Cluster
from prism.simulate.endpoints import hash_columns, name_paths
from prism.simulate.flows import ROCE_PORT

_CONNECTION = {"src": pl.Int32, "dst": pl.Int32, "src_port": pl.Int32, "qp": pl.Int64, "path": pl.String}


def collect_records(
    scenario: Scenario, runs: Sequence[JobRun], planted: Sequence[Planted], naming: Naming, epoch_ns: int, seed: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Records (connection, start_ns, end_ns, bytes) of the whole scenario, and the table of connections."""
    parts, tables, first = [], [], 0
    for run in runs:
        connections = run.plan.connections.select(pl.col(c).cast(t) for c, t in _CONNECTION.items())
        records = _records(first + run.connection.astype(np.int64), run.start_ns, run.end_ns, run.bytes, epoch_ns)
        records, rerouted = _reroute(records, connections, run, planted, scenario.cluster, epoch_ns, first)
        stored, storage = _storage_records(
            scenario, run, naming, epoch_ns, first + connections.height + rerouted.height, seed
        )
        parts += [records, stored]
        tables += [connections, rerouted, storage]
        first += connections.height + rerouted.height + storage.height
    table = pl.concat(tables)
    exporter = pl.col("path").str.split(">").list.first().alias("exporter")
    return pl.concat(parts), table.with_columns(exporter)


def _records(
    connection: np.ndarray, start: np.ndarray, end: np.ndarray, size: np.ndarray, epoch_ns: int
) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "connection": connection.astype(np.int32),
            "start_ns": epoch_ns + start,
            "end_ns": epoch_ns + end,
            "bytes": size,
        }
    )


def _reroute(
    records: pl.DataFrame,
    connections: pl.DataFrame,
    run: JobRun,
    planted: Sequence[Planted],
    cluster: Cluster,
    epoch_ns: int,
    first: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """During a fault, rerouted connections are replaced by others with the same ends over another spine."""
    added = connections.clear()
    for p in planted:
        for route in (r for r in p.reroutes if r.job == run.plan.index):
            row = connections[route.connection]
            src, dst = (row[c].cast(pl.Int64).to_numpy() for c in ("src", "dst"))
            path = name_paths(cluster, src, dst, np.array([route.spine]))
            number = first + connections.height + added.height
            added = added.vstack(row.with_columns(path.alias("path")))
            held = (pl.col("start_ns") >= epoch_ns + p.start_ns) & (pl.col("start_ns") < epoch_ns + p.end_ns)
            moved = held & (pl.col("connection") == first + route.connection)
            other = pl.when(moved).then(pl.lit(number, pl.Int32)).otherwise("connection").alias("connection")
            records = records.with_columns(other)
    return records, added


def _storage_records(
    scenario: Scenario, run: JobRun, naming: Naming, epoch_ns: int, first: int, seed: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The storage traffic of a job, cut at the end of the scenario."""
    job, hosts, servers = run.plan.job, np.unique(run.plan.layout.host), scenario.num_storage
    found: list[Transfers] = []
    if job.data_loading:
        found.append(read_samples(job, hosts, run.step_start_ns, servers, seed + run.plan.index))
    if job.checkpoint is not None:
        due = (run.step_number + 1) % job.checkpoint.every_steps == 0
        paused = run.pauses_ns[due]
        if job.evaluation is not None:  # an evaluation may pause the same step for longer
            both = (run.step_number[due] + 1) % job.evaluation.every_steps == 0
            paused = paused - np.where(both, round(job.evaluation.pause_s * 1e9), 0)
        saved = run.step_end_ns[due] - run.pauses_ns[due]
        found.append(write_checkpoints(job, hosts, saved, paused, servers))
    none = pl.DataFrame(schema=_CONNECTION)
    empty = np.zeros(0, np.int64)
    if not found:
        return _records(empty, empty, empty, empty, epoch_ns), none
    host, server, writes, start, end, size = (
        np.concatenate([getattr(t, c) for t in found])
        for c in ("host", "server", "writes", "start_ns", "end_ns", "bytes")
    )
    nic, store = host * scenario.cluster.nics.count, naming.num_nics + server
    src, dst = np.where(writes, nic, store), np.where(writes, store, nic)
    pairs, number = np.unique(np.stack([src, dst]), axis=1, return_inverse=True)
    seen = end <= round(scenario.duration_s * 1e9)
    records = _records(first + number.ravel()[seen], start[seen], end[seen], size[seen], epoch_ns)
    return records, _storage_connections(pairs, naming, scenario.cluster)


def _storage_connections(pairs: np.ndarray, naming: Naming, cluster: Cluster) -> pl.DataFrame:
    src, dst = pairs
    mark = hash_columns(src, dst)
    nic = np.where(src < naming.num_nics, src, dst)
    leaf = cluster.leaf_of(nic // cluster.nics.count, nic % cluster.nics.count)
    spine = ((mark >> np.uint64(33)) % np.uint64(cluster.fabric.num_spines)).astype(np.int64)
    frame = pl.DataFrame({"leaf": leaf, "spine": spine, "up": src < naming.num_nics})
    up = pl.format("leaf-{}>spine-{}>" + STORAGE_SWITCH, "leaf", "spine")
    down = pl.format(STORAGE_SWITCH + ">spine-{}>leaf-{}", "spine", "leaf")
    return pl.DataFrame(
        {
            "src": src,
            "dst": dst,
            "src_port": (49_152 + (mark >> np.uint64(40)) % np.uint64(16_384)).astype(np.int64),
            "qp": ((mark >> np.uint64(16)) % np.uint64(2**24)).astype(np.int64),
            "path": frame.select(pl.when("up").then(up).otherwise(down).alias("path"))["path"],
        },
        schema_overrides=_CONNECTION,
    )


def expand_flows(records: pl.DataFrame, connections: pl.DataFrame, naming: Naming, config: Measurement) -> pl.DataFrame:
    """FLOWS from measured records, with the columns that the exporter fills, sorted by start."""
    names = pl.Series(naming.names)
    table = connections.with_columns(
        names.gather(connections["src"]).alias("src"),
        names.gather(connections["dst"]).alias("dst"),
        pl.lit(ROCE_PORT, pl.Int32).alias("dst_port"),
    )
    wanted = ["src", "dst"]
    wanted += ["src_port", "dst_port", "qp"] if config.with_ports else []
    wanted += ["path"] if config.with_path else []
    wanted += ["exporter"] if config.with_exporter else []
    records = records.sort("start_ns", "connection", maintain_order=True)  # while rows are narrow
    picked = records["connection"]
    columns = [table[c].gather(picked).alias(c) for c in wanted]
    flows = records.drop("connection").with_columns(columns)
    return FLOWS.conform(flows, "flows")
