"""The run folder, its clock, the progress files, and the settings file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadConfigError, BadFileError, InputError
from prism.recover.progress import BatchRange, Progress, RunOrders, attempt_dir, next_batch, parse_ranges
from prism.recover.supervise import clock as clock_module
from prism.recover.supervise import events
from prism.recover.supervise.actions import KINDS, Cordon, Explain, Kill, Launch, Notify
from prism.recover.supervise.clock import ClockMark, RunClock
from prism.recover.supervise.config import SuperviseConfig, read_config
from prism.recover.supervise.hosts import HostPolicy
from prism.recover.supervise.journal import STATE_FILE, Journal, RunBusyError, Snapshot, describe, read_snapshot
from prism.recover.supervise.losses import LossPolicy, LossWatch
from prism.recover.supervise.state import JobState
from prism.recover.supervise.watch import Watch, find_frozen_host, parse_report

# -- journal


def busy_state() -> JobState:
    job = JobState(config=SuperviseConfig(hosts=HostPolicy(hosts=("a", "b", "c"), num_hosts=2)))
    job.handle(events.Tick(now_s=0.0))
    for step in range(1, 30):
        job.handle(events.StepDone(now_s=step, step=step, loss=1.0 / step, batch=step, trainer_s=step))
    job.handle(events.Saved(now_s=30.0, step=20))
    job.book.cordon("a", 30.0, "test", job.config.hosts)
    job.skip.append(BatchRange(first=3, last=4))
    job.handle(events.Exited(now_s=31.0, code=1, host="b"))
    return job


def test_a_state_survives_being_written_and_read(tmp_path: Path):
    job = busy_state()
    pending = [
        Launch(attempt=2, hosts=("b",), num_hosts=1, skip=(BatchRange(first=1, last=2),)),
        Notify(level="info", text="x"),
    ]
    journal = Journal(tmp_path)
    journal.commit(Snapshot(state=job, pending=pending, clock=RunClock().mark(), read_bytes=7))
    found = journal.load(job.config)
    assert found.state == job and found.pending == pending and found.read_bytes == 7
    journal.close()


def test_a_state_of_an_older_or_a_newer_version_is_read_as_far_as_it_is_known(tmp_path: Path):
    job = busy_state()
    journal = Journal(tmp_path)
    journal.commit(Snapshot(state=job, pending=[], clock=RunClock().mark(), read_bytes=7))
    document = json.loads((tmp_path / STATE_FILE).read_text())
    del document["state"]["command"], document["state"]["losses"]["levels"]
    document["state"]["added"] = document["state"]["losses"]["added"] = {"later": 1}
    (tmp_path / STATE_FILE).write_text(json.dumps(document))
    job.losses.levels = []
    assert journal.load(job.config).state == job
    journal.close()


def test_a_second_supervisor_of_one_run_is_refused(tmp_path: Path):
    first = Journal(tmp_path)
    with pytest.raises(RunBusyError, match="already supervised by process"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": "prism.supervise/9"}',
        '{"schema": "prism.supervise/1"}',
        '{"schema": "prism.supervise/1", "state": {"nonsense": 1}, "pending": [], "clock": {}, "read_bytes": 0}',
    ],
)
def test_a_state_that_cannot_be_read_is_reported_in_one_line(tmp_path: Path, text: str):
    (tmp_path / STATE_FILE).write_text(text)
    journal = Journal(tmp_path)
    with pytest.raises(BadFileError):
        journal.load(SuperviseConfig())
    journal.close()


def test_a_file_is_no_run(tmp_path: Path):
    (tmp_path / "run.txt").write_text("x")
    assert read_snapshot(tmp_path / "run.txt", SuperviseConfig()) is None


def test_a_run_folder_that_cannot_be_made_is_reported_in_one_line():
    with pytest.raises(BadFileError, match="run folder"):
        Journal(Path("/proc/prism-run"))


def test_every_decision_reads_as_a_line_for_people(tmp_path: Path):
    journal = Journal(tmp_path)
    journal.tell(events.Tick(now_s=1.0), [Cordon(host="n1", reason="ECCError", hours=2.0)])
    assert (tmp_path / "decisions.log").read_text().rstrip().endswith("cordon   n1 for 2 h: ECCError")
    assert json.loads((tmp_path / "decisions.jsonl").read_text())["actions"][0]["host"] == "n1"
    journal.close()


def test_every_action_has_a_line():
    samples = {"attempt": 1, "hosts": ("a",), "num_hosts": 1, "grace_s": 1.0, "host": "a", "reason": "r", "hours": 2.0,
               "folder": "/c", "step": 3, "level": "info", "text": "t", "outcome": "done", "judgement": "spike"}  # fmt: skip
    for kind in KINDS.values():
        names = [n for n in kind.__dataclass_fields__ if n in samples]
        line = describe(kind(**{n: samples[n] for n in names}))
        assert line and "\n" not in line


def test_clearing_what_an_ended_attempt_left_does_not_read_as_the_killing_of_a_job():
    assert describe(Kill(attempt=2, grace_s=0.0)) == "clear    what is left of attempt 2"
    assert describe(Kill(attempt=2, grace_s=60.0)) == "end      attempt 2, 60 s to save"
    assert describe(Explain(attempt=1, code=-9)) == "explain  attempt 1, which ended with exit code -9"


# -- clock


def test_a_jump_of_the_wall_clock_does_not_move_the_run_clock(monkeypatch: pytest.MonkeyPatch):
    clock = RunClock()
    before = clock.now_s()
    monkeypatch.setattr(clock_module.time, "time", lambda: 4e9)
    assert clock.now_s() - before < 1.0


def test_time_goes_on_while_no_supervisor_runs():
    mark = RunClock().mark()
    earlier = ClockMark(run_s=100.0, boot_id=mark.boot_id, boot_s=mark.boot_s - 50.0, wall_s=0.0)
    assert RunClock(earlier).now_s() == pytest.approx(150.0, abs=1.0)


def test_after_a_reboot_a_wall_clock_set_back_does_not_turn_the_run_clock_back():
    mark = ClockMark(run_s=100.0, boot_id="another", boot_s=9e9, wall_s=time.time() + 1e6)
    assert RunClock(mark).now_s() == pytest.approx(100.0, abs=1.0)


# -- progress


def test_reports_become_events(tmp_path: Path):
    progress = Progress(0, RunOrders(run_dir=tmp_path))
    progress.step(1, loss=0.5, batch=3)
    progress.step(2, loss=float("nan"), grad_norm=float("inf"))
    progress.event("saved", step=2, healthy=False)
    watch = Watch(attempt_dir(tmp_path, 1))
    first, second, third = watch.poll(9.0)
    assert (first.step, first.loss, first.batch) == (1, 0.5, 3) and first.trainer_s is not None
    assert second.loss != second.loss and second.grad_norm == float("inf")
    assert third == events.Saved(now_s=9.0, step=2, healthy=False)
    assert list(watch.poll(9.0)) == []


def test_a_line_still_being_written_waits_for_its_end(tmp_path: Path):
    folder = attempt_dir(tmp_path, 1)
    folder.mkdir(parents=True)
    path = folder / "steps.jsonl"
    path.write_text('{"kind": "step", "st')
    watch = Watch(folder)
    assert list(watch.poll(0.0)) == []
    path.write_text('{"kind": "step", "step": 4}\n')
    assert [e.step for e in watch.poll(0.0)] == [4]


def test_what_counts_as_read_is_what_was_handed_out(tmp_path: Path):
    progress = Progress(0, RunOrders(run_dir=tmp_path))
    for step in (1, 2, 3):
        progress.step(step)
    folder = attempt_dir(tmp_path, 1)
    watch = Watch(folder)
    assert next(watch.poll(0.0)).step == 1
    assert [e.step for e in Watch(folder, watch.read_bytes).poll(0.0)] == [2, 3]


def test_only_rank_zero_reports_steps_but_every_rank_beats(tmp_path: Path):
    Progress(3, RunOrders(run_dir=tmp_path)).step(7, loss=1.0)
    folder = attempt_dir(tmp_path, 1)
    assert not (folder / "steps.jsonl").exists()
    assert json.loads((folder / "beat-00003.json").read_text())["step"] == 7


def beat(folder: Path, rank: int, host: str, age_s: float) -> None:
    Progress(rank, RunOrders(run_dir=folder, host=host)).step(5)
    path = attempt_dir(folder, 1) / f"beat-{rank:05d}.json"
    os.utime(path, (1e9 - age_s, 1e9 - age_s))  # any clock: only differences count


def test_the_host_whose_heartbeat_stopped_first_is_where_a_hang_began(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Progress, "_beat_on", lambda self: None)
    for rank, (host, age_s) in enumerate([("a", 0.0), ("b", 1.0), ("c", 60.0), ("d", 30.0)]):
        beat(tmp_path, rank, host, age_s)
    assert find_frozen_host(attempt_dir(tmp_path, 1)) == "c"


def test_where_all_hearts_beat_or_none_does_no_host_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Progress, "_beat_on", lambda self: None)
    assert find_frozen_host(attempt_dir(tmp_path, 1)) is None
    for rank in range(3):
        beat(tmp_path, rank, f"h{rank}", rank * 1.5)
    assert find_frozen_host(attempt_dir(tmp_path, 1)) is None


def test_a_heart_beats_on_while_its_rank_waits_for_others(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("prism.recover.progress.BEAT_INTERVAL_S", 0.02)
    Progress(3, RunOrders(run_dir=tmp_path)).step(7)
    path = attempt_dir(tmp_path, 1) / "beat-00003.json"
    before = path.stat().st_mtime_ns
    deadline = time.monotonic() + 600
    while path.stat().st_mtime_ns == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_outside_a_supervised_run_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRISM_RUN_DIR", raising=False)
    Progress.from_environment(0).step(1, loss=1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_under_the_reports_does_not_stop_training(tmp_path: Path):
    progress = Progress(0, RunOrders(run_dir=tmp_path))
    (attempt_dir(tmp_path, 1) / "steps.jsonl").mkdir()  # every write to it fails
    progress.step(1, loss=1.0)


def test_a_log_with_step_lines_is_enough_where_there_are_no_reports(tmp_path: Path):
    folder = attempt_dir(tmp_path, 1)
    folder.mkdir(parents=True)
    (folder / "a.log").write_text(
        "loading\nstep 10/500 | lr 1e-4 | loss: 2.5\n[iteration 11] loss nan\nstep 11 again\n"
    )
    found = [e for e in Watch(folder).poll(0.0) if isinstance(e, events.StepDone)]
    assert [(e.step, e.loss if e.loss == e.loss else "nan") for e in found] == [(10, 2.5), (11, "nan")]


@given(st.binary(max_size=300))
def test_no_report_is_so_odd_that_it_breaks_the_supervisor(line: bytes):
    assert parse_report(line, 0.0) is None or isinstance(parse_report(line, 0.0), events.Event)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 20)), max_size=5), st.integers(0, 120))
def test_the_next_batch_is_the_first_one_that_is_not_left_out(pairs, batch):
    ranges = tuple(BatchRange(first=a, last=a + n) for a, n in pairs)
    out = {b for r in ranges for b in range(r.first, r.last + 1)}
    expected = next(b for b in range(batch, 1_000) if b not in out)
    assert next_batch(batch, ranges) == expected


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 20)), max_size=5), st.integers(1, 9))
def test_orders_read_back_from_the_environment(pairs, attempt):
    skip = tuple(BatchRange(first=a, last=a + n) for a, n in pairs)
    orders = RunOrders(
        run_dir=Path("/r"), attempt=attempt, resume_step=5, skip=skip, host="h", num_failures=2, uptime_s=3.5
    )
    assert RunOrders.from_environment(orders.to_environment()) == orders
    assert parse_ranges(",".join(map(str, skip))) == skip


# -- losses


@given(st.lists(st.floats(0.9, 1.1), min_size=20, max_size=80))
def test_ordinary_noise_is_never_a_spike(losses):
    watch = LossWatch()
    assert all(watch.add(i, i, loss, LossPolicy()) is None for i, loss in enumerate(losses))


CONVERGED = (  # millionths: losses of a small regression, after 2,394 steps of a run that nothing was done to
    9.9,
    3,
    9.5,
    7.5,
    1.5,
    0.3,
    1,
    0.5,
    3.3,
    2.2,
    4.5,
    5,
    6.5,
    9.9,
    17.9,
    15.6,
    10.9,
    4.3,
    3.9,
    2.2,
    3,
    5.4,
    10.4,
    6.8,
    3.8,
    16.8,
    6.4,
    10.3,
    4,
    5.5,
    6.2,
    7.5,
    38.5,
    6.8,
    6.9,
    17.5,
    3,
    10.7,
    1.8,
    7.3,
    8.1,
    2.4,
    6.7,
    27.1,
    2.9,
    10.1,
    7.5,
    44.6,
    63.8,
    19.9,
    31.6,
    8.3,
    10.6,
    69.5,
    5.2,
    46.7,
    22.2,
    70.4,
    17.1,
    36.1,
    95.6,
    13.3,
    33.1,
    125.2,
    57.1,
    43.2,
    85.2,
    11.5,
    91,
    53.1,
    56.1,
    31.9,
    34.7,
    24.2,
)


def test_the_losses_of_a_run_that_has_converged_are_no_spike():
    watch = LossWatch()
    assert all(watch.add(i, i, 1e-6 * loss, LossPolicy()) is None for i, loss in enumerate(CONVERGED))


@given(st.lists(st.floats(2.0, 2.2), min_size=20, max_size=80), st.floats(3.6, 1e30))
def test_a_loss_far_above_its_noise_is_a_spike_at_the_third_step(losses, raised):
    watch = LossWatch()
    assert all(watch.add(i, i, loss, LossPolicy()) is None for i, loss in enumerate(losses))
    found = [watch.add(100 + i, 100 + i, raised, LossPolicy()) for i in range(3)]
    assert found[:2] == [None, None] and found[2] is not None and found[2].first_step == 100


def test_a_falling_loss_is_no_spike():
    watch = LossWatch()
    assert all(watch.add(i, i, 10.0 / (i + 1), LossPolicy()) is None for i in range(200))


# -- settings


def test_settings_are_read_from_sections(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "poll_s: 1\nhosts: {hosts: [a, b], num_hosts: 1}\nrestarts: {max_restarts: 3}\nact_on: [spike]\nlaunch: {addresses: {a: 10.0.0.1}}\n"
    )
    config = read_config(path)
    assert config.hosts.hosts == ("a", "b") and config.poll_s == 1.0
    assert config.restarts.max_restarts == 3 and config.act_on == ("spike",)
    assert config.launch.addresses.named == {"a": "10.0.0.1"}


def test_a_file_of_comments_leaves_every_default(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("# poll_s: 1\n\n")
    assert read_config(tmp_path / "run.yaml") == SuperviseConfig()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pol_s: 1", "'pol_s' is not a key here, did you mean 'poll_s'"),
        ("poll_s: fast", "'poll_s' is 'fast', expected a number"),
        ("hosts: [a]", "'hosts' is a list, expected keys and values"),
        ("hosts: {hosts: [a], num_hosts: 3}", "only 1 hosts are named"),
        ("hosts: {hosts: [a, a]}", "names a host twice"),
        ("poll_s: 0", "'poll_s' is 0.0, expected 0.01 to"),
        ("restarts: {max_restarts: many}", "'restarts.max_restarts' is 'many', expected a whole number"),
        ("act_on: [spikes]", "'act_on' names 'spikes', did you mean 'spike'"),
        ("examine: {backend: mpi}", "expected one of socket, gloo, nccl"),
        ("launch: {addresses: here}", "'launch.addresses' is 'here', expected hosts and addresses"),
        ("just words", "expected keys such as"),
        ("a: [", "not YAML"),
    ],
)
def test_a_wrong_setting_is_reported_with_its_place(tmp_path: Path, text: str, said: str):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises((BadConfigError, BadFileError), match=said):
        read_config(path)


@given(st.text(max_size=80))
def test_no_settings_file_is_so_odd_that_it_is_not_told_in_a_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("s") / "run.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        read_config(path)
    except InputError as error:
        assert "\n" not in str(error)


# -- documentation


def test_the_settings_shown_in_the_guide_are_real(tmp_path: Path):
    guide = (Path(__file__).parents[2] / "docs" / "recover.md").read_text()
    block = guide.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "run.yaml").write_text(block)
    assert read_config(tmp_path / "run.yaml").hosts.num_hosts == 2
