"""IPFIX information elements (IANA registry) and the NetFlow v9 field types that they extend."""

from __future__ import annotations

from typing import Literal

Role = Literal[
    "src4", "dst4", "src6", "dst6", "src_port", "dst_port", "bytes", "packets", "reverse_bytes", "reverse_packets",
    "start_s", "end_s", "start_ms", "end_ms", "start_us", "end_us", "start_ntp", "end_ntp", "start_ntp_us",
    "end_ntp_us", "start_uptime", "end_uptime", "duration_ms", "duration_us", "boot_ms", "exporter4", "interval",
    "packet_interval", "packet_space", "sample_size", "sample_population", "probability", "selector",
    "src_mac", "dst_mac", "station_mac", "access_point_mac", "from_access_point", "frame", "ip_packet",
    "initiator_bytes", "responder_bytes", "initiator_packets", "responder_packets",
]  # fmt: skip

REVERSE_ENTERPRISE = 29305
"""Elements of this enterprise count the other direction of a two-way record (RFC 5103)."""

ROLES: dict[int, Role] = {
    1: "bytes",
    2: "packets",
    7: "src_port",
    8: "src4",
    11: "dst_port",
    12: "dst4",
    21: "end_uptime",
    22: "start_uptime",
    23: "bytes",  # postOctetDeltaCount, NetFlow v9 OUT_BYTES
    24: "packets",
    27: "src6",
    28: "dst6",
    34: "interval",
    56: "src_mac",
    57: "dst_mac",  # postDestinationMacAddress
    61: "from_access_point",  # flowDirection
    80: "dst_mac",
    81: "src_mac",
    48: "selector",  # samplerId
    50: "interval",  # samplerRandomInterval
    85: "bytes",  # octetTotalCount
    86: "packets",
    130: "exporter4",
    150: "start_s",
    151: "end_s",
    152: "start_ms",
    153: "end_ms",
    154: "start_ntp_us",
    155: "end_ntp_us",
    156: "start_ntp",
    157: "end_ntp",
    158: "start_us",  # deltaMicroseconds before the export time
    159: "end_us",
    160: "boot_ms",
    161: "duration_ms",
    162: "duration_us",
    180: "src_port",
    181: "dst_port",
    182: "src_port",
    183: "dst_port",
    231: "initiator_bytes",  # of firewalls
    232: "responder_bytes",
    298: "initiator_packets",
    299: "responder_packets",
    302: "selector",  # selectorId
    305: "packet_interval",
    306: "packet_space",
    309: "sample_size",
    310: "sample_population",
    311: "probability",
    313: "ip_packet",  # ipHeaderPacketSection
    315: "frame",  # dataLinkFrameSection
    322: "start_s",  # observationTime: one moment
    323: "start_ms",
    324: "start_ntp_us",
    325: "start_ntp",
    352: "bytes",  # layer2OctetDeltaCount
    365: "station_mac",
    367: "access_point_mac",
}

REVERSE_ROLES: dict[int, Role] = {
    1: "reverse_bytes",
    2: "reverse_packets",
    85: "reverse_bytes",
    86: "reverse_packets",
}


def role_of(element: int, enterprise: int) -> Role | None:
    """The field that an element gives, None if Prism does not use it."""
    if enterprise == 0:
        return ROLES.get(element)
    if enterprise == REVERSE_ENTERPRISE:
        return REVERSE_ROLES.get(element)
    return None
