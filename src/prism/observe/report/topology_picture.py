"""The topology picture: switches, hosts and their NICs, coloured by job, with the culprits marked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import polars as pl

from prism.observe.diagnosis import Diagnosis
from prism.records.findings import Finding

WIDTH = 1080
_NIC, _GAP = 12, 3  # pixels
_MOST_HOSTS = 192
_MOST_LINES = 24  # hosts up to which every cable is drawn
INKS = 10  # colours of jobs before they repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What findings blame, by name, with the number of the first finding that does."""

    hosts: dict[str, int]
    addresses: dict[str, int]
    switches: dict[str, int]
    links: dict[tuple[str, str], int]  # address or switch, switch


def mark_culprits(diagnosis: Diagnosis, findings: Sequence[Finding]) -> Marks:
    """Where in the topology the culprits are; those that have no place there (a whole job) are left out."""
    marks = Marks(hosts={}, addresses={}, switches={}, links={})
    jobs = {job.id: job for job in diagnosis.jobs}
    for number, finding in enumerate(findings, start=1):
        kind, name = finding.culprit.type, finding.culprit.id
        if kind == "host":
            marks.hosts.setdefault(name, number)
        elif kind == "switch":
            marks.switches.setdefault(name, number)
        elif kind == "link" and ">" in name:
            a, b = name.split(">", 1)
            marks.links.setdefault((a, b), number)
        elif kind in ("endpoint", "group"):
            for address in name.split(","):
                marks.addresses.setdefault(address, number)
        elif kind == "stage" and finding.job in jobs:
            for address, stage in jobs[finding.job].finding_stages.items():
                if str(stage) == name:
                    marks.addresses.setdefault(address, number)
    return marks


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is drawn: its box."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The middle from left to right."""
        return self.x + self.width / 2


def draw_topology(diagnosis: Diagnosis, findings: Sequence[Finding]) -> str:
    """The picture as SVG, with what it leaves out said below it."""
    marks = mark_culprits(diagnosis, findings)
    nics = _in_order(diagnosis.traffic.endpoints.select("address", "host", "rail", "switch"))
    shown, left_out = _choose_hosts(nics, marks)
    nics = nics.filter(pl.col("host").is_in(shown))
    switches = _place_switches(nics, marks)
    hosts, cells, height = _place_hosts(nics, top=112 if switches else 20)
    jobs = {address: i for i, job in enumerate(diagnosis.jobs) for address in job.endpoints}
    parts = [
        *_draw_cables(nics, switches, cells, marks, every=len(shown) <= _MOST_LINES),
        *(_draw_box(name, place, "switch", marks.switches.get(name)) for name, place in switches.items()),
        *(_draw_box(name, place, "host", marks.hosts.get(name)) for name, place in hosts.items()),
        *(_draw_nic(address, place, jobs.get(address), marks) for address, place in cells.items()),
        *_draw_tags(nics, cells, marks),
    ]
    if left_out:
        parts.append(f'<text x="8" y="{height + 16:.0f}">{left_out:,} more hosts, none of them blamed</text>')
        height += 24
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return (
        f'<svg class="wide-picture" role="img" {size}>'
        f"<title>Topology with the culprits marked</title>{''.join(parts)}</svg>"
    )


def _in_order(nics: pl.DataFrame) -> pl.DataFrame:
    """NICs by host, as a person would list hosts, then by rail."""
    hosts = sorted(nics["host"].unique(), key=_by_number)
    place = pl.col("host").replace_strict(hosts, list(range(len(hosts))), return_dtype=pl.Int64)
    return nics.sort(place, "rail", "address")


