"""Events of parts from what a datacenter has: kernel logs, and DCGM's counters on a Prometheus server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from prism.datacenter.predict.history import DAY_NS, History, make_history
from prism.datacenter.predict.prometheus import FATAL, XID, PrometheusConfig, read_prometheus
from prism.errors import BadFileError
from prism.evidence.traces.kernel_log import rate_error, read_gpu_errors

EVENTS = pl.Schema({"serial": pl.String, "location": pl.String, "at": pl.Int64, "event": pl.String})
_HEAD_BYTES = 1 << 20
_PAST_DAYS = 400.0


def is_kernel_log(path: Path) -> bool:
    """Whether a file, or a file of a folder, holds a driver's errors."""
    if path.is_dir():
        return any(is_kernel_log(inner) for inner in sorted(path.iterdir())[:1000] if inner.is_file())
    try:
        with path.open("rb") as handle:
            return b"Xid (PCI:" in handle.read(_HEAD_BYTES)
    except OSError:
        return False


def read_kernel_logs(path: Path) -> History:
    """Hardware errors of GPUs; a part is a GPU's address on its host."""
    errors = read_gpu_errors(sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path])
    broken = [e for e in errors if e.severity == "hardware"]
    rows = [(f"{e.host}/{e.device}", f"{e.host}/{e.device}", e.at_ns, f"{e.family} {e.code}") for e in broken]
    events = pl.DataFrame(rows, schema=EVENTS, orient="row")
    notes = [f"{len(errors) - len(broken):,} errors of programs, and what follows from others, are left out"]
    notes.append("kernel logs name only GPUs that had an error: with --lives, those that had none are known too")
    if undated := events["at"].null_count():
        notes.append(f"{undated:,} lines have no year; export them with journalctl -k -o short-iso")
    if events["at"].null_count() == events.height:
        raise BadFileError(f"{path}: no hardware error with a date; {notes[-1]}")
    first = events.drop_nulls("at").group_by("serial").agg(pl.col("location").last(), installed=pl.col("at").min())
    return make_history(events.drop_nulls("at"), first, tuple(notes))


def read_prometheus_events(url: str, at_ns: int, config: PrometheusConfig) -> History:
    """Lost memory, failed remaps and hardware Xids as events; a GPU is a part from its first reading on."""
    wanted = replace(config, counters=(XID, *FATAL))
    readings = read_prometheus(url, (at_ns - _PAST_DAYS * DAY_NS) / 1e9, at_ns / 1e9, None, wanted)
    if readings.is_empty():
        raise BadFileError(f"{url}: no series of {', '.join(wanted.counters)}; is dcgm-exporter scraped by it?")
    stays = readings.group_by("serial", maintain_order=True).agg(
        location=pl.col("place").first(), installed=pl.col("at").min()
    )
    return replace(make_history(find_events(readings), stays, ()), lives_known=True)


def find_events(readings: pl.DataFrame) -> pl.DataFrame:
    """EVENTS: each new hardware Xid, and each rise of a counter of lost memory."""
    before = pl.col("value").shift(1).over("counter", "series")
    changed = readings.sort("counter", "series", "at").filter(pl.col("value") != before)
    rose = pl.col("counter").is_in(FATAL) & (pl.col("value") > 0)
    codes = [rate_error("Xid", round(v)) == "hardware" for v in changed["value"]]
    found = changed.filter(rose | ((pl.col("counter") == XID) & pl.Series(codes, dtype=pl.Boolean)))
    return found.select("serial", pl.col("place").alias("location"), "at", pl.col("counter").alias("event"))
