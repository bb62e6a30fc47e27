"""Topologies from LLDP dumps, SONiC's configuration, NetBox's answers, and by a guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.collect.topology_files import read_topology_sources
from prism.collect.topology_guess import guess_topology
from prism.errors import InputError
from prism.lab.scenarios import load_scenario, make_scenario
from prism.records import TOPOLOGY, read_table

EXPECTED = [("10.0.0.1", "node-1", 0, "leaf-1"), ("10.0.1.1", "node-1", 1, "leaf-2")]


def save(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def addresses(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {"ifname": name, "addr_info": [{"family": "inet", "local": a, "prefixlen": 24, "scope": "global"}]}
        for name, a in pairs
    ]


@pytest.mark.parametrize("form", ["json", "json0"])
def test_dumps_of_lldp_and_addresses_of_a_host(tmp_path: Path, form: str) -> None:
    neighbours = [("eth0", "leaf-1"), ("eth1", "leaf-2")]
    if form == "json":
        lldp: Any = {"interface": [{n: {"chassis": {s: {"mgmt-ip": "192.0.2.1"}}, "port": {}}} for n, s in neighbours]}
    else:
        lldp = [{"interface": [{"name": n, "chassis": [{"name": [{"value": s}]}]} for n, s in neighbours]}]
    save(tmp_path / "node-1.lldp.json", {"lldp": lldp})
    save(tmp_path / "node-1.addr.json", addresses(("eth0", "10.0.0.1"), ("eth1", "10.0.1.1"), ("mgmt", "192.168.0.9")))
    assert read_topology_sources([tmp_path]).rows() == EXPECTED


def test_the_configuration_of_sonic_leaves(tmp_path: Path) -> None:
    paths = []
    for number, leaf in enumerate(("leaf-1", "leaf-2")):
        document = {
            "DEVICE_METADATA": {"localhost": {"hostname": leaf}},
            "DEVICE_NEIGHBOR": {"Ethernet0": {"name": "node-1", "port": f"eth{number}"}},
            "INTERFACE": {"Ethernet0": {}, f"Ethernet0|10.0.{number}.0/31": {}, "Loopback0|10.1.0.1/32": {}},
        }
        paths.append(save(tmp_path / f"{leaf}.json", document))
    assert read_topology_sources(paths).rows() == EXPECTED


def test_the_answers_of_netbox(tmp_path: Path) -> None:
    rows = [("eth0", "10.0.0.1", "leaf-1"), ("eth1", "10.0.1.1", "leaf-2")]
    ips = [{"address": f"{a}/24", "assigned_object": {"name": n, "device": {"name": "node-1"}}} for n, a, _ in rows]
    cables = [
        {"name": n, "device": {"name": "node-1"}, "connected_endpoints": [{"name": "Ethernet1", "device": {"name": s}}]}
        for n, _, s in rows
    ]
    save(tmp_path / "ip-addresses.json", {"count": 2, "results": ips})
    save(tmp_path / "interfaces.json", {"count": 2, "results": cables})
    assert read_topology_sources([tmp_path]).rows() == EXPECTED


def test_files_that_say_nothing_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no NIC address found"):
        read_topology_sources([save(tmp_path / "x.json", {"results": []})])
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(InputError, match="y.json: not JSON.*flow records, pass --auto"):
        read_topology_sources([tmp_path / "y.json"])


def test_hosts_are_guessed_where_traffic_agrees_and_not_otherwise() -> None:
    def traffic(pairs: list[tuple[str, str]]) -> pl.DataFrame:
        return pl.DataFrame({"src": [p[0] for p in pairs], "dst": [p[1] for p in pairs], "bytes": [100] * len(pairs)})

    rails = [(f"10.0.{rail}.{a}", f"10.0.{rail}.{a % 16 + 1}") for rail in range(8) for a in range(1, 17)]
    found = guess_topology(traffic(rails))
    assert found.rule == "octet 3 counts the NICs of a host" and found.confidence == 1.0
    assert found.topology["host"].n_unique() == 16 and set(found.topology["rail"]) == set(range(8))
    tangled = [(f"10.0.0.{a}", f"10.0.0.{b}") for a in range(1, 14) for b in range(1, 14) if a != b]
    unsure = guess_topology(traffic(tangled))
    assert unsure.rule == "every address is a host" and unsure.topology["host"].n_unique() == 13


def test_the_hosts_of_a_made_cluster_are_guessed_right(tmp_path: Path) -> None:
    run = make_scenario(load_scenario("dense-3d-64"), 0)
    run.flows.head(20_000).write_parquet(tmp_path / "flows.parquet")
    out = tmp_path / "topology.csv"
    result = CliRunner().invoke(
        app, ["flows", "topology", str(tmp_path / "flows.parquet"), "--auto", "--output", str(out), "--json"]
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    guessed = read_table(out, TOPOLOGY)
    truth = {
        frozenset(h)
        for h in run.topology.filter(pl.col("address").is_in(guessed["address"].to_list()))
        .group_by("host")
        .agg("address")["address"]
        .to_list()
    }
    found = {frozenset(h) for h in guessed.group_by("host").agg("address")["address"].to_list()}
    assert found == truth and document["confidence"] >= 0.7


@pytest.mark.parametrize("document", [[5], {"lldp": [7]}, {"DEVICE_NEIGHBOR": {"E0": "x"}}, {"results": ["x"]}])
def test_json_of_another_shape_is_refused_in_one_line(tmp_path: Path, document: Any) -> None:
    with pytest.raises(InputError, match=r"odd\.json: "):
        read_topology_sources([save(tmp_path / "odd.json", document)])
