"""The supervisor on real commands that need no torch, and its runner on a fake launcher."""

from __future__ import annotations

import errno
import http.server
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import typer
from fake_launcher import FakeLauncher
from typer.testing import CliRunner

from prism.cli import isolate as isolate_command
from prism.cli import supervise as supervise_command
from prism.errors import PrismError
from prism.records.verdict import Verdict
from prism.recover.progress import Progress, RunOrders, attempt_dir
from prism.recover.supervise import SuperviseConfig, read_status
from prism.recover.supervise.actions import Launch
from prism.recover.supervise.clock import RunClock
from prism.recover.supervise.journal import Journal, Snapshot, read_snapshot
from prism.recover.supervise.launchers.processes import find_marked
from prism.recover.supervise.runner import Supervisor, Tools
from prism.recover.supervise.state import JobState, Phase

QUICK = SuperviseConfig(poll_s=0.05)
TRAINER = """
import os, sys, time
from prism.recover.progress import Progress
progress = Progress.from_environment(0)
first = progress.orders.attempt == 1
for step in range(1, 21):
    progress.step(step, loss=1.0 / step)
    print(f"step {step} loss {1.0 / step:.4f}", flush=True)
    time.sleep(0.02)
    if first and step == 10:
        FAULT
"""

app = typer.Typer()
app.add_typer(supervise_command.app, name="supervise")
app.command("isolate", epilog=isolate_command.EPILOG)(isolate_command.isolate)


def unknown(folder: Path, code: int | None) -> Verdict:
    return Verdict(log=str(folder), reason="Unknown", category="unknown", action="restart", confidence=0.0)


def run_command(tmp_path: Path, *command: str, options: tuple[str, ...] = ()):
    (tmp_path / "config.yaml").write_text("poll_s: 0.05\nrestarts: {backoff_s: 0.1}\n")
    words = ["supervise", "--run-dir", str(tmp_path / "run"), "--config", str(tmp_path / "config.yaml"), *options]
    return CliRunner().invoke(app, [*words, "--", *command])


def trainer(tmp_path: Path, fault: str) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(TRAINER.replace("FAULT", fault))
    return [sys.executable, str(path)]


def test_a_job_that_dies_once_is_restarted_and_finishes(tmp_path: Path):
    result = run_command(tmp_path, *trainer(tmp_path, "os.kill(os.getpid(), 9)"), options=("--json",))
    assert result.exit_code == 0, result.output
    status = json.loads(result.stdout)
    assert status["outcome"] == "done" and status["attempt"] == 2 and status["num_failures"] == 1


def test_a_bug_of_the_user_is_stopped_and_named(tmp_path: Path):
    result = run_command(tmp_path, *trainer(tmp_path, "1 + 'x'"), options=("--act-on", "bug"))
    assert result.exit_code == 1
    status = read_status(tmp_path / "run")
    assert status.attempt == 1 and "TypeError" in status.outcome_text


def test_by_default_an_error_that_comes_once_costs_a_restart_and_is_shown(tmp_path: Path):
    assert run_command(tmp_path, *trainer(tmp_path, "1 + 'x'")).exit_code == 0
    status = read_status(tmp_path / "run")
    assert status.attempt == 2 and "TypeError" in status.shadows[0] and "--act-on bug" in status.shadows[0]


def test_a_command_that_ends_well_is_done_whatever_it_printed(tmp_path: Path):
    result = run_command(tmp_path, "true")
    assert result.exit_code == 0
    assert "reported no steps" in read_status(tmp_path / "run").outcome_text


def test_a_failed_run_exits_with_one_or_on_request_with_the_code_of_its_command(tmp_path: Path):
    assert run_command(tmp_path, "sh", "-c", "exit 7").exit_code == 1
    assert read_status(tmp_path / "run").attempt == 6
    passed = ("--again", "--pass-exit-code", "--max-restarts", "0")
    assert run_command(tmp_path, "sh", "-c", "exit 7", options=passed).exit_code == 7
    assert run_command(tmp_path, "sh", "-c", "kill -SEGV $$", options=passed).exit_code == 128 + signal.SIGSEGV
    assert JobState(outcome="failed", own_code=None).exit_code == 1, "a run that the supervisor itself gave up"
    assert JobState(outcome="stopped", own_code=3).exit_code == 1


