"""Every number and statement of the pages against the files that it is read from."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from served_folder import make_run

from prism.incidents import AlertConfig
from prism.records import SPANS
from prism.recover.progress import attempt_dir
from prism.serve.folder import Folder, ScanLimits
from prism.serve.incidents import KeptIncidents
from prism.serve.library import Library, LookConfig
from prism.serve.sources.supervised import Supervised
from prism.serve.timelines import Timelines
from prism.serve.views.cluster import describe_cluster
from prism.serve.views.datacenter import describe_overview
from prism.serve.views.evaluation import describe_evaluation, describe_evaluations
from prism.serve.views.failures import describe_failures
from prism.serve.views.job import describe_job
from prism.serve.views.looks import find_now
from prism.serve.views.reports import describe_report, describe_reports
from prism.serve.views.runs import describe_run
from prism.serve.views.timeline import WindowRequest, describe_timeline
from prism.serve.web.metrics import render_metrics

SECOND = 10**9
EPOCH_NS = 1_780_000_000 * SECOND


def finding(
    job: str, culprit: tuple[str, str], start_s: float = 0.0, end_s: float = 9.0, **more: Any
) -> dict[str, Any]:
    return {
        "kind": "slow_compute", "job": job, "culprit": {"type": culprit[0], "id": culprit[1]},
        "start_ns": EPOCH_NS + int(start_s * SECOND), "end_ns": EPOCH_NS + int(end_s * SECOND),
        "lost_gpu_seconds": 40.0, "score": 0.9, "evidence": "computes half as fast", **more,
    }  # fmt: skip


def job_document(number: int, *, ranks: int = 16, at_s: float = 0.0, **more: Any) -> dict[str, Any]:
    """A job of 16 NICs on 16 hosts of its own, with ten steps of a second."""
    names = [f"10.0.{number}.{i}" for i in range(ranks)]
    start = EPOCH_NS + int(at_s * SECOND)
    steps = [{"index": i, "start_ns": start + i * SECOND, "end_ns": start + (i + 1) * SECOND} for i in range(10)]
    return {
        "id": f"job-{number}", "endpoints": names, "hosts": [f"node-{number}-{i}" for i in range(ranks)],
        "layout": {"dp": ranks}, "groups": [], "stages": {}, "pairs": [], "steps": steps, **more,
    }  # fmt: skip


def write_diagnosis(folder: Path, jobs: Sequence[dict[str, Any]], findings: Sequence[dict[str, Any]] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"schema": "prism.diagnosis/1", "jobs": list(jobs), "findings": list(findings), "notes": ["no sampling"]}
    (folder / "diagnosis.json").write_text(json.dumps(document))
    rows = [f"{a},{h},0,leaf-0" for job in jobs for a, h in zip(job["endpoints"], job["hosts"], strict=True)]
    (folder / "topology.csv").write_text("address,host,rail,switch\n" + "\n".join(rows) + "\n")


def write_watch(
    folder: Path, endpoints: dict[str, list[str]], *, findings: Sequence[dict[str, Any]] = (), last_s: float = 60.0
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    last = EPOCH_NS + int(last_s * SECOND)
    jobs = {
        name: {"endpoints": own, "first_seen_ns": EPOCH_NS, "last_seen_ns": last, "step_s": 2.93}
        for name, own in endpoints.items()
    }
    document = {"schema": "prism.watch-state/1", "jobs": jobs, "findings": list(findings), "looked_until_ns": last}
    (folder / "state.json").write_text(json.dumps(document))


def known(job: str, culprit: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {
        "id": "finding-1", "kind": "slow_compute", "job": job, "culprit_type": culprit[0], "culprit": culprit[1],
        "start_ns": EPOCH_NS, "end_ns": EPOCH_NS + 60 * SECOND, "cost": 30.0, "told_cost": 30.0, "sightings": 3,
        "look": 4, "score": 0.8, "evidence": "computes half as fast", **more,
    }  # fmt: skip


def look(folder: Path) -> Library:
    library = Library(Folder(folder))
    library.refresh()
    return library


def test_three_looks_at_four_jobs_are_four_jobs(tmp_path: Path) -> None:
    for number in range(3):
        jobs = [job_document(job, at_s=100.0 * number) for job in range(1, 5)]
        blamed = [finding("job-1", ("host", "node-1-0"), 100.0 * number, 100.0 * number + 9)]
        write_diagnosis(tmp_path / f"look-{number}", jobs, blamed)
    page = describe_cluster(look(tmp_path).snapshot)
    assert (page.counts.jobs, page.counts.hosts, page.counts.open_findings) == (4, 64, 1)
    assert {row.place for row in page.jobs} == {"look-2"} and {row.num_looks for row in page.jobs} == {3}
    assert len(page.earlier) == 8


def test_a_watch_and_a_diagnosis_of_the_same_jobs_and_jobs_that_are_gone_are_not_more_jobs(tmp_path: Path) -> None:
    jobs = [job_document(job) for job in range(1, 5)]
    write_diagnosis(tmp_path / "report", jobs)
    write_watch(tmp_path / "watch", {f"job-{i}": job["endpoints"] for i, job in enumerate(jobs)})
    state = json.loads((tmp_path / "watch" / "state.json").read_text())
    state["jobs"]["job-9"] = {**state["jobs"]["job-0"], "endpoints": ["10.9.9.9"], "last_seen_ns": EPOCH_NS}
    (tmp_path / "watch" / "state.json").write_text(json.dumps(state))
    page = describe_cluster(look(tmp_path).snapshot)
    assert page.counts.jobs == len(page.jobs) == 4
    assert {row.source for row in page.jobs} == {"watched"}, "the watch has looked later"
    assert {row.id: row.state for row in page.earlier if row.source == "watched"} == {"job-9": "gone"}


def test_a_job_page_lists_every_look_at_its_job(tmp_path: Path) -> None:
    for number in range(2):
        write_diagnosis(tmp_path / f"look-{number}", [job_document(1, at_s=100.0 * number)])
    old = describe_job(look(tmp_path).snapshot, "look-0~job-1")
    assert old is not None and old.latest_key == "look-1~job-1"
    assert [row.key for row in old.looks] == ["look-1~job-1", "look-0~job-1"]


def test_looks_at_two_jobs_on_the_same_hosts_are_of_the_one_whose_steps_are_as_long(tmp_path: Path) -> None:
    quick, slow = job_document(1), job_document(1)
    slow["steps"] = [{**s, "end_ns": s["end_ns"] + 2 * SECOND} for s in slow["steps"]]
    write_diagnosis(tmp_path / "look-0", [{**slow, "id": "job-1"}, {**quick, "id": "job-2"}])
    for job in (quick, slow):
        job["steps"] = [{k: v + 100 * SECOND * (k != "index") for k, v in s.items()} for s in job["steps"]]
    write_diagnosis(tmp_path / "look-1", [{**quick, "id": "job-1"}, {**slow, "id": "job-2"}])
    now = find_now(look(tmp_path).snapshot)
    assert set(now.looks) == {("look-1~job-1", "look-0~job-2"), ("look-1~job-2", "look-0~job-1")}


def test_where_no_link_data_was_written_sharing_is_unknown(tmp_path: Path) -> None:
    write_watch(tmp_path, {"job-1": ["10.0.1.0", "10.0.1.1"]})
    page = describe_cluster(look(tmp_path).snapshot)
    assert page.shared == () and not page.links_known and not page.switches_known


def test_a_watched_job_has_a_median_and_its_steps_are_unknown_not_none(tmp_path: Path) -> None:
    write_watch(tmp_path, {"job-1": ["10.0.1.0", "10.0.1.1"]})
    job = describe_job(look(tmp_path).snapshot, ".~job-1")
    assert job is not None and job.job.step_s == 2.93
    assert not job.steps_known and job.job.num_steps is None and job.job.num_hosts is None


@pytest.mark.parametrize("culprit", [("host", "node-7"), ("endpoint", "10.0.1.1")])
def test_a_host_that_only_a_watch_blames_is_under_suspicion(tmp_path: Path, culprit: tuple[str, str]) -> None:
    write_watch(tmp_path, {"job-1": ["10.0.1.0", "10.0.1.1"]}, findings=[known("job-1", culprit)])
    page = describe_cluster(look(tmp_path).snapshot)
    assert [(row.host, row.state) for row in page.hosts] == [(culprit[1], "blamed")]
    assert page.counts.suspects == page.counts.open_findings == 1


def test_a_finding_that_is_over_is_told_apart_from_those_that_are_open(tmp_path: Path) -> None:
    over = known("job-1", ("host", "node-7"), resolved=True)
    write_watch(tmp_path, {"job-1": ["10.0.1.0", "10.0.1.1"]}, findings=[over])
    page = describe_cluster(look(tmp_path).snapshot)
    assert page.counts.open_findings == page.counts.suspects == 0 and len(page.resolved) == 1
    assert page.jobs[0].health == "ok"


def test_a_finding_in_the_state_and_in_lines_printed_elsewhere_is_one(tmp_path: Path) -> None:
    write_watch(tmp_path / "state", {"job-1": ["10.0.1.0"]}, findings=[known("job-1", ("host", "node-7"))])
    line = finding("job-1", ("host", "node-7"), id="finding-1", update=False, status="firing")
    (tmp_path / "findings.jsonl").write_text(json.dumps(line) + "\n")
    assert describe_cluster(look(tmp_path).snapshot).counts.open_findings == 1


def test_a_hang_lies_inside_the_range_of_its_timeline(tmp_path: Path) -> None:
    hang = finding("job-1", ("host", "node-1-0"), 10.0, 70.0, kind="hang")
    write_diagnosis(tmp_path, [job_document(1, state="stopped")], [hang])
    spans = {"job": "job-1", "rank": 0, "lane": "compute", "kind": "compute", "name": "step", "step": 0,
             "start_ns": EPOCH_NS, "end_ns": EPOCH_NS + 10 * SECOND}  # fmt: skip
    frame = pl.DataFrame([{name: spans.get(name) for name in SPANS.required}], schema=SPANS.required)
    frame.write_parquet(tmp_path / "timeline.parquet")
    library = look(tmp_path)
    document = describe_timeline(Timelines(library), WindowRequest(key=".~job-1"))
    assert document.last_ns == document.to_ns == 70 * SECOND
    job = describe_job(library.snapshot, ".~job-1")
    assert job is not None and job.job.health == "hung" and job.job.state == "stopped"


def test_a_job_that_ended_is_not_a_hang(tmp_path: Path) -> None:
    hang = finding("job-1", ("host", "node-1-0"), 10.0, 70.0, kind="hang")
    ended = job_document(1, state="ended", started_ns=EPOCH_NS, ended_ns=EPOCH_NS + 10 * SECOND)
    write_diagnosis(tmp_path, [ended], [hang])
    page = describe_cluster(look(tmp_path).snapshot)
    assert (page.jobs[0].health, page.jobs[0].state, page.counts.open_findings) == ("done", "ended", 0)
    assert page.notes == ("no sampling",)


def test_gone_broken_and_stale_are_states_with_an_age(tmp_path: Path) -> None:
    now = [0]
    write_watch(tmp_path / "watch", {"job-1": ["10.0.1.0"]})
    write_diagnosis(tmp_path / "report", [job_document(1)])
    write_diagnosis(tmp_path / "old", [job_document(2)])
    now[0] = (tmp_path / "watch" / "state.json").stat().st_mtime_ns + SECOND
    library = Library(Folder(tmp_path), config=LookConfig(stale_s=60), clock=lambda: now[0])
    assert library.refresh().states == ()
    before = library.snapshot.version
    (tmp_path / "old" / "diagnosis.json").unlink()
    (tmp_path / "report" / "diagnosis.json").write_text('{"jobs": [')
    now[0] += 3600 * SECOND
    overview = describe_overview(library.refresh(), "out")
    assert library.snapshot.version > before
    assert {row.path: row.state for row in overview.problems} == {
        "old/diagnosis.json": "gone",
        "report/diagnosis.json": "broken",
        "watch/state.json": "stale",
    }
    assert all(int(row.since_ns) > 0 for row in overview.problems)
    [job] = describe_cluster(library.snapshot).jobs
    assert job.stale and job.health == "unknown", "a watch that writes nothing does not vouch for a job"


def test_a_file_that_is_being_written_keeps_its_picture_for_a_moment(tmp_path: Path) -> None:
    write_diagnosis(tmp_path, [job_document(1)])
    library = look(tmp_path)
    (tmp_path / "diagnosis.json").write_text('{"jobs": [')
    assert len(describe_cluster(library.refresh()).jobs) == 1 and library.snapshot.states == ()
    write_diagnosis(tmp_path, [job_document(1), job_document(2)])
    assert len(describe_cluster(library.refresh()).jobs) == 2


def write_evaluation(folder: Path, results: str, *, column: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head, tail = (
        ("checkpoint,step,dataset,metric,value", ",higher_is_better")
        if column
        else ("checkpoint,step,dataset,metric,value", "")
    )
    rows = [
        f"step-{s},{s},{d},{m},{v}{f',{b}' if column else ''}"
        for s, d, m, v, b in ((1, "pile", "bits_per_byte", 0.9, "false"), (2, "pile", "bits_per_byte", 0.8, "false"),
                              (1, "mmlu", "acc", 0.5, "true"), (2, "mmlu", "acc", 0.4, "true"))
    ]  # fmt: skip
    (folder / "leaderboard.csv").write_text("\n".join([head + tail, *rows]) + "\n")
    (folder / "results.json").write_text(results)
    (folder / "progress.json").write_text(json.dumps({"state": "done", "done": 4}))


@pytest.mark.parametrize("column", [True, False])
def test_falling_bits_per_byte_are_better_and_falling_accuracy_is_worse(tmp_path: Path, column: bool) -> None:
    datasets = {"pile": {"higher_is_better": {"bits_per_byte": False}}, "mmlu": {"higher_is_better": {"acc": True}}}
    write_evaluation(
        tmp_path, json.dumps({"schema": "prism.evaluation/1", "results": {}, "datasets": datasets}), column=column
    )
    page = describe_evaluation(look(tmp_path).snapshot, ".~trials")
    assert page is not None
    assert {row.dataset: row.better for row in page.scores if row.change} == {"pile": True, "mmlu": False}


def test_where_nothing_says_which_way_is_better_a_change_is_neither(tmp_path: Path) -> None:
    write_evaluation(tmp_path, json.dumps({"schema": "prism.evaluation/1", "results": {}}), column=False)
    page = describe_evaluation(look(tmp_path).snapshot, ".~trials")
    assert page is not None and {row.better for row in page.scores} == {None}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trials.jsonl", b'{"trial": "a"\n[1, 2]\n'),
        ("trials.jsonl", b"null\n"),
        ("leaderboard.csv", b"checkpoint,step\nx,y,z\n"),
        ("progress.json", b'{"state": "running", "trials": {"done": 1e999}}'),
        ("results.json", b'{"schema": "prism.evaluation/1", "results": [3]}'),
    ],
)
def test_a_broken_file_of_an_evaluation_is_named_and_hides_no_other(tmp_path: Path, name: str, content: bytes) -> None:
    results = {"schema": "prism.evaluation/1", "results": {"step-1": {"d": {"acc": 0.5}}}}
    write_evaluation(tmp_path, json.dumps(results), column=True)
    (tmp_path / "progress.json").write_text('{"state": "done", "trials": {"done": 3}}')
    (tmp_path / name).write_bytes(content)
    library = look(tmp_path)
    (listed,) = describe_evaluations(library.snapshot).evaluations
    page = describe_evaluation(library.snapshot, listed.key)
    assert page is not None and page.broken.startswith(name) and len(page.scores) > 0
    assert page.progress.state == "done"
    assert [(state.state, state.message) for state in library.snapshot.states] == [("broken", page.broken)]


def test_broken_results_do_not_hide_an_evaluation(tmp_path: Path) -> None:
    write_evaluation(tmp_path, '{"schema": "prism.eval', column=True)
    library = look(tmp_path)
    assert len(describe_evaluations(library.snapshot).evaluations) == 1
    page = describe_evaluation(library.snapshot, ".~trials")
    assert page is not None and "results.json" in page.broken and page.scores
    assert [state.state for state in library.snapshot.states] == ["broken"]


def test_a_failure_that_a_supervisor_and_explain_both_tell_of_is_one(tmp_path: Path) -> None:
    verdict = {
        "log": "runs/a/attempts/0001", "reason": "NVLinkError", "category": "infrastructure",
        "action": "isolate_and_restart", "confidence": 0.9, "hosts": ["node-2"], "first_rank": 3,
        "evidence": [{"line": 61, "text": "Xid 74", "file": "node-2.log"}], "lines_read": 62, "lines_kept": 2,
        "mitigation": "Take the host out.",
    }  # fmt: skip
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    event = {"kind": "Explained", "now_s": 1.0, "verdict": verdict | {"log": "/data/runs/a/attempts/0001"}}
    (run / "decisions.jsonl").write_text(json.dumps({"time": 1.0, "event": event, "actions": []}) + "\n")
    state = {
        "phase": "running", "outcome": "", "outcome_text": "", "attempt": 2, "hosts": ["node-1"], "best_step": 3,
        "saved_steps": [], "num_rollbacks": 0, "skip": [], "book": {"records": {}},
        "failures": [{"at_s": 1.0, "reason": "NVLinkError", "category": "infrastructure", "step": 2, "host": "node-2"}],
    }  # fmt: skip
    (run / "state.json").write_text(json.dumps({"schema": "prism.supervise/1", "state": state}))
    other = verdict | {"log": "other/attempts/0001", "hosts": ["node-9"]}
    (tmp_path / "verdicts.jsonl").write_text("".join(json.dumps(v) + "\n" for v in (verdict, verdict, other)))
    page = describe_failures(look(tmp_path).snapshot)
    assert len(page.verdicts) == 2, "the same failure of two jobs is two"
    assert {host.host: host.num_failures for host in page.hosts} == {"node-2": 1, "node-9": 1}


def test_every_tile_is_what_the_files_say(tmp_path: Path) -> None:
    """Count everything again from the files, in another way, and compare with the page and the metrics."""
    for number in range(3):
        jobs = [job_document(job, at_s=1000.0 * number) for job in range(1, 5)]
        findings = [
            finding("job-1", ("host", "node-1-0"), 1000.0 * number),
            finding("job-2", ("endpoint", "10.0.2.3"), 1000.0 * number, lost_gpu_seconds=7.5),
        ]
        write_diagnosis(tmp_path / f"look-{number}", jobs, findings)
    write_watch(tmp_path / "watch", {"job-1": ["10.7.0.1", "10.7.0.2"]}, findings=[known("job-1", ("host", "edge-1"))])
    page = describe_cluster(look(tmp_path).snapshot)
    overview = describe_overview(look(tmp_path).snapshot, "out")
    newest = json.loads((tmp_path / "look-2" / "diagnosis.json").read_text())
    watch = json.loads((tmp_path / "watch" / "state.json").read_text())
    jobs, ranks = len(newest["jobs"]) + len(watch["jobs"]), 4 * 16 + 2
    lost = sum(f["lost_gpu_seconds"] for f in newest["findings"]) + sum(f["cost"] for f in watch["findings"])
    assert (page.counts.jobs, len(page.jobs), overview.num_jobs) == (jobs, jobs, jobs)
    assert page.counts.ranks == sum(row.num_ranks or 0 for row in page.jobs) == ranks
    assert (page.counts.hosts, len(page.hosts)) == (64 + 1, 65)
    assert (page.counts.open_findings, len(page.findings), overview.num_findings) == (3, 3, 3)
    assert (
        page.counts.lost_gpu_seconds
        == pytest.approx(lost)
        == pytest.approx(sum(row.lost_gpu_seconds for row in page.jobs))
    )
    assert page.counts.suspects == sum(row.state != "ok" for row in page.hosts) == 3
    metrics = render_metrics(look(tmp_path).snapshot, KeptIncidents(AlertConfig(), None))
    told = sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("prism_serve_findings{"))
    assert told == 3
    assert "{job=" not in metrics and ",job=" not in metrics, "Prometheus would rename a label called job"


def test_files_that_are_not_looked_at_are_reported(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("")
    library = Library(Folder(tmp_path, ScanLimits(files=3)))
    overview = describe_overview(library.refresh(), "out")
    assert overview.files_left_out and overview.num_files == 3
    assert not describe_overview(look(tmp_path).snapshot, "out").files_left_out


PRINTED = {
    "investigation": {"verdict": {"what": "rank 3 hung", "culprits": [{"type": "rank", "id": "3"}], "since_ns": None,
                                  "confidence": 0.9, "alternatives": [], "next": "look"},
                      "evidence": [{"source": "flight recorder", "text": "rank 3 is behind"}], "notes": []},
    "comparison": {"difference_ms": 2.0, "expected_ms": 10.0, "observed_ms": 12.0, "noise_ms": 0.1, "is_noise": False,
                   "parts": [{"kind": "compute", "rank": 3, "step": None, "ms": 2.0}]},
    "prediction": {"at_ns": EPOCH_NS, "horizon_days": 90.0, "risks": [{"id": "gpu-1", "risk": 0.2, "reasons": []}] * 300,
                   "calibration": {"method": "trees", "past_auc": 0.8, "expected_events": 3.0}, "notes": []},
    "goodput": {"gpu_hours": 12.0, "goodput": 0.9, "by_run": [], "by_week": [], "by_cause": []},
}  # fmt: skip


def test_printed_documents_are_found_by_their_schema_whatever_their_name(tmp_path: Path) -> None:
    for kind, document in PRINTED.items():
        (tmp_path / f"my-{kind}.json").write_text(json.dumps({"schema": f"prism.{kind}/1", **document}))
    (tmp_path / "settings.json").write_text('{"schema": "prism.other/1"}')
    (tmp_path / "torn.json").write_text('{"schema": "prism.goodput/1", "gpu_hours":')
    library = look(tmp_path)
    rows = {row.kind: row for row in describe_reports(library.snapshot).reports}
    assert rows.keys() == PRINTED.keys() and rows["goodput"].line == "90.0% of 12 GPU-hours trained"
    assert [state.path for state in library.snapshot.states] == ["torn.json"]
    risks = describe_report(library.snapshot, "my-prediction.json")
    assert risks is not None and len(risks.document["risks"]) == 200 and risks.risks_left_out == 100
    assert describe_report(library.snapshot, "../my-prediction.json") is None


def test_a_run_leads_to_the_investigations_of_its_attempts(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    document = json.dumps({"schema": "prism.investigation/1", **PRINTED["investigation"]})
    (attempt_dir(tmp_path / "run", 1) / "investigation.json").write_text(document)
    (tmp_path / "elsewhere.json").write_text(document)
    snapshot = look(tmp_path).snapshot
    found = describe_run(snapshot, "run~run")
    assert found is not None
    assert [(i.attempt, i.line) for i in found.investigations] == [(1, "rank 3 hung: rank 3")]
    assert describe_report(snapshot, found.investigations[0].path) is not None


def test_a_supervisor_that_was_killed_is_not_shown_at_work(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    supervisor = subprocess.Popen(["sleep", "600"])
    try:
        (tmp_path / "run" / "lock").write_text(f"process {supervisor.pid} on {os.uname().nodename}\n")
        library = Library(Folder(tmp_path))
        assert library.refresh().all_of(Supervised)[0].supervised
        before = library.snapshot.version
    finally:
        supervisor.kill()
        supervisor.wait()
    assert not library.refresh().all_of(Supervised)[0].supervised, "no file changed, and it is gone all the same"
    assert library.snapshot.version > before


def test_the_ranks_of_a_stage_are_those_that_the_finding_counts_where_a_host_holds_several(tmp_path: Path) -> None:
    job = job_document(1, ranks=4)
    stages = {name: i for i, name in enumerate(job["endpoints"])}
    counted = {name: i // 2 for name, i in stages.items()}
    found = finding("job-1", ("stage", "1"), kind="stage_imbalance")
    write_diagnosis(tmp_path, [{**job, "stages": stages, "finding_stages": counted}], [found])
    page = describe_job(look(tmp_path).snapshot, ".~job-1")
    assert page is not None
    assert [marked.ranks for marked in page.findings] == [(2, 3)]
    assert [rank.stage for rank in page.ranks] == [0, 1, 2, 3]
