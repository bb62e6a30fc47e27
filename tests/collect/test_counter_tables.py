"""Counters of ports from SNMP tables and from Prometheus: errors, discards and pauses become evidence of links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from prism.collect import load_inputs
from prism.collect.port_counters import measure_ports
from prism.collect.tables import write_flows
from prism.errors import InputError
from prism.observe.diagnosis import Diagnosis
from prism.observe.port_evidence import add_ports
from prism.observe.traffic.preparation import prepare_traffic
from prism.records import TOPOLOGY, Finding
from prism.records.findings import Culprit

T = 1_700_000_000
SNMP = """timestamp,switch,ifName,ifHighSpeed,ifHCInOctets,ifHCOutOctets,ifInErrors,ifOutDiscards,dot3InPauseFrames,dot3OutPauseFrames
2023-11-14 22:13:20,leaf-1,Ethernet8,400000,0,0,10,4294967290,100,0
2023-11-14 22:13:30,leaf-1,Ethernet8,400000,100000000000,480000000000,12,4,1100,5
2023-11-14 22:13:20,leaf-1,Ethernet9,400000,0,0,0,0,0,0
2023-11-14 22:13:30,leaf-1,Ethernet9,400000,5000000000,5000000000,0,0,0,0
"""


def flows_file(folder: Path) -> Path:
    flows = pl.DataFrame({"start_ns": [T * 10**9 + i * 10**8 for i in range(50)]}).with_columns(
        end_ns=pl.col("start_ns") + 10**7, src=pl.lit("10.0.0.1"), dst=pl.lit("10.0.1.1"), bytes=pl.lit(10**6, pl.Int64)
    )
    write_flows(flows, folder / "flows.parquet")
    return folder / "flows.parquet"


def answer(*series: tuple[str, dict[str, str], list[tuple[float, str]]]) -> dict[str, Any]:
    """What /api/v1/query_range of Prometheus answers."""
    result = [{"metric": {"__name__": name, **labels}, "values": values} for name, labels, values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_a_table_of_snmp_names_lies_beside_the_flows(tmp_path: Path) -> None:
    (tmp_path / "counters.csv").write_text(SNMP)
    read = load_inputs([flows_file(tmp_path), tmp_path / "counters.csv"])
    assert read.flows.height == 50
    paused, quiet = measure_ports(read.counters)
    assert (paused.exporter, paused.port, paused.errors, paused.discards, paused.pauses) == (
        "leaf-1",
        "Ethernet8",
        2,
        10,
        1005,
    )
    assert paused.peak == pytest.approx(0.96), "384 Gb/s of 400"
    assert not quiet.is_troubled and quiet.pauses == 0


def test_an_answer_of_prometheus_is_read_as_it_is(tmp_path: Path) -> None:
    labels = {"instance": "leaf-1", "job": "snmp", "ifIndex": "8", "ifName": "Ethernet8"}
    document = answer(
        ("dot3InPauseFrames", labels, [(T, "100"), (T + 10, "1.1e+03")]),
        ("ifInErrors", labels, [(T, "0"), (T + 10, "7")]),
        ("up", {"instance": "leaf-1"}, [(T, "1")]),
    )
    (tmp_path / "answer.json").write_text(json.dumps(document))
    (port,) = measure_ports(load_inputs([flows_file(tmp_path), tmp_path / "answer.json"]).counters)
    assert (port.exporter, port.port, port.errors, port.pauses, port.peak) == ("leaf-1", "Ethernet8", 7, 1000, None)


def test_pauses_of_the_leaf_that_a_link_is_cabled_to_stand_beside_its_finding(tmp_path: Path) -> None:
    (tmp_path / "counters.csv").write_text(SNMP)
    read = load_inputs([flows_file(tmp_path), tmp_path / "counters.csv"])
    topology = TOPOLOGY.conform(
        pl.DataFrame(
            {"address": ["10.0.0.1", "10.0.1.1"], "host": ["a", "b"], "rail": [0, 0], "switch": ["leaf-1", "leaf-2"]}
        )
    )
    slow = Finding(
        kind="slow_link", job="job-1", culprit=Culprit(type="link", id="10.0.0.1>10.0.1.1"), start_ns=T * 10**9,
        end_ns=T * 10**9 + 10**9, lost_gpu_seconds=5.0, score=0.9, evidence="transfers take 3 times as long",
    )  # fmt: skip
    traffic = prepare_traffic(read.flows, topology)
    found = add_ports(
        Diagnosis(jobs=(), findings=(slow,), notes=(), traffic=traffic), read.flows, measure_ports(read.counters)
    )
    assert (
        "switch leaf-1 port Ethernet8: up to 96 % of its speed in use, 2 errors, 10 discards, 1,005 pause frames"
        in found.findings[0].evidence
    )
    assert "Ethernet9" not in found.findings[0].evidence


@pytest.mark.parametrize(
    "text",
    [
        '{"data": {"resultType": "matrix", "result": [7]}}\n',
        '{"data": {"resultType": "matrix", "result": []}}\n',
        "switch,port,ifInErrors\nleaf-1,7,3\n",
    ],
)
def test_counters_without_a_time_or_a_port_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(InputError, match=r"odd\.json: "):
        load_inputs([flows_file(tmp_path), tmp_path / "odd.json"])
