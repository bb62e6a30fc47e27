"""JOBS: a scheduler's records, one row per job."""

from __future__ import annotations

import polars as pl

from prism.records.shape import Shape, columns

JOB_STATES = (
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "node_fail",
    "preempted",
    "out_of_memory",
    "running",
    "pending",
    "unknown",
)

JOBS = Shape(
    name="jobs",
    required=columns(
        {
            "job": pl.String,
            "user": pl.String,
            "type": pl.String,  # what it does: pretrain, evaluation, ... as the site names it
            "state": pl.Enum(JOB_STATES),
            "gpus": pl.Float64,  # some schedulers lend fractions
            "submit_ns": pl.Int64,  # times count from the Unix epoch
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
        }
    ),
    optional=columns(
        {
            "cluster": pl.String,
            "nodes": pl.Int64,
            "cpus": pl.Float64,
            "duration_s": pl.Float64,  # start to end; given where the trace gives no times
            "queue_s": pl.Float64,  # submit to start
            "gpu_time_s": pl.Float64,
            "reason": pl.String,  # why it failed
            "node_list": pl.String,
        }
    ),
    nullable=frozenset({"user", "type", "submit_ns", "start_ns", "end_ns"}),
)
