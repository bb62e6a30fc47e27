"""Readings of counters out of a Prometheus server, as a table of serial, at, counter and value."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

import polars as pl

from prism.errors import BadFileError

READINGS = pl.Schema({"serial": pl.String, "at": pl.Int64, "counter": pl.String, "value": pl.Float64})
# Fields of NVIDIA's dcgm-exporter that rose before failures in published fleets.
DCGM = (
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
)
_LABELS = ("UUID", "Hostname", "instance", "node", "host")
_MOST_BYTES = 1 << 28


def read_prometheus(
    url: str, start_s: float, end_s: float, *, counters: Sequence[str] = DCGM, step_s: float = 3_600.0
) -> pl.DataFrame:
    """Ask for each counter's readings in a window; the part is named by UUID, else by host."""
    rows: list[tuple[str, int, str, float]] = []
    for counter in counters:
        words = {"query": counter, "start": f"{start_s:.0f}", "end": f"{end_s:.0f}", "step": f"{step_s:.0f}"}
        address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(words)}"
        rows += [(*row[:2], counter, row[2]) for row in _parse(_fetch(address), url)]
    return pl.DataFrame(rows, schema=READINGS, orient="row")


def _fetch(address: str) -> bytes:
    if not address.startswith(("http://", "https://")):
        raise BadFileError(f"{address[:60]}: expected http://HOST:PORT of a Prometheus server")
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            found: bytes = answer.read(_MOST_BYTES)
            return found
    except OSError as error:
        raise BadFileError(f"{address.split('/api')[0]}: does not answer ({error}); check the address") from None


def _parse(text: bytes, url: str) -> list[tuple[str, int, float]]:
    try:
        document: Any = json.loads(text)
        found = []
        for series in document["data"]["result"]:
            labels = series["metric"]
            part = next((labels[name] for name in _LABELS if labels.get(name)), None)
            for at_s, value in series["values"] if part is not None else ():
                number = float(value)
                if number == number:
                    found.append((str(part), round(float(at_s) * 1e9), number))
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFileError(f"{url}: not an answer of Prometheus ({error!r:.60})") from None