def test_processes_that_a_finished_command_left_behind_live_on(tmp_path: Path):
    left = tmp_path / "pid"
    assert run_command(tmp_path, "sh", "-c", f"setsid sleep 300 >/dev/null 2>&1 & echo $! > {left}").exit_code == 0
    alive = find_marked(str(attempt_dir(tmp_path / "run", 1)))
    os.kill(int(left.read_text()), signal.SIGKILL)
    assert int(left.read_text()) in alive


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_job_runs_although_standard_streams_are_closed(tmp_path: Path, closed: str):
    (tmp_path / "config.yaml").write_text("poll_s: 0.05\n")
    words = [sys.executable, "-m", "prism.cli.main", "supervise", "--config", "config.yaml", "--"]
    subprocess.run(["sh", "-c", f"{shlex.join(words)} touch ran {closed}"], cwd=tmp_path, check=True)
    assert (tmp_path / "ran").exists()


def test_a_job_is_supervised_to_its_end_although_nobody_reads_its_output(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("poll_s: 0.05\n")
    words = [sys.executable, "-m", "prism.cli.main", "supervise", "--config", "config.yaml", "--"]
    job = ["sh", "-c", "echo one; sleep 1; echo two; sleep 1; echo three"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*words, *job], cwd=tmp_path, stdout=writer, stderr=writer)
    os.close(writer)
    assert done.returncode == 0 and read_status(tmp_path / "prism-run").outcome == "done"


