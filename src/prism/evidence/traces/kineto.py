"""PyTorch profiler (Kineto) traces of one rank: what ran on the GPU, what launched it, and the steps.

A trace of a CPU run has no kernels; there the operators are the compute and the backend's annotations (gloo:all_reduce)
the communication.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from prism.errors import BadFileError
from prism.evidence.traces.kernel_names import DTYPE_BYTES, HOST_COLLECTIVE, STEP, classify, name_collective
from prism.evidence.traces.trace_events import TraceFile
from prism.records.shape import columns

WORK = columns(
    {
        "what": pl.Enum(["compute", "communication", "memory"]),
        "name": pl.String,
        "lane": pl.String,  # the stream, or on CPUs the thread
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "launch_ns": pl.Int64,  # when the host launched it; null where the trace does not say
        "step": pl.Int32,
        "collective": pl.String,
        "bytes": pl.Int64,  # of the message, input or output, whichever is larger
        "group": pl.String,
        "group_size": pl.Int64,
    }
)
_ON_GPU = ("kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "privateuse1_runtime", "Runtime")
_STEPS = pl.Schema({"step": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64})
_MOST_US = 4e15  # the year 2096; with nanoseconds it still fits 64 bits
_RANK = re.compile(r"rank[-_]?(\d{1,6})|[-_.](\d{1,6})\.(?:pt\.trace\.)?json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the profiler saw of one rank."""

    rank: int
    world_size: int | None
    path: str
    on_gpu: bool
    work: pl.DataFrame  # WORK, by start
    steps: pl.DataFrame  # _STEPS
    notes: tuple[str, ...]


def read_profile(path: Path) -> Profile:
    """Read one rank's trace, JSON or gzipped, in pieces."""
    file = TraceFile(path)
    pieces: list[pl.DataFrame] = []
    operators: list[pl.DataFrame] = []
    launches: list[pl.DataFrame] = []
    marks: list[pl.DataFrame] = []
    for events in file.read_events():
        possible = pl.col("ts").abs().lt(_MOST_US) & pl.col("dur").fill_null(0.0).is_between(0, _MOST_US)
        events = events.filter(possible).with_columns(_times())
        category = pl.col("cat")
        pieces.append(_read_gpu_work(events.filter(category.is_in(_ON_GPU))))
        launches.append(_read_launches(events.filter(category.is_in(_LAUNCHES))))
        annotations = events.filter(category.is_in(["user_annotation", "gpu_user_annotation"]))
        marks.append(annotations.select("cat", "name", "start_ns", "end_ns").filter(pl.col("name").str.contains(STEP)))
        operators.append(_read_host_work(events.filter(category.is_in(["cpu_op", "user_annotation"]))))
    if not pieces:
        raise BadFileError(f"{path}: holds no complete event; the program ended before its profiler did")
    work = pl.concat(pieces)
    on_gpu = work.height > 0
    work = work if on_gpu else pl.concat(operators)
    if work.is_empty():
        raise BadFileError(f"{path}: holds neither kernels nor operators; give a trace of PyTorch's profiler")
    steps = _read_steps(pl.concat(marks))
    if on_gpu:
        work = work.join(pl.concat(launches).unique("correlation", keep="first"), on="correlation", how="left")
    return _finish(file, work.drop("correlation", strict=False), steps, on_gpu=on_gpu)


def _finish(file: TraceFile, work: pl.DataFrame, steps: pl.DataFrame, *, on_gpu: bool) -> Profile:
    info = file.properties.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    base = file.properties.get("baseTimeNanoseconds")
    shift = base if isinstance(base, int) else 0
    work = _assign_steps(work.sort("start_ns"), steps)
    times = [c for c in ("start_ns", "end_ns", "launch_ns") if c in work.columns]
    work = work.with_columns(pl.col(times) + shift).select(
        pl.col(c).cast(t) if c in work.columns else pl.lit(None, t).alias(c) for c, t in WORK.items()
    )
    notes = []
    if not file.is_whole:
        notes.append(f"{file.path}: breaks off before its end; what was read up to there counts")
    if not on_gpu:
        notes.append(f"{file.path}: no kernels, so operators on the CPU count as compute")
    rank = info.get("rank")
    return Profile(
        rank=rank if isinstance(rank, int) else _rank_of_name(file.path),
        world_size=info.get("world_size") if isinstance(info.get("world_size"), int) else None,
        path=str(file.path),
        on_gpu=on_gpu,
        work=work,
        steps=steps.with_columns(pl.col("start_ns", "end_ns") + shift),
        notes=tuple(notes),
    )


