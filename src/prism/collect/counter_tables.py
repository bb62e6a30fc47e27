"""Counters of switch ports as monitoring keeps them: a table of SNMP or ethtool names, or an answer of Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from prism.errors import BadFileError
from prism.records import files
from prism.records.files import Format
from prism.records.times import infer_unit, to_ns

# Names of the interface MIB (RFC 2863), of the Ethernet-like MIB (RFC 3635), of ethtool and of host agents.
_NAMES = {
    "exporter": ("exporter", "switch", "agent", "device", "instance", "sysname", "hostname"),
    "port": ("port", "ifindex", "ifname", "ifdescr", "interface"),
    "speed": ("speed", "ifspeed"),
    "speed_mbps": ("ifhighspeed", "speed_mbps"),
    "in_octets": ("in_octets", "ifhcinoctets", "ifinoctets", "rx_bytes"),
    "out_octets": ("out_octets", "ifhcoutoctets", "ifoutoctets", "tx_bytes"),
    "in_errors": ("in_errors", "ifinerrors", "rx_errors", "rx_crc_errors", "symbol_error"),
    "out_errors": ("out_errors", "ifouterrors", "tx_errors"),
    "in_discards": ("in_discards", "ifindiscards", "rx_discards", "rx_dropped"),
    "out_discards": ("out_discards", "ifoutdiscards", "tx_discards", "tx_dropped"),
    "in_pauses": ("in_pauses", "dot3hcinpauseframes", "dot3inpauseframes", "rx_pause", "rx_global_pause"),
    "out_pauses": ("out_pauses", "dot3hcoutpauseframes", "dot3outpauseframes", "tx_pause", "tx_global_pause"),
}
_TIMES = ("time_ns", "timestamp", "time", "ts", "at")
_COUNTED = tuple(name for name in _NAMES if name not in ("exporter", "port", "speed", "speed_mbps"))
_PORT_LABELS = ("ifname", "ifdescr", "interface", "port", "ifindex")  # names before numbers
_TABLES = (Format.CSV, Format.PARQUET, Format.JSONL)


def holds_counters(path: Path) -> bool:
    """Whether a file is a table of port counters, by its columns or by the form of Prometheus' answers."""
    try:
        fmt = files.recognise(path)
        return _is_answer(path, fmt) or (fmt in _TABLES and _is_table(files.read_columns(path, fmt).names()))
    except (BadFileError, OSError):
        return False


def read_counter_table(path: Path) -> pl.DataFrame:
    """Counters by time, exporter and port; totals since the port was cleared, null where they are not known."""
    fmt = files.recognise(path)
    table = _read_answer(path) if _is_answer(path, fmt) else files.read_whole(path)
    found = {name: column for name, names in _NAMES.items() if (column := _find(table.columns, names)) is not None}
    time = _find(table.columns, _TIMES)
    if time is None or not {"exporter", "port"} <= found.keys():
        raise BadFileError(f"{path}: counters need a time, a switch and a port; name them timestamp, switch and port")
    dtype = table.schema[time]
    unit = "ns" if time.lower() == "time_ns" else infer_unit(table.lazy(), time, dtype, str(path), "timestamp")
    numbers = [
        pl.col(found[n]).cast(pl.Float64, strict=False).cast(pl.Int64, strict=False).alias(n)
        for n in _COUNTED
        if n in found
    ]
    speed = (
        pl.col(found["speed"]).cast(pl.Float64, strict=False)
        if "speed" in found
        else pl.col(found["speed_mbps"]).cast(pl.Float64, strict=False) * 1e6
        if "speed_mbps" in found
        else pl.lit(0.0)
    )
    counters = table.select(
        to_ns(time, dtype, unit).alias("time_ns"),
        pl.col(found["exporter"]).cast(pl.String).alias("exporter"),
        pl.col(found["port"]).cast(pl.String).alias("port"),
        speed.fill_null(0.0).cast(pl.Int64, strict=False).fill_null(0).alias("speed"),
        *numbers,
    )
    return counters.drop_nulls(["time_ns", "exporter", "port"]).sort("time_ns")


def _is_answer(path: Path, fmt: Format) -> bool:
    return fmt in (Format.JSON, Format.JSONL) and b'"resultType"' in files.read_content(path)[:4096]


def _whole(column: str) -> pl.Expr:
    """Whole numbers, also where a tool writes them as 1.5e+09."""
    return pl.col(column).cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)


def _is_table(columns: list[str]) -> bool:
    places = all(_find(columns, _NAMES[name]) is not None for name in ("exporter", "port"))
    return places and any(_find(columns, _NAMES[name]) is not None for name in _COUNTED)


def _find(columns: list[str], names: tuple[str, ...]) -> str | None:
    lower = {column.lower(): column for column in columns}
    return next((lower[name] for name in names if name in lower), None)


def _read_answer(path: Path) -> pl.DataFrame:
    """What /api/v1/query_range answers: a series for each counter of each port, put side by side by time."""
    try:
        document = json.loads(files.read_content(path))
        rows = list(_list_values(document["data"]["result"]))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BadFileError(f"{path}: not an answer of Prometheus' query_range ({error!r}); ask it again") from None
    if not rows:
        raise BadFileError(f"{path}: an answer of Prometheus without a counter of a port; ask for more")
    schema = {"timestamp": pl.Float64, "switch": pl.String, "port": pl.String, "name": pl.String, "value": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    wide = frame.pivot("name", index=["timestamp", "switch", "port"], values="value", aggregate_function="max")
    return wide.with_columns((pl.col("timestamp") * 1e9).cast(pl.Int64).alias("time_ns")).drop("timestamp")


def _list_values(results: list[dict[str, Any]]) -> Iterator[tuple[float, str, str, str, float]]:
    for series in results:
        labels = {str(name).lower(): str(value) for name, value in series["metric"].items()}
        switch = next((labels[name] for name in _NAMES["exporter"] if name in labels), None)
        port = next(
            (labels[name] for name in ("ifname", "ifdescr", "interface", "port", "ifindex") if name in labels), None
        )
        if switch is None or port is None:
            continue
        for moment, value in series["values"]:
            yield float(moment), switch, port, labels["__name__"], float(value)