def test_a_signal_of_slurm_reaches_the_rank_and_ends_no_process_around_it(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("poll_s: 0.05\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "signal.signal(signal.SIGUSR1, lambda *got: Path('asked').touch())\n"
        "signal.signal(signal.SIGUSR2, lambda *got: sys.exit(0))\n"
        "Path('parent.tmp').write_text(str(os.getppid()))\nos.rename('parent.tmp', 'parent')\n"
        "time.sleep(600)\nsys.exit(9)\n"
    )
    words = [sys.executable, "-m", "prism.cli.main", "supervise", "--config", "config.yaml", "--"]
    supervisor = subprocess.Popen([*words, sys.executable, str(script)], cwd=tmp_path)
    wait_until((tmp_path / "parent").exists)
    supervisor.send_signal(signal.SIGHUP)
    supervisor.send_signal(signal.SIGUSR1)
    wait_until((tmp_path / "asked").exists)
    os.kill(int((tmp_path / "parent").read_text()), signal.SIGUSR2)
    assert supervisor.wait() == 0


@pytest.mark.parametrize("prepared", [False, True])
def test_ctrl_c_reaches_a_script_that_saves_at_it_and_sigterm_one_that_saves_at_that(tmp_path: Path, prepared: bool):
    (tmp_path / "config.yaml").write_text("poll_s: 0.05\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, time\nfrom pathlib import Path\n"
        "def save(number, frame):\n    Path('saved').write_text('at SIGTERM')\n    raise SystemExit(1)\n"
        f"{prepared} and signal.signal(signal.SIGTERM, save)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "Path('started').touch()\n"
        "try:\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    time.sleep(1)\n    Path('saved').write_text('at Ctrl-C')\n"
    )
    words = [sys.executable, "-m", "prism.cli.main", "supervise", "--config", "config.yaml", "--"]
    supervisor = subprocess.Popen([*words, "sh", "-c", f"{sys.executable} {script}; exit 3"], cwd=tmp_path)
    wait_until((tmp_path / "started").exists)
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait() == 1
    assert (tmp_path / "saved").read_text() == ("at SIGTERM" if prepared else "at Ctrl-C")


def test_a_command_that_does_not_exist_is_reported_in_one_line(tmp_path: Path):
    result = run_command(tmp_path, "no-such-trainer")
    assert isinstance(result.exception, PrismError) and result.exception.exit_code == 2
    assert "'no-such-trainer' not found" in str(result.exception)


def test_a_run_that_is_done_is_not_started_again(tmp_path: Path):
    run_command(tmp_path, "true")
    result = run_command(tmp_path, "true", options=("--again",))
    assert "this run is done" in str(result.exception)


def test_a_run_that_failed_is_continued_only_when_asked_to(tmp_path: Path):
    assert run_command(tmp_path, *trainer(tmp_path, "1 + 'x'"), options=("--act-on", "bug")).exit_code == 1
    refused = run_command(tmp_path, *trainer(tmp_path, "pass"))
    assert "TypeError" in str(refused.exception) and "--again" in str(refused.exception)
    assert run_command(tmp_path, *trainer(tmp_path, "pass"), options=("--again",)).exit_code == 0
    status = read_status(tmp_path / "run")
    assert status.outcome == "done" and status.attempt == 2 and status.num_failures == 0


def test_another_command_does_not_take_over_a_stopped_run_and_its_checkpoints(tmp_path: Path):
    first = trainer(tmp_path, "pass")
    assert run_command(tmp_path, *first).exit_code == 0
    saved = tmp_path / "run" / "state.json"
    document = json.loads(saved.read_text())
    document["state"]["outcome"] = "stopped"
    saved.write_text(json.dumps(document))
    refused = run_command(tmp_path, "true")
    assert isinstance(refused.exception, PrismError) and "train.py" in str(refused.exception)
    assert read_status(tmp_path / "run").outcome == "stopped"
    assert run_command(tmp_path, *first).exit_code == 0
    assert read_status(tmp_path / "run").attempt == 2


def test_the_status_of_a_run_reads_as_a_page(tmp_path: Path):
    run_command(tmp_path, *trainer(tmp_path, "pass"))
    result = CliRunner().invoke(app, ["supervise", "status", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "finished at step 20" in result.stdout and "launch" in result.stdout


def test_the_status_of_nothing_is_reported_in_one_line(tmp_path: Path):
    result = CliRunner().invoke(app, ["supervise", "status", str(tmp_path)])
    assert "no supervised run here" in str(result.exception)


def test_the_status_tells_which_hosts_were_out_of_use_how_often_and_why(tmp_path: Path):
    state = JobState(config=QUICK)
    state.book.cordon("n1", 0.0, "ECCError", QUICK.hosts)
    state.book.expire(1e9)
    for reason in ("NVLinkError", "failed the host test"):
        state.book.cordon("n2", 0.0, reason, QUICK.hosts)
    journal = Journal(tmp_path / "run")
    journal.commit(Snapshot(state=state, pending=[], clock=RunClock().mark(), read_bytes=0))
    journal.close()
    back, out = read_status(tmp_path / "run").host_history
    assert (back.host, back.num_cordons, back.hours_left) == ("n1", 1, 0.0)
    assert (out.host, out.reasons) == ("n2", ("NVLinkError", "failed the host test")) and 7.9 < out.hours_left <= 8.0
    page = CliRunner().invoke(app, ["supervise", "status", str(tmp_path / "run")]).stdout
    assert "out 2 times, last for: failed the host test" in " ".join(page.split()) and "back in use" in page


def start_supervisor(tmp_path: Path, *command: str) -> subprocess.Popen[bytes]:
    (tmp_path / "config.yaml").write_text("poll_s: 0.05\n")
    program = (sys.executable, "-c", "from prism.cli.supervise import app; app()", "run")
    options = ["--run-dir", str(tmp_path / "run"), "--config", str(tmp_path / "config.yaml"), "--"]
    return subprocess.Popen([*program, *options, *command], stderr=subprocess.DEVNULL)


def wait_until(condition, limit_s: float = 600.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_supervisor_continues_and_a_second_one_is_refused(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(TRAINER.replace("range(1, 21)", "range(1, 2001)").replace("FAULT", "pass"))
    command = [sys.executable, str(script)]
    first = start_supervisor(tmp_path, *command)
    steps = attempt_dir(tmp_path / "run", 1) / "steps.jsonl"
    wait_until(lambda: steps.exists() and steps.read_text().count("\n") > 5)
    refused = run_command(tmp_path, *command)
    assert "already supervised" in str(refused.exception)
    first.kill()
    first.wait()
    before = steps.read_text().count("\n")
    wait_until(lambda: steps.read_text().count("\n") > before + 5)  # training goes on without it
    second = start_supervisor(tmp_path, *command)
    wait_until(lambda: read_status(tmp_path / "run").supervised)
    second.send_signal(signal.SIGTERM)
    second.wait(600)
    status = read_status(tmp_path / "run")
    assert status.outcome == "stopped" and status.attempt == 1


def test_the_command_reads_standard_input_and_a_restart_reads_a_file_from_the_same_place(tmp_path: Path):
    (tmp_path / "answers").write_text("header\nyes\n")
    (tmp_path / "config.yaml").write_text("poll_s: 0.05\nrestarts: {backoff_s: 0.1}\n")
    code = "import os; print('got', input()); assert os.environ['PRISM_ATTEMPT'] == '2', os.kill(os.getpid(), 9)"
    program = (sys.executable, "-c", "from prism.cli.supervise import app; app()", "run")
    options = ["--run-dir", str(tmp_path / "run"), "--config", str(tmp_path / "config.yaml"), "--"]
    with (tmp_path / "answers").open() as answers:
        os.lseek(answers.fileno(), len("header\n"), os.SEEK_SET)
        command = [*program, *options, sys.executable, "-c", code]
        done = subprocess.run(command, stdin=answers, capture_output=True, text=True)
        assert os.lseek(answers.fileno(), 0, os.SEEK_CUR) == len("header\n")
    assert (done.returncode, done.stdout) == (0, "got yes\ngot yes\n")
    piped = subprocess.run(
        [*program, "--run-dir", str(tmp_path / "piped"), "--", sys.executable, "-c", "print(input(), input())"],
        input="a\nb\n",
        capture_output=True,
        text=True,
    )
    assert (piped.returncode, piped.stdout) == (0, "a b\n")


# -- the runner on a fake launcher


def report_steps(run_dir: Path, attempt: int, last: int) -> None:
    progress = Progress(0, RunOrders(run_dir=run_dir, attempt=attempt))
    for step in range(1, last + 1):
        progress.step(step, loss=1.0)


def supervisor(tmp_path: Path, launcher: FakeLauncher, config: SuperviseConfig = QUICK) -> Supervisor:
    tools = Tools(launcher=launcher, explainer=unknown, say=lambda line: None)
    return Supervisor(tmp_path / "run", ("train",), config, tools)


def test_the_decision_is_on_disk_before_the_action_runs(tmp_path: Path):
    seen = []

    class Watching(FakeLauncher):
        def start(self, plan):
            found = read_snapshot(tmp_path / "run", QUICK)
            seen.append((found.state.attempt, [type(a).__name__ for a in found.pending]))
            return super().start(plan)

    one = supervisor(tmp_path, Watching())
    one.poll()
    assert seen == [(1, ["Launch"])]
    assert read_snapshot(tmp_path / "run", QUICK).pending == []
    one.journal.close()


def test_an_action_that_a_crash_interrupted_is_done_after_the_restart(tmp_path: Path):
    class Crashing(FakeLauncher):
        def start(self, plan):
            raise KeyboardInterrupt

    one = supervisor(tmp_path, Crashing())
    with pytest.raises(KeyboardInterrupt):
        one.poll()
    one.journal.close()
    launcher = FakeLauncher()
    again = supervisor(tmp_path, launcher)
    assert [type(a) for a in again._pending] == [Launch]
    again._perform()
    assert [plan.orders.attempt for plan in launcher.plans] == [1]
    again.journal.close()


def test_an_answer_that_a_crash_cut_off_is_asked_for_again(tmp_path: Path):
    """Killed right after the logs were read, before the answer was taken."""
    launcher = FakeLauncher()
    one = supervisor(tmp_path, launcher)
    one.poll()
    report_steps(tmp_path / "run", 1, 5)
    launcher.end(1)

    def die(event):
        raise KeyboardInterrupt

    handle = one._take
    one._take = lambda event: die(event) if type(event).__name__ == "Explained" else handle(event)
    with pytest.raises(KeyboardInterrupt):
        one.poll()
    one.journal.close()
    again = supervisor(tmp_path, launcher)
    assert again.state.phase is Phase.EXPLAINING
    again._perform()
    assert again.state.phase is Phase.RUNNING and again.state.attempt == 2
    again.journal.close()


def test_the_last_reports_of_an_attempt_are_read_before_its_end_is_judged(tmp_path: Path):
    launcher = FakeLauncher()
    one = supervisor(tmp_path, launcher)
    one.poll()
    report_steps(tmp_path / "run", 1, 25)
    launcher.end(0)
    one.poll()
    assert one.state.phase is Phase.OVER and one.state.best_step == 25
    one.journal.close()


def test_a_restarted_supervisor_does_not_count_reports_twice(tmp_path: Path):
    launcher = FakeLauncher()
    one = supervisor(tmp_path, launcher)
    one.poll()
    report_steps(tmp_path / "run", 1, 10)
    Progress(0, RunOrders(run_dir=tmp_path / "run")).event("saved", step=10)
    one.poll()
    one.journal.close()
    again = supervisor(tmp_path, launcher)
    assert len(again.state.losses.recent) == 10
    again.poll()
    assert len(again.state.losses.recent) == 10 and again.state.saved_steps == [10]
    again.journal.close()


def test_people_are_told_by_webhook(tmp_path: Path):
    told = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = SuperviseConfig(poll_s=0.05, webhook=f"http://127.0.0.1:{server.server_port}/")
        launcher = FakeLauncher()
        one = supervisor(tmp_path, launcher, config)
        one.poll()
        launcher.end(0)
        one.poll()
        wait_until(lambda: bool(told))
        server.shutdown()
    one.journal.close()
    assert told[0]["level"] == "info" and "finished" in told[0]["text"]


def test_a_webhook_that_is_down_does_not_hold_the_run_up(tmp_path: Path):
    said: list[str] = []
    config = SuperviseConfig(webhook="http://127.0.0.1:9/")
    launcher = FakeLauncher()
    one = Supervisor(tmp_path / "run", ("train",), config, Tools(launcher=launcher, explainer=unknown, say=said.append))
    one.poll()
    launcher.end(0)
    one.poll()
    assert one.state.phase is Phase.OVER
    wait_until(lambda: any("webhook" in line for line in said))
    one.journal.close()


# -- a run folder without room


def no_room(*args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_run_folder_without_room_ends_neither_supervisor_nor_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    launcher = FakeLauncher()
    one = Supervisor(tmp_path / "run", ("train",), QUICK, Tools(launcher=launcher, explainer=unknown, say=said.append))
    one.poll()
    with monkeypatch.context() as full:
        full.setattr("prism.recover.supervise.journal.write_durably", no_room)
        full.setattr("prism.recover.supervise.journal.append_durably", no_room)
        launcher.end(-9)
        one.poll()
    assert [plan.orders.attempt for plan in launcher.plans] == [1, 2] and one.state.phase is Phase.RUNNING
    assert sum("check that there is space" in line for line in said) == 1
    one._commit()
    assert read_snapshot(tmp_path / "run", QUICK).state.attempt == 2
    one.journal.close()


def test_an_attempt_that_cannot_start_for_want_of_room_is_tried_again(tmp_path: Path):
    class Full(FakeLauncher):
        room = False

        def start(self, plan):
            return super().start(plan) if self.room else no_room()

    launcher = Full()
    one = supervisor(tmp_path, launcher)
    for _ in range(3):
        one.poll()
    assert launcher.plans == [] and one.state.phase is Phase.RUNNING
    launcher.room = True
    one.poll()
    assert [plan.orders.attempt for plan in launcher.plans] == [1]
    one.journal.close()


def test_a_log_line_that_looks_like_markup_does_not_break_the_status(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("raise TypeError('bad [/red]')")
    run_command(tmp_path, sys.executable, str(script))
    result = CliRunner().invoke(app, ["supervise", "status", str(tmp_path / "run")])
    assert result.exit_code == 0 and "bad [/red]" in result.stdout.replace("\n", "")


def test_the_supervisor_never_imports_torch():
    program = "import sys, prism.recover.supervise.start, prism.recover.supervise.launchers.slurm; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], env=dict(os.environ)).returncode == 0
