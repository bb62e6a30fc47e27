"""Counters of GPUs and NICs, from Prometheus (DCGM exporter, node exporter) or CSV, and what is wrong in them."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from prism.errors import BadFileError, PrismError
from prism.evidence.traces.counter_rules import RULES, Rule

COUNTERS = pl.Schema(
    {"host": pl.String, "device": pl.String, "metric": pl.String, "at_ns": pl.Int64, "value": pl.Float64}
)


_LOW_SHARE = 0.85  # of the median clock of all GPUs
_OUTLIER_RATIO = 10.0
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """A counter that accuses a device."""

    host: str
    device: str
    metric: str
    words: str
    since_ns: int
    value: float
    confidence: float
    causes: tuple[Literal["stop", "slow"], ...] = ("stop", "slow")  # what such a device does to a job


class PrometheusSilentError(PrismError):
    """A Prometheus that did not answer in time, or not as Prometheus does."""


def read_prometheus(
    url: str, *, start_s: float, end_s: float, step_s: float = 15.0, deadline_s: float = 20.0
) -> pl.DataFrame:
    """COUNTERS of all rules' metrics between two times; all queries together end by the deadline."""
    until = time.monotonic() + deadline_s
    frames = []
    for rule in RULES:
        query = urllib.parse.urlencode(
            {"query": rule.metric, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        )
        answer = _fetch(f"{url.rstrip('/')}/api/v1/query_range?{query}", until)
        frames.append(_parse_answer(answer, rule.metric, url))
    return pl.concat(frames)


def _fetch(url: str, until: float) -> bytes:
    """The body of an answer; a server that sends a byte now and then is given up at the deadline too."""
    if not url.startswith(("http://", "https://")):
        raise BadFileError(f"{url.split('/api/')[0]}: not a Prometheus; give a URL such as http://prometheus:9090")
    place = url.split("/api/")[0]
    late = PrometheusSilentError(f"{place}: did not answer in time, so counters are left out")
    left = until - time.monotonic()
    if left <= 0:
        raise late
    try:
        with urllib.request.urlopen(url, timeout=left) as answer:
            parts, size = [], 0
            while piece := answer.read1(1 << 20):
                parts.append(piece)
                size += len(piece)
                if time.monotonic() > until:
                    raise late
                if size > _MOST_BYTES:
                    raise PrometheusSilentError(f"{place}: answers with over 256 MiB; give a shorter --since")
            return b"".join(parts)
    except TimeoutError:
        raise late from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise late from None
        raise PrometheusSilentError(f"{place}: does not answer ({reason}), so counters are left out") from None


def _parse_answer(answer: bytes, metric: str, url: str) -> pl.DataFrame:
    try:
        rows: list[tuple[str, str, str, int, float]] = []
        for series in json.loads(answer)["data"]["result"]:
            labels = series["metric"]
            for at, value in series["values"]:
                rows.append((_host_of(labels), _device_of(labels), metric, int(float(at) * 1e9), float(value)))
        return pl.DataFrame(rows, schema=COUNTERS, orient="row")
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise PrometheusSilentError(f"{url}: does not answer as Prometheus does, so counters are left out") from None


def _host_of(labels: dict[str, Any]) -> str:
    """The host that a series is about: the exporter's own label before the scraped address."""
    named = labels.get("Hostname") or labels.get("nodename") or labels.get("node") or labels.get("instance") or ""
    return str(named).rsplit(":", 1)[0] if str(named).count(":") == 1 else str(named)


def _device_of(labels: dict[str, Any]) -> str:
    for name, word in (("gpu", "gpu "), ("device", ""), ("port", "port ")):
        if labels.get(name) not in (None, ""):
            return f"{word}{labels[name]}"
    return ""


def read_counter_csv(path: Path) -> pl.DataFrame:
    """COUNTERS from a CSV with the columns time, host, device (or gpu), metric and value; times in seconds or ISO."""
    try:
        table = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadFileError(f"{path}: cannot be read as CSV ({str(error)[:80]})") from None
    table = table.rename({c: c.strip().lower() for c in table.columns})
    device = next((c for c in ("device", "gpu") if c in table.columns), None)
    missing = [c for c in ("time", "host", "metric", "value") if c not in table.columns]
    if missing:
        raise BadFileError(f"{path}: has no column {', '.join(missing)}; expected time, host, device, metric, value")
    stamp = pl.col("time").cast(pl.Float64, strict=False)
    written = pl.col("time").str.to_datetime(strict=False, time_zone="UTC").dt.timestamp("ns")
    named = pl.lit("") if device is None else pl.col(device).fill_null("")
    return table.select(
        host="host",
        device=pl.when(named.str.contains(r"^\d+$")).then("gpu " + named).otherwise(named),
        metric="metric",
        at_ns=pl.coalesce((stamp * 1e9).cast(pl.Int64), written),
        value=pl.col("value").cast(pl.Float64, strict=False),
    ).drop_nulls()


def looks_like_counters(path: Path) -> bool:
    """Whether a CSV's first line names the columns of counters."""
    if path.suffix != ".csv":
        return False
    with path.open("rb") as handle:
        head = handle.readline(4096).decode("utf-8", "replace").lower()
    return all(word in head for word in ("time", "host", "metric", "value"))


def find_anomalies(counters: pl.DataFrame) -> list[Anomaly]:
    """What the rules find, surest first."""
    found: list[Anomaly] = []
    for rule in RULES:
        own = counters.filter(pl.col("metric") == rule.metric).sort("at_ns")
        if own.height:
            found += _apply(rule, own)
    return sorted(found, key=lambda a: (-a.confidence, a.host, a.device))


def _apply(rule: Rule, own: pl.DataFrame) -> list[Anomaly]:
    masked = pl.col("value").cast(pl.Int64, strict=False).and_(rule.bits)
    delta = pl.col("value").diff().clip(lower_bound=0)  # a counter that starts again at zero did not shrink
    devices = own.group_by("host", "device").agg(
        grown=delta.sum(),
        grew_ns=pl.col("at_ns").filter(delta > 0).min(),
        typical=pl.col("value").median(),
        highest=pl.col("value").max(),
        begins_ns=pl.col("at_ns").min(),
        set_ns=pl.col("at_ns").filter(pl.col("value") > 0).min(),
        masked=masked.max(),
        masked_ns=pl.col("at_ns").filter(masked > 0).min(),
    )
    # Of two devices one is the other's only peer, so the middle of an even number is that of the healthier half. One
    # alone has no peers, and is taken for what it shows.
    peers = float(devices["grown"].quantile(0.5, "lower") or 0.0) if devices.height > 1 else 0.0
    usual = float(devices["typical"].quantile(0.5, "higher") or 0.0)
    chosen, value, since = {
        "grows": (pl.col("grown") > 0, "grown", "grew_ns"),
        "set": (pl.col("highest") > 0, "highest", "set_ns"),
        "bits": (pl.col("masked") > 0, "masked", "masked_ns"),
        "outlier": (pl.col("grown") > max(rule.least, _OUTLIER_RATIO * peers), "grown", "grew_ns"),
        "low": (pl.col("typical") < _LOW_SHARE * usual, "typical", "begins_ns"),
    }[rule.how]
    return [
        Anomaly(
            host=host,
            device=device,
            metric=rule.metric,
            words=rule.words,
            since_ns=at,
            value=number,
            confidence=rule.confidence,
            causes=rule.causes,
        )
        for host, device, number, at in devices.filter(chosen).select("host", "device", value, since).iter_rows()
    ]
