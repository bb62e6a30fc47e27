"""TOPOLOGY from what operators have: LLDP dumps of hosts, SONiC's configuration of leaves, NetBox's exports."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from prism.errors import BadFileError
from prism.records import TOPOLOGY

Row = tuple[str, str, str | None]  # address, host, switch
_HOST_NETWORKS = (30, 31, 126, 127)  # prefix lengths of a link between a leaf and one NIC


def read_topology_sources(paths: Iterable[Path]) -> pl.DataFrame:
    """TOPOLOGY of LLDP and `ip -j addr` dumps, SONiC config_db.json files and NetBox API answers, in any number."""
    gathered = _Gathered()
    for path in _expand(paths):
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise BadFileError(
                f"{path}: not JSON ({error}); dump it again, as `lldpctl -f json0 > HOST.lldp.json`; "
                "where it holds flow records, pass --auto"
            ) from None
        try:
            gathered.take(path, document)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise BadFileError(
                f"{path}: not as lldpctl, `ip -j addr`, SONiC or NetBox write it ({error!r}); dump it again"
            ) from None
    rows = gathered.rows()
    if not rows:
        raise BadFileError(
            "no NIC address found; give config_db.json of SONiC leaves, NetBox's ip-addresses and interfaces, or for "
            "every host HOST.lldp.json (lldpctl -f json0) and HOST.addr.json (ip -j addr)"
        )
    return number_rails(rows)


def number_rails(rows: list[Row]) -> pl.DataFrame:
    """TOPOLOGY with rails counted within each host, in the order of addresses."""
    frame = pl.DataFrame(rows, schema={"address": pl.String, "host": pl.String, "switch": pl.String}, orient="row")
    frame = frame.unique("address", keep="first").with_columns(
        pl.col("address").map_elements(_sort_key, return_dtype=pl.String).alias("_key")
    )
    frame = frame.sort("host", "_key").with_columns(pl.int_range(pl.len()).over("host").cast(pl.Int32).alias("rail"))
    return TOPOLOGY.conform(frame.select("address", "host", "rail", "switch"))


def _sort_key(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return f"{parsed.version}{int(parsed):040d}"


def _expand(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.json")) if path.is_dir() else [path]
    return found


class _Gathered:
    """The content of all files, joined at the end: addresses and neighbours are often in different files."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._addresses: dict[tuple[str, str], list[str]] = {}  # host, interface
        self._switches: dict[tuple[str, str], str] = {}

    def take(self, path: Path, document: Any) -> None:
        """Read one file; its content decides its kind."""
        host = path.name.split(".")[0]
        if isinstance(document, dict) and "DEVICE_NEIGHBOR" in document:
            self._take_sonic(document)
        elif isinstance(document, dict) and "lldp" in document:
            self._take_lldp(host, document["lldp"])
        elif isinstance(document, list) and document and "addr_info" in document[0]:
            self._take_addresses(host, document)
        else:
            entries = document.get("results", []) if isinstance(document, dict) else document
            for entry in entries if isinstance(entries, list) else []:
                self._take_netbox(entry)

    def rows(self) -> list[Row]:
        """Address, host and switch of every NIC."""
        named = [
            (address, host, self._switches.get((host, interface)))
            for (host, interface), addresses in self._addresses.items()
            for address in addresses
        ]
        # Interfaces that no switch is known of are management or loopback where others of the host have one.
        cabled = {host for host, _ in self._switches}
        return self._rows + [row for row in named if row[2] is not None or row[1] not in cabled]

    def _take_sonic(self, document: dict[str, Any]) -> None:
        switch = document.get("DEVICE_METADATA", {}).get("localhost", {}).get("hostname", "")
        hosts = {port: entry.get("name", "") for port, entry in document["DEVICE_NEIGHBOR"].items()}
        for key in document.get("INTERFACE", {}):
            port, bar, address = key.partition("|")
            if not bar or not hosts.get(port):
                continue
            ours = ipaddress.ip_interface(address)
            if ours.network.prefixlen in _HOST_NETWORKS:
                # A link of two addresses: ours is the leaf's, the other is the NIC's.
                others = [a for a in ours.network if a != ours.ip]
                usable = (
                    others if ours.network.num_addresses == 2 else [a for a in ours.network.hosts() if a != ours.ip]
                )
                self._rows.append((str(usable[0]), hosts[port], switch or None))

    def _take_lldp(self, host: str, lldp: Any) -> None:
        for entry in _as_list(lldp):
            for interface in _as_list(entry.get("interface", [])):
                named = interface if "name" in interface else _unfold(interface)
                chassis = _as_list(named.get("chassis", []))
                switch = _chassis_name(chassis[0]) if chassis else None
                if switch:
                    self._switches[host, str(named["name"])] = switch

    def _take_addresses(self, host: str, interfaces: list[dict[str, Any]]) -> None:
        for interface in interfaces:
            found = [i["local"] for i in interface["addr_info"] if i.get("scope") == "global" and "local" in i]
            if found:
                self._addresses[host, str(interface["ifname"])] = found

    def _take_netbox(self, entry: dict[str, Any]) -> None:
        assigned = entry.get("assigned_object") or {}
        device = (assigned.get("device") or {}).get("name")
        if device and "address" in entry:
            key = (device, str(assigned.get("name")))
            self._addresses.setdefault(key, []).append(str(entry["address"]).partition("/")[0])
        ends = entry.get("connected_endpoints") or []
        owner = (entry.get("device") or {}).get("name")
        if owner and ends and (ends[0].get("device") or {}).get("name"):
            self._switches[owner, str(entry.get("name"))] = ends[0]["device"]["name"]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _unfold(interface: dict[str, Any]) -> dict[str, Any]:
    """lldpctl -f json names an interface by its key, -f json0 by a field."""
    name, inside = next(iter(interface.items()))
    return {"name": name, **inside} if isinstance(inside, dict) else {"name": name}


def _chassis_name(chassis: dict[str, Any]) -> str | None:
    if isinstance(chassis.get("name"), list):
        return str(chassis["name"][0].get("value"))
    if isinstance(chassis.get("name"), str):
        return str(chassis["name"])
    name, inside = next(iter(chassis.items()), (None, None))
    return str(name) if isinstance(inside, dict) else None
