"""Names that other tools give to the FLOWS columns, and the units they count in.

Sources: goflow2's protobuf and ClickHouse tables, Akvorado's schema, nfdump's CSV (1.6 and 1.7), the IANA IPFIX
element names, H3C's per-queue-pair records. To add one, put a row here and a line in the test of aliases.
"""

from __future__ import annotations

from dataclasses import dataclass

from prism.records.times import NS_PER


@dataclass(frozen=True, slots=True)
class Alias:
    """A foreign column: which FLOWS column (or `duration`) it gives, and its time unit ("auto": by magnitude)."""

    name: str
    gives: str
    unit: str = ""


def _times(gives: str, stem: str) -> list[Alias]:
    return [Alias(f"{stem}_{unit}", gives, unit) for unit in NS_PER]


def _names(gives: str, names: str) -> list[Alias]:
    return [Alias(name, gives) for name in names.split()]


# Where several columns of a file give the same thing, the one listed first here wins.
ALIASES: tuple[Alias, ...] = (
    *_times("start_ns", "start"),
    *_times("start_ns", "time_flow_start"),
    Alias("flowStartNanoseconds", "start_ns", "ns"),
    Alias("flowStartMicroseconds", "start_ns", "us"),
    Alias("flowStartMilliseconds", "start_ns", "ms"),
    Alias("flowStartSeconds", "start_ns", "s"),
    Alias("firstSeen", "start_ns", "auto"),
    Alias("ts", "start_ns", "auto"),
    Alias("first", "start_ns", "auto"),
    Alias("start", "start_ns", "auto"),
    Alias("start_time", "start_ns", "auto"),
    Alias("startTime", "start_ns", "auto"),
    *_times("start_ns", "time_received"),
    Alias("TimeReceived", "start_ns", "auto"),
    Alias("timestamp", "start_ns", "auto"),
    Alias("time", "start_ns", "auto"),
    *_times("end_ns", "end"),
    *_times("end_ns", "time_flow_end"),
    Alias("flowEndNanoseconds", "end_ns", "ns"),
    Alias("flowEndMicroseconds", "end_ns", "us"),
    Alias("flowEndMilliseconds", "end_ns", "ms"),
    Alias("flowEndSeconds", "end_ns", "s"),
    Alias("lastSeen", "end_ns", "auto"),
    Alias("te", "end_ns", "auto"),
    Alias("last", "end_ns", "auto"),
    Alias("end", "end_ns", "auto"),
    Alias("end_time", "end_ns", "auto"),
    Alias("endTime", "end_ns", "auto"),
    *_times("duration", "duration"),
    Alias("flowDurationMilliseconds", "duration", "ms"),
    Alias("flowDurationMicroseconds", "duration", "us"),
    Alias("duration", "duration", "s"),
    Alias("td", "duration", "s"),
    *_names(
        "src",
        "src src_addr SrcAddr srcAddr sa src_ip srcip source sourceIPv4Address sourceIPv6Address SourceIp",
    ),
    *_names("dst", "dst dst_addr DstAddr dstAddr da dst_ip dstip destination destinationIPv4Address"),
    *_names("dst", "destinationIPv6Address DestIp"),
    *_names("bytes", "bytes ibyt in_bytes octetDeltaCount octetTotalCount octets size"),
    *_names("packets", "packets ipkt in_packets packetDeltaCount packetTotalCount"),
    *_names("src_port", "src_port SrcPort srcPort sp sourceTransportPort"),
    *_names("dst_port", "dst_port DstPort dstPort dp destinationTransportPort"),
    *_names("qp", "qp dst_qp DestQp dest_qp destinationQP"),
    *_names("sampling_rate", "sampling_rate SamplingRate samplingInterval samplingPacketInterval"),
    *_names("exporter", "exporter sampler_address ExporterAddress exporterIPv4Address exporterIPv6Address ra"),
    *_names("path", "path switches"),
)

H3C_PACKETS = ("ReadPkts", "WritePkts", "SendPkts")
"""H3C counts packets per verb and gives no bytes; together they are `packets`."""


def find_aliases(columns: list[str]) -> dict[str, tuple[str, Alias]]:
    """For each FLOWS column (and `duration`), the file's column that gives it and how; names match in any case."""
    exact = {c: c for c in columns}
    folded = {c.lower(): c for c in reversed(columns)}
    found: dict[str, tuple[str, Alias]] = {}
    for alias in ALIASES:
        column = exact.get(alias.name) or folded.get(alias.name.lower())
        if column is not None and alias.gives not in found:
            found[alias.gives] = (column, alias)
    return found
