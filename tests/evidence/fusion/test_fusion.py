"""Sources vote by likelihood: agreement among many candidates counts, a source that contradicts itself counts less."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from prism.evidence.fusion import Clue, Suspect
from prism.evidence.fusion.fusion import Fused, fuse
from prism.evidence.fusion.slow_clues import read_findings
from prism.evidence.traces.counters import COUNTERS, find_anomalies
from prism.records.findings import Culprit, Finding

HOSTS = {str(r): f"node-{r // 8}" for r in range(64)}


def clue(source: Any, confidence: float, *names: str, **more: Any) -> Clue:
    kinds = {"n": "host", "l": "link"}
    suspects = tuple(Suspect(type=kinds.get(n[0], "rank"), id=n) for n in names)  # type: ignore[arg-type]
    return Clue(source=source, what=source, text="t", suspects=suspects, since_ns=None, confidence=confidence, **more)


def finding(kind: Any, who: tuple[Any, str], score: float = 0.99, lost: float = 100.0) -> Finding:
    return Finding(
        kind=kind, job="job-1", culprit=Culprit(type=who[0], id=who[1]), start_ns=0, end_ns=1, lost_gpu_seconds=lost,
        score=score, evidence="e",
    )  # fmt: skip


def hosts_of(fused: Fused) -> set[str]:
    return {s.id for s in fused.culprits if s.type == "host"}


def test_two_sources_that_agree_outvote_a_surer_one() -> None:
    """By mistake two sources seldom name the same one of eight hosts."""
    fused = fuse([clue("flows", 0.95, "node-1"), clue("kineto", 0.7, "17"), clue("counters", 0.7, "node-2")], HOSTS)
    assert hosts_of(fused) == {"node-2"} and "17" in {s.id for s in fused.culprits}


def test_one_source_alone_is_as_sure_as_it_says() -> None:
    assert fuse([clue("flows", 0.9, "node-1")], HOSTS).confidence == pytest.approx(0.9, abs=0.02)


def test_a_source_that_names_three_shares_its_vote() -> None:
    wrong = [clue("flows", 0.93, f"node-{n}", causes=("slow",)) for n in (3, 4, 5)]
    fused = fuse([*wrong, clue("flight_recorder", 0.7, "17", causes=("slow",))], HOSTS)
    assert hosts_of(fused) == {"node-2"}


def test_an_error_that_ends_processes_is_not_why_a_running_job_is_slow() -> None:
    error = clue("log", 0.9, "node-6", causes=("stop",))
    link = clue("flows", 0.9, "leaf-0", shows="slow", causes=("slow",))
    runs = clue("flight_recorder", 0.5, shows="slow", causes=("stop",))
    assert [s.id for s in fuse([error, link, runs], HOSTS).culprits] == ["leaf-0"]
    assert hosts_of(fuse([error, clue("ras", 0.5, shows="stop")], HOSTS)) == {"node-6"}


def test_an_error_on_one_of_four_that_cannot_be_why_the_job_is_slow_does_not_choose_it() -> None:
    group = clue("flows", 0.93, "node-1", "node-2", shows="slow", causes=("slow",), one_of=True)
    fused = fuse([group, clue("log", 0.9, "node-1", causes=("stop",))], HOSTS)
    assert hosts_of(fused) == {"node-1", "node-2"}


def test_where_nothing_explains_a_job_that_runs_on_slowly_nobody_is_named() -> None:
    error = clue("log", 0.9, "node-6", causes=("stop",))
    fused = fuse([error, clue("flight_recorder", 0.5, shows="slow", causes=("stop",))], HOSTS)
    assert not fused.culprits and "node-6" in {s.id for s in fused.alternatives} and "runs on" in fused.what


def test_one_of_four_is_told_apart_by_another_source_or_by_counters_that_are_fine() -> None:
    group = clue("flows", 0.9, "node-1", "node-2", "node-3", "node-4", causes=("slow",), one_of=True)
    assert hosts_of(fuse([group], HOSTS)) == {"node-1", "node-2", "node-3", "node-4"}
    assert hosts_of(fuse([group, clue("counters", 0.7, "node-3")], HOSTS)) == {"node-3"}
    assert hosts_of(fuse([group], HOSTS, cleared={"node-1", "node-2", "node-4"})) == {"node-3"}


def test_a_rank_of_unknown_place_may_run_on_the_host_whose_ranks_are_unknown() -> None:
    known = {r: h for r, h in HOSTS.items() if h != "node-2"}
    clues = [clue("flight_recorder", 0.7, "17"), clue("counters", 0.7, "node-2"), clue("flows", 0.9, "node-1")]
    fused = fuse(clues, known, num_ranks=64)
    assert {s.id for s in fused.culprits} == {"17", "node-2"}
    known = {r: h for r, h in known.items() if h != "node-1"}  # Of two such hosts the likelier one is named.
    assert {s.id for s in fuse(clues, known, num_ranks=64).culprits} == {"17", "node-1"}
    assert hosts_of(fuse(clues, known, num_ranks=56)) == {"node-1"}  # No rank is left that could run there.


def test_endpoints_of_a_finding_become_their_host_and_a_group_is_one_of_its_hosts() -> None:
    places = {"10.0.0.1": "node-1", "10.0.1.1": "node-1", "10.0.0.2": "node-2"}
    (one,) = read_findings([finding("slow_compute", ("endpoint", "10.0.0.1,10.0.1.1"))], places)
    assert [s.id for s in one.suspects] == ["node-1"] and not one.one_of
    (group,) = read_findings([finding("slow_link", ("group", "10.0.0.1,10.0.0.2"))], places)
    assert [s.id for s in group.suspects] == ["node-1", "node-2"] and group.one_of


def test_a_finding_that_costs_little_is_not_what_makes_the_job_slow() -> None:
    dear, cheap = read_findings(
        [
            finding("slow_compute", ("host", "node-1"), 0.95, 1000.0),
            finding("slow_switch", ("switch", "leaf-0"), 0.99, 50.0),
        ]
    )
    assert dear.confidence > 0.9 and cheap.confidence < 0.5


@pytest.mark.parametrize("hosts", ["ab", "b"])
def test_of_two_hosts_or_of_one_alone_the_one_with_errors_is_found(hosts: str) -> None:
    name = "node_network_receive_errs_total"
    rows = [(h, "", name, t, float(100 * t * (h == "b"))) for h in hosts for t in range(5)]
    assert [a.host for a in find_anomalies(pl.DataFrame(rows, schema=COUNTERS, orient="row"))] == ["b"]


def test_a_weak_error_that_cannot_be_why_the_job_is_slow_is_reported_and_names_nobody() -> None:
    runs = [clue(source, 0.5, shows="slow", causes=()) for source in ("flows", "flight_recorder", "kineto")]
    fused = fuse([clue("log", 0.1, "node-6", causes=("stop",)), *runs], HOSTS)
    assert fused.culprits == () and "the job runs on" in fused.what
