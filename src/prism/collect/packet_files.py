"""A capture file read whole into FLOWS."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from prism.collect.assembler import BurstConfig, FlowAssembler
from prism.collect.captured_exports import holds_exports, read_exports
from prism.collect.collector import Collector
from prism.collect.counts import SourceCounts
from prism.collect.pcap import Capture
from prism.collect.record_sets import READ_IN_PART
from prism.collect.sflow import COUNTERS
from prism.collect.tables.samples import put_together
from prism.collect.torn_bursts import join_torn

_PATIENCE = 10  # gaps that end a burst, within which the rest of a transfer may follow


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketsRead:
    """FLOWS of a capture, what was counted, and what was wrong with the file."""

    flows: pl.DataFrame
    counts: SourceCounts
    notes: tuple[str, ...]
    counters: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COUNTERS))  # of ports, from sFlow


def read_packets(path: str | Path, config: BurstConfig | None = None) -> PacketsRead:
    """Read a pcap or pcapng file: RoCEv2 messages, and bursts of everything else, torn ones joined.

    A capture of export datagrams (sFlow, IPFIX, NetFlow) gives what they say.
    """
    capture = Capture(Path(path))
    if holds_exports(capture):
        return _read_exports(capture)
    config = config or BurstConfig()
    assembler = FlowAssembler(SourceCounts(), config)
    frames = [assembler.take(data, index) for data, index in capture.batches()]
    frames.append(assembler.finish())
    flows = join_torn(pl.concat(frames), _PATIENCE * config.gap_ns)
    notes = tuple(capture.notes)
    if not flows.height and not notes:
        notes = (f"{path}: none of its {assembler.counts.received:,} packets carries data over IP",)
    return PacketsRead(flows=flows, counts=assembler.counts, notes=notes)


def _read_exports(capture: Capture) -> PacketsRead:
    collector = Collector()
    flows, notes = put_together(read_exports(capture, collector))
    collector.give_up_waiting()
    said = (
        f"{capture.path}: a capture of export datagrams; what they report was read",
        *(
            f"{capture.path}: {count:,} {what}"
            for what, count in collector.counts.events.items()
            if what in READ_IN_PART
        ),
        *notes,
        *capture.notes,
    )
    return PacketsRead(flows=flows, counts=collector.counts, notes=said, counters=collector.take_counters())


class PacketFileSource:
    """A capture file as a source: some ten thousand packets at each poll, then finished."""

    is_live = False
    starts_over = True

    def __init__(self, path: Path, bursts: BurstConfig) -> None:
        self.counts = SourceCounts()
        self._capture = Capture(path)
        self._batches = self._capture.batches()
        self._assembler = FlowAssembler(self.counts, bursts)
        self._finished = False

    @property
    def is_finished(self) -> bool:
        """The file has been read to its end."""
        return self._finished

    @property
    def notes(self) -> tuple[str, ...]:
        """What was wrong with the file, once it has been read."""
        return tuple(self._capture.notes)

    def poll(self, timeout_s: float) -> pl.DataFrame:
        """FLOWS completed by the next packets."""
        batch = next(self._batches, None)
        if batch is not None:
            return self._assembler.take(*batch)
        self._finished = True
        return self._assembler.finish()

    def save_position(self) -> dict[str, Any]:
        """Nothing to save: a file is read from its start; the times of flows show which are known."""
        return {}

    def close(self) -> None:
        """Nothing is held."""
