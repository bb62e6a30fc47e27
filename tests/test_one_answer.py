"""Questions that were once answered in several places, with different answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prism.datacenter.characterize.checkpoints import CheckpointCosts, advise_checkpoints
from prism.incidents import AlertConfig, Channel, IncidentBook, Look, Place, Sighting
from prism.incidents.kinds import kind_of
from prism.incidents.messages import write_body
from prism.machine.hosts import expand_hosts
from prism.observe.report.words import MEANINGS
from prism.observe.watch.alerts import _to_alert
from prism.recover.interval import IntervalConfig, SaveClock, choose_interval_s

SOURCE = Path(__file__).parents[1] / "src" / "prism"
# Programs that run on other hosts, or inside the program or sandbox they watch, as one file without our imports.
ALONE = (
    "evidence/fusion/collector.py",
    "lab/tour/hanging.py",
    "recover/supervise/launchers/node.py",
    "evaluate/run/scoring/",
    "emulate/inside/",
    "recover/isolate/probe.py",
    "recover/progress.py",
)


def places_with(pattern: str) -> list[str]:
    found = (
        f"{path.relative_to(SOURCE)}"
        for path in sorted(SOURCE.rglob("*.py"))
        if re.search(pattern, path.read_text()) and not str(path.relative_to(SOURCE)).startswith(("machine/", *ALONE))
    )
    return list(found)


def test_the_best_checkpoint_interval_is_the_same_for_a_job_and_for_a_datacenter() -> None:
    (advice,) = advise_checkpoints(8.0, (8,), CheckpointCosts(save_s=120, restart_s=1_800))
    clock = SaveClock(IntervalConfig(node_mtbf_s=3_600.0, num_nodes=1))
    clock.save_done(120.0)
    assert advice.interval_s == clock.interval_s == choose_interval_s(120.0, 3_600.0)
    assert advice.interval_s / 60 == pytest.approx(14.2, abs=0.05)


def test_a_finding_has_the_same_labels_whoever_tells_alertmanager() -> None:
    document = {
        "id": "f-1", "kind": "hang", "job": "job-1", "culprit": {"type": "host", "id": "n3"}, "evidence": "silent",
        "lost_gpu_seconds": 1.0, "start_ns": 1, "end_ns": 2,
    }  # fmt: skip
    seen = Sighting(key="f-1", kind="hang", place=Place(type="host", id="n3"), since_ns=1, until_ns=2, text="silent",
                    sure=0.9, job="job-1", job_key="watch~job-1")  # fmt: skip
    book = IncidentBook()
    book.handle(Look(now_ns=2, source="watch/state.json", tool="watch", at_ns=2, sightings=(seen,)))
    channel = Channel(name="am", type="alertmanager", url="http://am")
    (served,) = write_body(book.incidents["i-1"], "opened", channel, AlertConfig(), 10.0)
    told = _to_alert(document, ends_s=310.0)["labels"]
    assert {name: served["labels"][name] for name in told} == told


def test_host_lists_are_expanded_in_one_place() -> None:
    assert expand_hosts("rack[1-2]n[1-2]") == ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]
    assert expand_hosts("n[08-10]-ib") == ["n08-ib", "n09-ib", "n10-ib"]
    assert places_with(r"show.{1,6}hostnames") == ["recover/supervise/launchers/slurm.py"]  # in the job's own script


def test_a_file_is_replaced_in_one_place() -> None:
    assert places_with(r"(?:aside|part|draft|partial)\.replace\(|os\.replace\(") == []


def test_the_kernels_table_of_processes_is_read_in_one_place() -> None:
    assert places_with(r"/proc/\{\w+\}/stat\b|\[0-9\]\*/stat\b") == []


def test_what_is_posted_to_people_goes_through_one_sender() -> None:
    """Others only ask: a store, a model, an API that they name."""
    asks = {"collect/clickhouse.py", "evidence/logs/agent.py", "serve/client.py", "lab/tour/dashboard.py",
            "evidence/traces/counters.py", "datacenter/predict/prometheus.py", "evaluate/run/"}  # fmt: skip
    found = places_with(r"urlopen|urllib\.request|http\.client")
    assert [place for place in found if not place.startswith(tuple(asks))] == []


def test_what_to_do_about_a_finding_is_said_in_one_place() -> None:
    for kind, meaning in MEANINGS.items():
        assert meaning == f"{kind_of(kind).says}; {kind_of(kind).advice}"
    assert [
        place for place in places_with("look at its cable|GPUs: clocks, heat") if place != "incidents/kinds.py"
    ] == []
