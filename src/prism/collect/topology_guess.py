"""Hosts guessed from addresses and traffic, with how sure the guess is: NICs of one host never send to each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from prism.collect.tables.summary import endpoints_of
from prism.collect.topology_files import number_rails

_SIZES = (2, 4, 8, 16)  # NICs of a host
_SURE = 0.7
_OTHER_HOSTS_NEEDED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessedTopology:
    """A TOPOLOGY, how it came about, and a confidence from 0 to 1."""

    topology: pl.DataFrame
    rule: str
    confidence: float


def guess_topology(flows: pl.DataFrame) -> GuessedTopology:
    """Group addresses into hosts by the rule that traffic agrees with best; below 0.7 every address is a host."""
    addresses = [a for a in endpoints_of(flows) if _is_ipv4(a)]
    pairs = flows.group_by("src", "dst").agg(pl.col("bytes").sum())
    found: list[tuple[float, str, dict[str, str]]] = []
    for rule, key in _rules(addresses):
        hosts = {address: key(address) for address in addresses}
        found.append((_judge(hosts, pairs), rule, hosts))
    score, rule, hosts = max(found, key=lambda f: f[0], default=(0.0, "", {}))
    if score < _SURE:
        everyone = {address: address for address in endpoints_of(flows)}
        return GuessedTopology(
            topology=_to_topology(everyone), rule="every address is a host", confidence=round(score, 2)
        )
    return GuessedTopology(topology=_to_topology(hosts), rule=rule, confidence=round(score, 2))


def _rules(addresses: list[str]) -> list[tuple[str, Callable[[str], str]]]:
    """Ways in which addresses are usually planned: an octet counts the rails, or neighbours share a host."""

    def without(octet: int) -> Callable[[str], str]:
        return lambda a: ".".join("*" if i == octet else part for i, part in enumerate(a.split(".")))

    def blocks(size: int, first: int) -> Callable[[str], str]:
        return lambda a: f"block-{(int(ipaddress.IPv4Address(a)) - first) // size}"

    least = min((int(ipaddress.IPv4Address(a)) for a in addresses), default=0)
    rules = [(f"octet {octet + 1} counts the NICs of a host", without(octet)) for octet in (1, 2, 3)]
    return rules + [(f"{size} neighbouring addresses are a host", blocks(size, least)) for size in _SIZES]


def _judge(hosts: dict[str, str], pairs: pl.DataFrame) -> float:
    """How well a grouping fits: hosts of one size, none sends to itself, and NICs talk to those of their own rail."""
    sizes = pl.Series(list(hosts.values())).value_counts()["count"]
    usual = int(sizes.mode()[0]) if len(sizes) else 0
    if usual not in _SIZES or len(sizes) < _OTHER_HOSTS_NEEDED:
        return 0.0
    even = float((sizes == usual).sum()) / len(sizes)
    topology = _to_topology(hosts)
    host = dict(zip(topology["address"], topology["host"], strict=True))
    rail = dict(zip(topology["address"], topology["rail"], strict=True))
    total = inside = along = 0
    for src, dst, size in pairs.iter_rows():
        if src in host and dst in host and src != dst:
            total += size
            inside += size * (host[src] == host[dst])
            along += size * (rail[src] == rail[dst])
    if not total:
        return 0.0
    # Traffic over rails is not wrong, only less telling.
    return even * (1 - inside / total) * (0.5 + 0.5 * along / total)


def _to_topology(hosts: dict[str, str]) -> pl.DataFrame:
    return number_rails([(address, host, None) for address, host in hosts.items()])


def _is_ipv4(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 4
    except ValueError:
        return False
