"""Names that other tools give to the FLOWS columns, and the units they count in.

Sources: goflow2's protobuf and ClickHouse tables (versions 1 and 2), Akvorado's schema, nfdump's CSV and JSON (1.6 and
1.7), pmacct's print plugin, Zeek's conn.log, Amazon's and Google's flow logs, SiLK's rwcut, the IANA IPFIX names,
H3C's per-queue-pair records. To add one, put a row here and a line in the test of aliases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prism.errors import BadConfigError
from prism.records.times import NS_PER


@dataclass(frozen=True, slots=True)
class Alias:
    """A foreign column: which FLOWS column (or `duration`) it gives, and its time unit ("auto": by magnitude)."""

    name: str
    gives: str
    unit: str = ""


def _times(gives: str, stem: str) -> list[Alias]:
    return [Alias(f"{stem}_{unit}", gives, unit) for unit in NS_PER]


def _names(gives: str, names: str, unit: str = "") -> list[Alias]:
    return [Alias(name, gives, unit) for name in names.split()]


def _ipfix_times(gives: str, stem: str) -> list[Alias]:
    units = {"Nanoseconds": "ns", "Microseconds": "us", "Milliseconds": "ms", "Seconds": "s"}
    return [Alias(stem + word, gives, unit) for word, unit in units.items()]


# Where several columns of a file give the same thing, the one listed first here wins.
ALIASES: tuple[Alias, ...] = (
    *_times("start_ns", "start"),
    *_times("start_ns", "time_flow_start"),
    Alias("TimeFlowStartMs", "start_ns", "ms"),
    *_names("start_ns", "time_flow_start TimeFlowStart", "s"),
    *_ipfix_times("start_ns", "flowStart"),
    *_names("start_ns", "firstSeen timestamp_start sTime jsonPayload.start_time ts first start start_time", "auto"),
    *_names("start_ns", "startTime", "auto"),
    *_times("start_ns", "time_received"),
    *_names("start_ns", "TimeReceived timestamp time stamp_inserted", "auto"),
    *_times("end_ns", "end"),
    *_times("end_ns", "time_flow_end"),
    Alias("TimeFlowEndMs", "end_ns", "ms"),
    *_names("end_ns", "time_flow_end TimeFlowEnd", "s"),
    *_ipfix_times("end_ns", "flowEnd"),
    *_names("end_ns", "lastSeen timestamp_end eTime jsonPayload.end_time te last end end_time endTime", "auto"),
    *_times("duration", "duration"),
    Alias("flowDurationMilliseconds", "duration", "ms"),
    Alias("flowDurationMicroseconds", "duration", "us"),
    *_names("duration", "duration dur td", "s"),
    *_names(
        "src", "src src_addr SrcAddr srcAddr src4_addr src6_addr sa src_ip srcip ip_src id.orig_h srcaddr sIP source"
    ),
    *_names("src", "sourceIPv4Address sourceIPv6Address SourceIp jsonPayload.connection.src_ip connection.src_ip"),
    *_names("dst", "dst dst_addr DstAddr dstAddr dst4_addr dst6_addr da dst_ip dstip ip_dst id.resp_h dstaddr dIP"),
    *_names("dst", "destination destinationIPv4Address destinationIPv6Address DestIp jsonPayload.connection.dest_ip"),
    *_names("dst", "connection.dest_ip"),
    *_names("bytes", "bytes ibyt in_bytes octetDeltaCount octetTotalCount octets size orig_ip_bytes orig_bytes"),
    *_names("bytes", "jsonPayload.bytes_sent bytes_sent"),
    *_names("packets", "packets ipkt in_packets packetDeltaCount packetTotalCount orig_pkts jsonPayload.packets_sent"),
    *_names("packets", "packets_sent"),
    # Not nfdump's obyt and out_bytes: they also count traffic that left in the same direction.
    *_names("reverse_bytes", "resp_ip_bytes resp_bytes reverseOctetDeltaCount"),
    *_names("reverse_packets", "resp_pkts reversePacketDeltaCount"),
    *_names("src_port", "src_port SrcPort srcPort sp sourceTransportPort port_src id.orig_p sPort"),
    *_names("src_port", "jsonPayload.connection.src_port connection.src_port"),
    *_names("dst_port", "dst_port DstPort dstPort dp destinationTransportPort port_dst id.resp_p dPort"),
    *_names("dst_port", "jsonPayload.connection.dest_port connection.dest_port"),
    *_names("qp", "qp dst_qp DestQp dest_qp destinationQP"),
    *_names("sampling_rate", "sampling_rate SamplingRate samplingInterval samplingPacketInterval"),
    *_names("exporter", "exporter sampler_address SamplerAddress ExporterAddress exporterIPv4Address"),
    *_names("exporter", "exporterIPv6Address peer_ip_src ip4_router ip6_router ra interface-id interface_id sensor"),
    *_names("path", "path switches"),
)

TWINS = {
    "src4_addr": "src6_addr",
    "dst4_addr": "dst6_addr",
    "sourceIPv4Address": "sourceIPv6Address",
    "destinationIPv4Address": "destinationIPv6Address",
    "ip4_router": "ip6_router",
    "exporterIPv4Address": "exporterIPv6Address",
}
"""Pairs of columns of which each row fills the one of its address family."""

H3C_PACKETS = ("ReadPkts", "WritePkts", "SendPkts")
"""H3C counts packets per verb and gives no bytes; together they are `packets`."""

STATUS_COLUMNS = ("log-status", "log_status")
"""Amazon writes rows without a flow where nothing passed or records were lost; this column says so."""

KIND_COLUMNS = ("type", "Type", "flow_type", "FlowType")
"""goflow2 names the protocol that a record came by; 1 and SFLOW_5 are single sampled packets."""

_SHOWN_COLUMNS, _SHOWN_CHARS = 20, 60  # of a table that an error lists
_MAPPED = {"start": "start_ns", "end": "end_ns", "from": "src", "to": "dst"}


def find_aliases(columns: list[str], chosen: tuple[Alias, ...] = ()) -> dict[str, tuple[str, Alias]]:
    """For each FLOWS column (and `duration`), the file's column that gives it and how; names match in any case."""
    exact = {c: c for c in columns}
    folded = {c.lower(): c for c in reversed(columns)}
    found: dict[str, tuple[str, Alias]] = {}
    for alias in (*chosen, *ALIASES):
        column = exact.get(alias.name) or folded.get(alias.name.lower())
        if column is not None and alias.gives not in found:
            found[alias.gives] = (column, alias)
    if any(alias.gives == "duration" for alias in chosen) and not any(a.gives == "end_ns" for a in chosen):
        found.pop("end_ns", None)
    return found


