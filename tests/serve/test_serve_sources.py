"""What other commands wrote is found, read, and read again when it grows; broken files are reported and never fatal."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_folder import decide, make_evaluation, make_run, make_watch, write_progress

from prism.recover.progress import Progress, RunOrders
from prism.recover.supervise.clock import ClockMark
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.events import Exited, StepDone, Tick
from prism.recover.supervise.journal import Journal, Snapshot
from prism.recover.supervise.state import JobState
from prism.serve.folder import Folder
from prism.serve.library import Library
from prism.serve.sources.diagnosed import Diagnosed
from prism.serve.sources.evaluated import Evaluated
from prism.serve.sources.supervised import Supervised
from prism.serve.sources.verdicts import find_log
from prism.serve.views.cluster import describe_cluster
from prism.serve.views.evaluation import describe_evaluation
from prism.serve.views.failures import describe_failures, describe_verdict, list_verdicts
from prism.serve.views.job import describe_job
from prism.serve.views.jobs import list_jobs
from prism.serve.views.looks import find_now
from prism.serve.views.runs import describe_run


@pytest.fixture(scope="module")
def library(served: Path) -> Library:
    found = Library(Folder(served))
    found.refresh()
    return found


def test_every_kind_of_output_is_found(library: Library) -> None:
    kinds = {type(source).__name__ for source in library.snapshot.sources}
    assert kinds == {
        "Diagnosed", "Watched", "ToldFindings", "Supervised", "VerdictFile", "Evaluated", "Predicted", "Characterized"
    }  # fmt: skip
    assert library.snapshot.problems == ()


def test_a_diagnosed_job_has_its_layout_steps_and_findings(library: Library) -> None:
    job = describe_job(library.snapshot, "report~job-1")
    assert job is not None
    [source] = library.snapshot.all_of(Diagnosed)
    assert job.job.num_ranks == len(source.jobs[0].endpoints) == 64
    assert len(job.steps) == job.job.num_steps > 3
    assert job.steps[0].from_ns == 0, "times count from the first step"
    assert [marked.finding.kind for marked in job.findings] == ["slow_compute"]
    [marked] = job.findings
    blamed = {name for rank in job.ranks if rank.rank in marked.ranks for name in (rank.host, rank.endpoint)}
    assert marked.ranks and set(marked.finding.culprit.split(",")) <= blamed, "the ranks of the culprit are marked"


def test_a_scenario_of_the_same_endpoints_is_suggested_as_expected(library: Library) -> None:
    job = describe_job(library.snapshot, "report~job-1")
    assert job is not None
    suggested = [row for row in job.expected if row.suggested]
    assert [row.aligned for row in suggested] == ["clock"]
    assert {row.kind for row in job.expected} == {"scenario", "emulation"}


def test_the_cluster_shows_blamed_and_cordoned_hosts_and_loads(library: Library) -> None:
    page = describe_cluster(library.snapshot)
    assert {row.state for row in page.hosts} >= {"ok", "blamed"}
    blamed = [row for row in page.hosts if row.state == "blamed"]
    assert all(row.why for row in blamed) and len(page.hosts) >= 8
    if page.hot_links:  # written by `prism diagnose --output`
        assert page.top_gbps == max(link.peak_gbps for link in page.hot_links) > 0
        assert all(link.mean_gbps <= link.peak_gbps for link in page.hot_links)


def test_switches_used_by_two_tenants_are_shared(tmp_path: Path) -> None:
    job = {"hosts": ["a"], "layout": {"dp": 1}, "groups": [], "stages": {}, "steps": [], "pairs": []}
    jobs = [{**job, "id": f"job-{i}", "endpoints": [f"10.0.0.{i}"]} for i in (1, 2)]
    (tmp_path / "diagnosis.json").write_text(json.dumps({"schema": "prism.diagnosis/1", "jobs": jobs, "findings": []}))
    (tmp_path / "topology.csv").write_text("address,host,rail,switch\n10.0.0.1,a,0,leaf-0\n10.0.0.2,b,0,leaf-0\n")
    link = {"address": ["10.0.0.1"], "host": ["a"], "switch": ["leaf-0"], "start_ns": [0], "end_ns": [10**9],
            "bytes_out": [10**9], "bytes_in": [0], "jobs": [["job-1", "job-2"]]}  # fmt: skip
    pl.DataFrame(link).write_parquet(tmp_path / "links.parquet")
    page = describe_cluster(Library(Folder(tmp_path)).refresh())
    assert [(row.type, row.id, row.jobs) for row in page.shared] == [
        ("link", "10.0.0.1", ("job-1", "job-2")),
        ("switch", "leaf-0", ("job-1", "job-2")),
    ]
    assert page.hot_links[0].peak_gbps == 8.0, "a gigabyte in a second is 8 Gb/s"


def test_a_watch_shows_the_evidence_that_it_printed(library: Library) -> None:
    [finding] = [row for row in find_now(library.snapshot).findings if row.place == "watch"]
    assert finding.evidence.startswith("half as fast")
    [job] = [row for row in list_jobs(library.snapshot) if row.source == "watched"]
    assert (job.step_s, job.health) == (1.5, "degraded")


def test_a_run_is_shown_as_a_story_with_marks_on_the_loss(library: Library) -> None:
    run = describe_run(library.snapshot, "runs/pretrain~run")
    assert run is not None
    assert [chapter.tone for chapter in run.story] == ["good", "bad", "warning", "warning", "bad"]
    assert "NVLinkError" in run.story[2].title and "take node-2 out of use" in run.story[2].details[0]
    kinds = {mark.kind for mark in run.marks}
    assert kinds == {"saved", "restored", "failure", "rollback"}
    [rollback] = [mark for mark in run.marks if mark.kind == "rollback"]
    assert rollback.step == 80
    assert {point.attempt for point in run.losses} == {1, 2, 3}


def test_a_host_that_was_cordoned_has_its_history(library: Library) -> None:
    page = describe_failures(library.snapshot)
    host = next(row for row in page.hosts if row.host == "node-2")
    assert host.cordoned and host.num_cordons == 1 and host.num_failures == 1
    assert any("NVLinkError" in reason for reason in host.reasons)


def test_evidence_is_shown_among_the_lines_around_it(library: Library) -> None:
    for id, _, _, verdict in list_verdicts(library.snapshot):
        document = describe_verdict(library.snapshot, library.folder, id)
        assert document is not None
        for context in document.context:
            assert context.file, f"{verdict.log} lies in the folder"
            cited = [line for line in context.lines if line.cited]
            assert {line.line for line in cited} <= {line.line for line in verdict.evidence}
            assert len(context.lines) > len(cited), "lines around the evidence are there"


def test_a_log_outside_the_folder_is_not_looked_for(library: Library) -> None:
    assert find_log(library.folder, "/etc/passwd", None, ".") is None
    assert find_log(library.folder, "../../etc/passwd", None, "failures") is None
    assert find_log(library.folder, "/etc", "passwd", ".") is None


def test_secrets_in_a_log_are_masked(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("token=hf_abcdefghijklmnopqrstuv\nKeyError: 'x'\n")
    verdict = {"log": "a.log", "reason": "KeyError", "category": "script", "action": "stop", "confidence": 0.9,
               "evidence": [{"line": 2, "text": "KeyError: 'x'"}]}  # fmt: skip
    (tmp_path / "verdicts.jsonl").write_text(json.dumps(verdict) + "\n")
    library = Library(Folder(tmp_path))
    document = describe_verdict(library.refresh(), library.folder, "verdicts.jsonl~1")
    assert document is not None
    assert "hf_" not in "".join(line.text for line in document.context[0].lines)


def test_a_run_written_by_the_real_supervisor_is_read(tmp_path: Path) -> None:
    state = JobState(config=SuperviseConfig())
    journal = Journal(tmp_path)
    for event in (Tick(now_s=0.0), StepDone(now_s=1.0, step=1, loss=2.0), Exited(now_s=2.0, code=1)):
        actions = state.handle(event)
        journal.commit(
            Snapshot(
                state=state, pending=actions, clock=ClockMark(run_s=0, boot_id="", boot_s=0, wall_s=0), read_bytes=0
            )
        )
        journal.tell(event, actions)
    progress = Progress(0, RunOrders(run_dir=tmp_path, attempt=1))
    for step in (1, 2, 3):
        progress.step(step, loss=float("nan") if step == 3 else 2.0 / step)
    progress.event("saved", step=2, healthy=True)
    [run] = Library(Folder(tmp_path)).refresh().all_of(Supervised)
    document = describe_run(Library(Folder(tmp_path)).refresh(), ".~run")
    assert document is not None
    assert run.phase == "explaining" and run.supervised, "this process holds the lock"
    assert [point.loss for point in document.losses] == [2.0, 1.0, None], "a loss that is no number is null"
    assert [mark.kind for mark in document.marks if mark.step == 2] == ["saved"]
    journal.close()


def test_growing_files_bring_a_new_version_and_only_what_is_new_is_read(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    library = Library(Folder(tmp_path))
    first = library.refresh()
    assert library.refresh() is first, "nothing changed, so nothing is new"
    report = {"kind": "step", "time": 0.0, "step": 161, "loss": 1.0}
    path = tmp_path / "run" / "attempts" / "0003" / "steps.jsonl"
    with path.open("a") as handle:
        handle.write(json.dumps(report)[:10])  # half a line
    half = library.refresh()
    with path.open("a") as handle:
        handle.write(json.dumps(report)[10:] + "\n")
    whole = library.refresh()
    counts = [len(snapshot.all_of(Supervised)[0].reports) for snapshot in (first, half, whole)]
    assert counts == [counts[0], counts[0], counts[0] + 1]
    assert whole.version > half.version > first.version


def test_an_evaluation_that_goes_on_is_followed(tmp_path: Path) -> None:
    make_evaluation(tmp_path / "evaluation", checkpoints=2)
    library = Library(Folder(tmp_path))
    before = describe_evaluation(library.refresh(), "evaluation~trials")
    time.sleep(0.01)
    write_progress(tmp_path / "evaluation", done=55)
    after = describe_evaluation(library.refresh(), "evaluation~trials")
    assert before is not None and after is not None
    assert (before.progress.done, after.progress.done) == (42, 55)
    assert before.num_workers == 12
    assert [phase.phase for phase in before.phases] == ["infer", "score", "load"]


def test_progress_in_the_words_of_the_scheduler_is_read(tmp_path: Path) -> None:
    document = {"schema": "prism.evaluation-progress/1", "state": "running", "samples": 100, "scored": 40, "failed": 2,
                "trials_done": 4, "trials_running": 2, "scores_waiting": 1, "gpus": 8, "gpus_busy": 6, "time_left_s": 9.5}  # fmt: skip
    (tmp_path / "progress.json").write_text(json.dumps(document))
    line = {"trial": None, "checkpoint": "c", "step": 1, "dataset": None, "node": "n", "worker": 3, "phase": "load",
            "start_ns": 1, "end_ns": 2, "state": "done", "attempt": 1, "text": ""}  # fmt: skip
    (tmp_path / "trials.jsonl").write_text(json.dumps(line) + "\n")
    [found] = Library(Folder(tmp_path)).refresh().all_of(Evaluated)
    assert (found.progress.done, found.progress.running, found.progress.waiting, found.progress.failed) == (4, 2, 1, 2)
    assert (found.progress.samples, found.progress.scored) == (100, 40)
    assert found.phases["worker"].to_list() == ["3"]


def test_scores_show_their_change_from_checkpoint_to_checkpoint(library: Library) -> None:
    document = describe_evaluation(library.snapshot, "evaluation~trials")
    assert document is not None
    own = [score for score in document.scores if score.dataset == "mmlu"]
    assert own[0].change is None
    assert own[1].change == pytest.approx(own[1].value - own[0].value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("diagnosis.json", "{"),
        ("diagnosis.json", "[]"),
        ("diagnosis.json", '{"jobs": [{"id": 1}], "findings": []}'),
        ("diagnosis.json", '{"jobs": 3, "findings": []}'),
        ("state.json", '{"schema": "prism.supervise/1"}'),
        ("state.json", '{"schema": "prism.supervise/1", "state": {"book": 3}}'),
        ("state.json", '{"schema": "prism.watch-state/1", "jobs": [], "findings": []}'),
        ("results.json", '{"schema": "prism.evaluation/1", "results": 7}'),
        ("report.json", '{"schema": "prism.characterization/1", "clusters": [1]}'),
    ],
)
def test_a_broken_file_is_reported_in_one_line_and_the_rest_is_served(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / name).write_text(text)
    make_watch(tmp_path / "watch")
    snapshot = Library(Folder(tmp_path)).refresh()
    [problem] = snapshot.problems
    assert problem.message.startswith(f"broken/{name}: ") and "\n" not in problem.message
    assert [row.place for row in list_jobs(snapshot)] == ["watch"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["jobs", "findings", "state", "schema", "id", "steps", "book", "records", "log", "reason", "clusters"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
FILES = st.sampled_from(
    ["diagnosis.json", "state.json", "results.json", "progress.json", "report.json", "emulation.json", "truth.json",
     "verdicts.jsonl", "trials.jsonl", "leaderboard.csv", "links.parquet", "topology.csv", "decisions.jsonl", "lock"]
)  # fmt: skip


@settings(max_examples=150)
@given(files=st.dictionaries(FILES, st.binary(max_size=40) | json_values.map(lambda v: json.dumps(v).encode()), min_size=1, max_size=4),
       schema=st.sampled_from(["prism.supervise/1", "prism.watch-state/1", "prism.evaluation/1", "prism.characterization/1", ""]))  # fmt: skip
def test_no_file_whatever_it_holds_ends_the_service(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], schema: str
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    for name, data in files.items():
        with contextlib.suppress(ValueError, TypeError):
            data = json.dumps({**json.loads(data), "schema": schema}).encode()
        (folder / name).write_bytes(data)
    (folder / "timeline.parquet").write_bytes(b"PAR1")
    (folder / "spans.parquet").write_bytes(b"")
    library = Library(Folder(folder))
    snapshot = library.refresh()
    describe_cluster(snapshot)
    describe_failures(snapshot)
    for row in list_jobs(snapshot):
        assert describe_job(snapshot, row.key) is not None
    for id, *_ in list_verdicts(snapshot):
        assert describe_verdict(snapshot, library.folder, id) is not None


def test_decisions_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    make_run(tmp_path)
    with (tmp_path / "decisions.jsonl").open("a") as handle:
        handle.write("not json\n" + json.dumps(decide(1, {"kind": "Later"}, [{"action": "New"}])) + '\n{"time":')
    document = describe_run(Library(Folder(tmp_path)).refresh(), ".~run")
    assert document is not None
    assert document.story[-1].title == "Later", "a word of a later version is shown as it is"
