"""What every source offers, and which one a user's words mean."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from prism.collect.assembler import BurstConfig
from prism.collect.counts import SourceCounts
from prism.collect.tables import FlowOptions
from prism.collect.tables.aliases import Alias
from prism.errors import BadConfigError


class Source(Protocol):
    """Flows as they come: `poll` waits a little and returns what has arrived since the last call."""

    is_live: bool  # Flows arrive as they happen and are lost where not taken; False: they wait to be read.
    starts_over: bool  # After a restart everything is read again from the start.

    @property
    def counts(self) -> SourceCounts:
        """What was seen, kept and lost."""
        ...

    def poll(self, timeout_s: float) -> pl.DataFrame:
        """FLOWS that have arrived, waiting up to `timeout_s` for the first."""
        ...

    @property
    def is_finished(self) -> bool:
        """Nothing will come any more."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What an operator should know, one line each."""
        ...

    def save_position(self) -> dict[str, Any]:
        """How far this source has been read and what it has learned, for `SourceConfig.position` after a restart."""
        ...

    def close(self) -> None:
        """Give back what the source holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """How sources read."""

    bursts: BurstConfig = field(default_factory=BurstConfig)
    queue_bytes: int = 256 << 20  # datagrams received and not yet decoded
    position: dict[str, Any] = field(default_factory=dict)  # where an earlier run stopped
    columns: tuple[Alias, ...] = ()  # folders: which column of the files gives what


_LISTEN = re.compile(r"^(ipfix|netflow|sflow)://(?P<host>\[[0-9A-Fa-f:.]+\]|[^:/\[\]]*):(?P<port>\d{1,5})/?$")


def open_source(words: str, config: SourceConfig | None = None) -> Source:
    """The source that words such as `ipfix://HOST:PORT`, `sflow://HOST:PORT`, `pcap:FILE` or a folder name."""
    config = config or SourceConfig()
    if words.startswith(("ipfix:", "netflow:", "sflow:")):
        return _open_listener(words, config)
    if words.startswith("kafka:"):
        from prism.collect.kafka import open_kafka

        return open_kafka(words, config.position, config.columns)
    if words.startswith("clickhouse"):
        from prism.collect.clickhouse import open_clickhouse

        return open_clickhouse(words, config.position, config.columns)
    if words.startswith("pcap:"):
        return _open_packets(words.removeprefix("pcap:"), config)
    from prism.collect.folder import FolderSource

    folder = Path(words)
    if folder.is_file():
        raise BadConfigError(
            f"{words}: a file, not a source that grows; give its folder, pcap:{words} where it holds packets, or read "
            "it once with prism diagnose"
        )
    if not folder.is_dir():
        raise BadConfigError(
            f"{words}: no such folder; give one, or ipfix://HOST:PORT, netflow://HOST:PORT, sflow://HOST:PORT, "
            "kafka://HOST:PORT/TOPIC, clickhouse://HOST:PORT/DATABASE/TABLE or pcap:FILE-or-interface"
        )
    return FolderSource(folder, config.position, FlowOptions(skip_bad_rows=True, columns=config.columns, samples=True))


def _open_listener(words: str, config: SourceConfig) -> Source:
    from prism.collect.listener import ListenerSource

    match = _LISTEN.match(words)
    if match is None or not 0 <= int(match["port"]) < 65536:
        raise BadConfigError(f"{words}: expected ipfix://HOST:PORT or netflow://HOST:PORT, as in ipfix://0.0.0.0:4739")
    host = match["host"].strip("[]") or "0.0.0.0"
    return ListenerSource(host, int(match["port"]), config.queue_bytes, config.position)


def _open_packets(name: str, config: SourceConfig) -> Source:
    from prism.collect.live_capture import InterfaceSource, interface_names
    from prism.collect.packet_files import PacketFileSource

    if Path(name).is_file():
        return PacketFileSource(Path(name), config.bursts)
    if name in interface_names():
        return InterfaceSource(name, config.bursts)
    known = ", ".join(interface_names())
    raise BadConfigError(f"pcap:{name}: neither a file nor a network interface; interfaces here: {known}")
