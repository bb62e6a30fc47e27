"""Readings of counters from a Prometheus server, as a table of serial, series, at, counter and value."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from prism.errors import BadFileError

READINGS = pl.Schema(
    {
        "serial": pl.String,
        "place": pl.String,  # the host of the part, with the part after a slash
        "series": pl.String,
        "at": pl.Int64,
        "counter": pl.String,
        "value": pl.Float64,
    }
)
XID = "DCGM_FI_DEV_XID_ERRORS"  # the code of the last error, no counter: every new code counts as one
# Fields of NVIDIA's dcgm-exporter that rose before failures in published fleets.
DCGM = (
    XID,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
)
# Memory that could not be repaired, or was lost: NVIDIA asks for such a GPU to be reset or replaced.
FATAL = (
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
)
# A GPU by its own name, or else its host; the first that is a part of the history is used.
_LABELS = ("UUID", "gpu_uuid", "serial", "Hostname", "hostname", "node", "host", "nodename", "instance")
_HOSTS = ("Hostname", "hostname", "node", "host", "nodename", "instance")
_MOST_BYTES = 1 << 28
_MOST_POINTS = 10_000  # of one series in one answer; Prometheus refuses more than 11,000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusConfig:
    """The query and its resolution."""

    counters: tuple[str, ...] = DCGM
    step_s: float = 6 * 3_600.0  # features look at weeks and months
    timeout_s: float = 60.0
    token: str = ""  # of a server that asks for one
    match: str = ""  # label matchers, as in cluster="a",job="dcgm"
    part_label: str = ""  # the label that names a part; else the first of the usual ones that there is


def read_prometheus(
    url: str, start_s: float, end_s: float, parts: Collection[str] | None, config: PrometheusConfig | None = None
) -> pl.DataFrame:
    """Each counter's readings in a window, the last at its end; of `parts` only, where these are given."""
    config = config or PrometheusConfig()
    count = max(0, min(int((end_s - start_s) / config.step_s), _MOST_POINTS))
    known = set(parts) if parts is not None else None
    frames = [pl.DataFrame(schema=READINGS)]
    for counter in config.counters:
        words = {
            "query": f"{counter}{{{config.match}}}" if config.match else counter,
            "start": f"{end_s - count * config.step_s:.0f}",
            "end": f"{end_s:.0f}",
            "step": f"{config.step_s:.0f}",
        }
        address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(words)}"
        frames += _parse(_fetch(address, config), url, counter, known, config.part_label)
    return pl.concat(frames)


def _fetch(address: str, config: PrometheusConfig) -> bytes:
    where = address.split("/api/v1")[0]
    if not address.startswith(("http://", "https://")):
        raise BadFileError(f"{where[:60]}: expected http://HOST:PORT of a Prometheus server")
    try:
        request = urllib.request.Request(address)
        if config.token:
            request.add_unredirected_header("Authorization", f"Bearer {config.token}")
        with urllib.request.urlopen(request, timeout=config.timeout_s) as answer:
            found: bytes = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        hint = "give its token in PRISM_PROMETHEUS_TOKEN" if error.code in (401, 403) else "check the address"
        raise BadFileError(f"{where}: answers {error.code} {error.reason}; {hint}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise BadFileError(f"{where}: does not answer ({error}); check the address") from None
    if len(found) > _MOST_BYTES:
        raise BadFileError(f"{where}: answers with more than {_MOST_BYTES >> 20} MiB; ask a server with fewer hosts")
    return found


def _parse(text: bytes, url: str, counter: str, known: Collection[str] | None, label: str) -> list[pl.DataFrame]:
    try:
        document: Any = json.loads(text)
        found = []
        for series in document["data"]["result"]:
            labels = series["metric"]
            part = _name_part(labels, known, (label,) if label else _LABELS)
            if part is None:
                continue
            values = [float(value) for _, value in series["values"]]
            frame = pl.DataFrame(
                {"at": [round(float(at_s) * 1e9) for at_s, _ in series["values"]], "value": values},
                schema={"at": pl.Int64, "value": pl.Float64},
            ).filter(pl.col("value").is_finite())
            named = json.dumps(labels, sort_keys=True)
            host = next((labels[name] for name in _HOSTS if labels.get(name)), "").rpartition(":")
            place = f"{host[0] or host[2]}/{labels.get('gpu', part)}"
            texts = {"serial": part, "place": place, "series": named, "counter": counter}
            found.append(frame.with_columns(pl.lit(v).alias(k) for k, v in texts.items()).select(list(READINGS)))
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFileError(f"{url}: not an answer of Prometheus ({error!r:.60})") from None


def _name_part(labels: dict[str, str], known: Collection[str] | None, names: tuple[str, ...]) -> str | None:
    """The part of a series; an instance may carry the exporter's port."""
    for name in names:
        value = labels.get(name, "")
        for candidate in (value, value.rpartition(":")[0]):
            if candidate and (known is None or candidate in known):
                return candidate
    return None


def keep_changes(readings: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Readings of several rounds as one ordered table, without repeated values."""
    key = ["counter", "series"]
    table = pl.concat(readings).unique([*key, "at"], keep="last").sort(*key, "at")
    changed = pl.col("value") != pl.col("value").shift(1).over(key)
    return table.filter(changed.fill_null(True))
