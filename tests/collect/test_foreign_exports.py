"""Captures of 45 routers, firewalls and probes: as many flows as nfdump, tshark or the test of their source reads."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from prism.collect.packet_files import read_packets
from prism.errors import BadFileError

# Two-way records are two flows here and one there.
TWO_WAY = {"logstash_ipfix_test_yaf.pcap": 4, "logstash_netflow9_test_cisco_asa_2.pcap": 34}


def test_every_capture_gives_the_flows_that_its_peers_read(shared_data: Path) -> None:
    folder = shared_data / "exports"
    if not (folder / "expected.csv").exists():
        pytest.skip("these captures are not at hand")
    wanted = {
        row["file"]: int(row["flows"]) for row in csv.DictReader((folder / "expected.csv").read_text().splitlines())
    }
    assert len(wanted) == 45
    found = {}
    for name in wanted:
        try:
            found[name] = read_packets(folder / "captures" / name).flows.height
        except BadFileError:
            found[name] = 0
    assert found == wanted | TWO_WAY
