"""Counters of switch ports beside findings."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from prism.observe.diagnosis import Diagnosis
from prism.observe.port_evidence import add_ports
from prism.observe.report.page import render_report
from prism.observe.traffic.preparation import prepare_traffic
from prism.records import SPANS, Finding
from prism.records.findings import Culprit
from prism.records.ports import PortLoad

FLOWS = pl.DataFrame(
    {
        "start_ns": [0, 10, 20, 30],
        "end_ns": [5, 15, 25, 35],
        "src": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"],
        "dst": ["10.0.0.2", "10.0.0.1", "10.0.0.4", "10.0.0.3"],
        "bytes": [100, 100, 100, 100],
        "exporter": ["leaf-a", "leaf-a", "leaf-b", "leaf-b"],
    }
)
SLOW = Finding(
    kind="slow_link",
    job="job-1",
    culprit=Culprit(type="link", id="10.0.0.1>10.0.0.2"),
    start_ns=10,
    end_ns=40,
    lost_gpu_seconds=5.0,
    score=0.9,
    evidence="transfers take 3 times as long",
)


def port(exporter: str, number: int, errors: int = 0, discards: int = 0, peak: float = 0.1) -> PortLoad:
    return PortLoad(
        exporter=exporter, port=number, load=0.1, peak=peak, errors=errors, discards=discards, start_ns=0, end_ns=50
    )


def diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(jobs=(), findings=findings, notes=(), traffic=prepare_traffic(FLOWS))


def test_a_port_that_loses_packets_on_the_way_of_a_link_is_evidence() -> None:
    ports = (port("leaf-a", 7, errors=12, discards=3), port("leaf-a", 8), port("leaf-b", 7, errors=9))
    found = add_ports(diagnosis(SLOW), FLOWS, ports)
    (finding,) = found.findings
    assert finding.evidence.startswith(SLOW.evidence)
    assert "switch leaf-a port 7: up to 10 % of its speed in use, 12 errors, 3 discards" in finding.evidence
    assert "port 8" not in finding.evidence and "leaf-b" not in finding.evidence


def test_counters_of_another_time_are_no_evidence_and_make_no_finding() -> None:
    before = replace(port("leaf-a", 7, errors=12), end_ns=5)
    found = add_ports(diagnosis(SLOW), FLOWS, (before,))
    assert found.findings == (SLOW,)
    assert add_ports(diagnosis(), FLOWS, (port("leaf-a", 7, errors=12),)).findings == ()


def test_a_blamed_switch_is_found_by_its_name() -> None:
    blamed = replace(SLOW, kind="slow_switch", culprit=Culprit(type="switch", id="leaf-b"))
    (finding,) = add_ports(diagnosis(blamed), FLOWS, (port("leaf-b", 1, peak=0.97),)).findings
    assert "switch leaf-b port 1: up to 97 % of its speed in use" in finding.evidence


def test_ports_are_in_the_document_and_on_the_page_only_where_counters_came() -> None:
    plain = diagnosis(SLOW)
    assert "ports" not in plain.to_json() and "Switch ports" not in render_report(plain, SPANS.empty())
    found = add_ports(plain, FLOWS, (port("leaf-a", 7, errors=12), port("leaf-a", 8)))
    assert [(p["exporter"], p["port"], p["errors"]) for p in found.to_json()["ports"]] == [
        ("leaf-a", 7, 12),
        ("leaf-a", 8, 0),
    ]
    page = render_report(found, SPANS.empty())
    assert "2 ports with counters, 1 of them" in page and "switch leaf-a port 7" in page