def _times() -> Iterable[pl.Expr]:
    # Microseconds since 1970 fit a double, nanoseconds do not; so whole microseconds are turned apart from the rest.
    whole = pl.col("ts").floor()
    start = whole.cast(pl.Int64, strict=False) * 1000 + ((pl.col("ts") - whole) * 1000).round().cast(pl.Int64)
    length = (pl.col("dur").fill_null(0.0) * 1000).round().cast(pl.Int64, strict=False)
    return start.alias("start_ns"), (start + length).alias("end_ns")


def _arg(name: str) -> pl.Expr:
    return pl.col("args").struct.field(name)


def _read_gpu_work(events: pl.DataFrame) -> pl.DataFrame:
    told = _arg("Collective name")
    size = _arg("dtype").replace_strict(DTYPE_BYTES, default=None, return_dtype=pl.Int64)
    elements = pl.max_horizontal(_arg("In msg nelems"), _arg("Out msg nelems"))
    group = pl.coalesce(_arg("Process Group Ranks").replace("", None), _arg("Process Group Name"))
    return events.select(
        what=classify(pl.col("cat"), pl.col("name")),
        name=pl.col("name"),
        lane=pl.coalesce(_arg("stream").cast(pl.String), "tid"),
        start_ns="start_ns",
        end_ns="end_ns",
        correlation=_arg("correlation"),
        collective=name_collective(pl.coalesce(told, "name")),
        bytes=pl.coalesce(elements * size, _arg("bytes")),
        group=group,
        group_size=_arg("Group size"),
    ).with_columns(collective=pl.when(pl.col("what") == "communication").then("collective"))


def _read_launches(events: pl.DataFrame) -> pl.DataFrame:
    launches = events.select(correlation=_arg("correlation"), launch_ns="start_ns")
    return launches.filter(pl.col("correlation").is_not_null())


def _read_host_work(events: pl.DataFrame) -> pl.DataFrame:
    """Operators and the backend's collectives; what only wraps a collective's enqueueing is neither."""
    name = pl.col("name")
    is_call = name.str.contains(HOST_COLLECTIVE)
    wrapper = name.str.contains(r"^(?:c10d::|record_param_comms)")
    dtype = _arg("Input type").str.extract(r'^\["([\w: ]+)"')
    size = dtype.replace_strict(DTYPE_BYTES, default=None, return_dtype=pl.Int64)
    elements = _arg("Input Dims").str.extract(r"^\[\[(\d{1,12})\]").cast(pl.Int64, strict=False)
    return events.filter(is_call | ((pl.col("cat") == "cpu_op") & ~wrapper)).select(
        what=pl.when(is_call).then(pl.lit("communication")).otherwise(pl.lit("compute")),
        name=pl.when(is_call).then("name").otherwise(pl.lit("operators")),  # the names of millions take memory
        lane="tid",
        start_ns="start_ns",
        end_ns="end_ns",
        collective=pl.when(is_call).then(name_collective(name.str.extract(HOST_COLLECTIVE))),
        bytes=pl.when(is_call).then(elements * size),
    )


def _read_steps(marks: pl.DataFrame) -> pl.DataFrame:
    """Steps as the host marked them; the GPU's own marks only where the host's are missing."""
    host = marks.filter(pl.col("cat") == "user_annotation")
    chosen = host if host.height else marks
    return (
        chosen.with_columns(step=pl.col("name").str.extract(STEP).cast(pl.Int32))
        .group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns")
        .select(pl.col(c).cast(t) for c, t in _STEPS.items())
    )


def _assign_steps(work: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """A kernel belongs to the step that launched it, else to the step in which it began."""
    known = ["launch_ns", "start_ns"] if "launch_ns" in work.columns else ["start_ns"]
    work = work.with_columns(at=pl.coalesce(known))
    joined = work.sort("at").join_asof(
        steps.rename({"start_ns": "begin", "end_ns": "stop"}), left_on="at", right_on="begin"
    )
    return (
        joined.with_columns(step=pl.when(pl.col("at") <= pl.col("stop")).then("step"))
        .drop("at", "begin", "stop")
        .sort("start_ns")
    )


def _rank_of_name(path: Path) -> int:
    found = _RANK.search(path.name)
    if found is None:
        raise BadFileError(f"{path}: says no rank, neither inside nor in its name; rename it, such as rank17.json")
    return int(found.group(1) or found.group(2))