def _by_number(name: str) -> list[tuple[int, str]]:
    """A sort key by which leaf-2 comes before leaf-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _choose_hosts(nics: pl.DataFrame, marks: Marks) -> tuple[list[str], int]:
    """Hosts that are drawn, those that findings touch first, and how many are left out."""
    hosts = nics["host"].unique(maintain_order=True).to_list()
    named = {*marks.addresses, *(a for a, _ in marks.links)}
    touched = set(nics.filter(pl.col("address").is_in(list(named)))["host"]) | set(marks.hosts)
    order = sorted(range(len(hosts)), key=lambda i: (hosts[i] not in touched, i))[:_MOST_HOSTS]
    return [hosts[i] for i in sorted(order)], max(0, len(hosts) - _MOST_HOSTS)


def _place_switches(nics: pl.DataFrame, marks: Marks) -> dict[str, Place]:
    names = sorted(nics["switch"].drop_nulls().unique(), key=_by_number)
    names += sorted({*marks.switches, *(b for _, b in marks.links)} - set(names) - set(nics["address"]))
    if not names:
        return {}
    slot = (WIDTH - 16) / len(names)
    width = min(slot - 4, 110)
    return {n: Place(8 + i * slot + (slot - width) / 2, 34, max(width, 4), 26) for i, n in enumerate(names)}


def _place_hosts(nics: pl.DataFrame, top: float) -> tuple[dict[str, Place], dict[str, Place], float]:
    """Boxes of hosts in rows, the NICs inside them, and where the picture ends."""
    hosts: dict[str, Place] = {}
    cells: dict[str, Place] = {}
    x, y, tallest = 8.0, top, 0.0
    for (host,), part in nics.group_by("host", maintain_order=True):
        columns = min(part.height, 8)
        rows = -(-part.height // columns)
        width = max(columns * (_NIC + _GAP) + 9, 7.2 * len(str(host)) + 10)
        height = 20 + rows * (_NIC + _GAP) + 4
        if x + width > WIDTH - 8 and x > 8:
            x, y, tallest = 8.0, y + tallest + 8, 0.0
        hosts[str(host)] = Place(x, y, width, height)
        for i, address in enumerate(part["address"].to_list()):
            cells[address] = Place(
                x + 6 + i % columns * (_NIC + _GAP), y + 20 + i // columns * (_NIC + _GAP), _NIC, _NIC
            )
        x, tallest = x + width + 8, max(tallest, height)
    return hosts, cells, y + tallest + 8


def _draw_cables(
    nics: pl.DataFrame, switches: dict[str, Place], cells: dict[str, Place], marks: Marks, *, every: bool
) -> list[str]:
    """Cables between NICs and switches where there are few hosts, and those that are blamed in any case."""
    parts = []
    for address, switch in nics.select("address", "switch").iter_rows():
        blamed = marks.links.get((address, switch)) or marks.links.get((switch, address))
        if switch in switches and (every or blamed):
            parts.append(_draw_cable(switches[switch], cells[address], f"{address} to {switch}", blamed))
    for (a, b), number in marks.links.items():
        if a in switches and b in switches:
            parts.append(_draw_arc(switches[a], switches[b], f"{a} to {b}", number))
        elif a in cells and b in cells:
            parts.append(_draw_cable(cells[b], cells[a], f"{a} to {b}", number))
    return parts


def _draw_cable(upper: Place, lower: Place, name: str, blamed: int | None) -> str:
    mark = "cable blamed-line" if blamed else "cable"
    ends = f'x1="{upper.middle:.1f}" y1="{upper.y + upper.height:.1f}" x2="{lower.middle:.1f}" y2="{lower.y:.1f}"'
    return f'<line {ends} class="{mark}"><title>{escape(name)}</title></line>' + _tag(
        blamed, (upper.middle + lower.middle) / 2, 86
    )


def _draw_arc(a: Place, b: Place, name: str, blamed: int) -> str:
    """A cable between two switches, above them."""
    path = f"M{a.middle:.1f} {a.y:.1f}C{a.middle:.1f} 4 {b.middle:.1f} 4 {b.middle:.1f} {b.y:.1f}"
    return f'<path d="{path}" class="cable blamed-line" fill="none"><title>{escape(name)}</title></path>' + _tag(
        blamed, (a.middle + b.middle) / 2, 14
    )


def _draw_box(name: str, place: Place, kind: str, blamed: int | None) -> str:
    room = int(place.width / 7)
    label = name if len(name) <= room else name[: max(room - 1, 0)] + "…" if room > 2 else ""
    mark = " blamed-box" if blamed else ""
    text = f'<text x="{place.middle:.1f}" y="{place.y + (14 if kind == "host" else 17):.1f}" text-anchor="middle">'
    return (
        f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" height="{place.height:.1f}" rx="3" '
        f'class="{kind}{mark}"><title>{escape(name)}</title></rect>{text}{escape(label)}</text>'
        + _tag(blamed, place.x + place.width, place.y)
    )


def _draw_nic(address: str, place: Place, job: int | None, marks: Marks) -> str:
    blamed = marks.addresses.get(address)
    paint = "free" if job is None else f"job-{job % INKS}"
    return (
        f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width}" height="{place.height}" '
        f'class="nic {paint}{" blamed-box" if blamed else ""}"><title>{escape(address)}</title></rect>'
    )


def _draw_tags(nics: pl.DataFrame, cells: dict[str, Place], marks: Marks) -> list[str]:
    """One number for all NICs of a host that one finding blames, at the last of them."""
    last: dict[tuple[str, int], str] = {}
    for address, host in nics.select("address", "host").iter_rows():
        if address in marks.addresses:
            last[host, marks.addresses[address]] = address
    return [_tag(number, cells[a].x + cells[a].width, cells[a].y) for (_, number), a in last.items()]


def _tag(number: int | None, x: float, y: float) -> str:
    """The number of the finding, as it stands in the list."""
    if number is None:
        return ""
    return (
        f'<g class="tag"><circle cx="{x:.1f}" cy="{y:.1f}" r="8"/><text x="{x:.1f}" y="{y + 4:.1f}">{number}</text></g>'
    )