def describe_missing(gives: str, columns: Iterable[str]) -> str:
    """The error message for a table that has no column for `gives`."""
    there = [name[:_SHOWN_CHARS] for name in columns if not name.startswith("_")]
    listed = ", ".join(there[:_SHOWN_COLUMNS]) or "none"
    more = f" and {len(there) - _SHOWN_COLUMNS} more" if len(there) > _SHOWN_COLUMNS else ""
    known = ", ".join([alias.name for alias in ALIASES if alias.gives == gives][:6])
    return (
        f"no column for '{gives}' (it has {listed}{more}); pass --map {gives.removesuffix('_ns')}=COLUMN, "
        f"or name it, for example, {known}"
    )


def parse_columns(text: str) -> tuple[Alias, ...]:
    """Read `src=ip_src,start=TIMESTAMP_START:us`: FLOWS column, the file's column, and the unit of a time."""
    known = {a.gives for a in ALIASES} | set(_MAPPED)
    made: list[Alias] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, column = part.partition("=")
        gives = _MAPPED.get(name.strip(), name.strip())
        if not equals or not column or gives not in known:
            wanted = ", ".join(sorted({g.removesuffix("_ns") for g in known}))
            raise BadConfigError(f"--map {part}: expected NAME=COLUMN with NAME one of {wanted}")
        is_time = gives in ("start_ns", "end_ns", "duration")
        head, colon, unit = column.rpartition(":")
        if is_time and colon and unit in (*NS_PER, "iso", "auto"):
            made.append(Alias(head, gives, unit))
        elif is_time and gives == "duration":
            raise BadConfigError(f"--map {part}: say the unit of a duration, as in {name}={column}:ms")
        else:
            made.append(Alias(column, gives, "auto" if is_time else ""))
    if not made:
        raise BadConfigError("--map: expected NAME=COLUMN, as in --map src=ip_src,start=TIMESTAMP_START:us")
    return tuple(made)
