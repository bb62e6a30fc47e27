"""`prism evaluate` end to end on built-in tasks and commands: results, resuming, and every kind of bad input."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from prism.cli.main import main
from prism.evaluate import demo
from prism.evaluate.run.engines import LocalEngine
from prism.evaluate.run.models.tiny import write_tiny
from prism.evaluate.run.store import Store
from prism.evaluate.run.watching import CheckpointWatch, Seen

Prism = Callable[..., tuple[int, str, str]]

INFER = """
import json, os, sys
model, first, last, output, shrink = sys.argv[1:]
with open("inferred.log", "a") as log:
    log.write(f"{first} {last} {shrink}\\n")
need = int(open("need-shrink").read()) if os.path.exists("need-shrink") else 0
if int(shrink) < need:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory")
with open(output, "w") as handle:
    for sample in range(int(first), int(last)):
        handle.write(json.dumps({"sample": sample}) + "\\n")
"""
SCORE = """
import json, os, sys, time
outputs, metrics = sys.argv[1:]
rows = [json.loads(line) for line in open(outputs)]
if os.path.exists("hang"):
    time.sleep(600)
for row in rows:
    if row["sample"] == 3 and os.path.exists("bad-metric"):
        sys.exit("ValueError: sample 3 has no answer")
more = (lambda n: {"len": float("nan") if n == 5 else 1.0}) if os.path.exists("bad-number") else (lambda n: {})
json.dump({"samples": [{"acc": row["sample"] % 2, **more(row["sample"])} for row in rows]}, open(metrics, "w"))
"""


@pytest.fixture
def prism(capsys: pytest.CaptureFixture[str]) -> Prism:
    """Run the command line here; exit code, stdout and stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["evaluate", *map(str, words)])
        out = capsys.readouterr()
        return int(left.value.code or 0), out.out, out.err

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two tiny checkpoints and the scripts of a command dataset."""
    for step in (1, 2):
        write_tiny(tmp_path / f"step-{step}", step)
    (tmp_path / "infer.py").write_text(INFER)
    (tmp_path / "score.py").write_text(SCORE)
    return tmp_path


def write_plan(folder: Path, datasets: Any, checkpoints: Any = "step-1", **hardware: Any) -> Path:
    document = {
        "checkpoints": checkpoints,
        "datasets": datasets,
        "hardware": {"device": "cpu", "workers": 1, "score_cpus": 1, **hardware},
    }
    (folder / "plan.yaml").write_text(json.dumps(document))  # JSON is YAML
    return folder / "plan.yaml"


def command(**more: Any) -> dict[str, Any]:
    settings = {
        "infer": f"{sys.executable} infer.py {{model}} {{first}} {{last}} {{output}} {{shrink}}",
        "score": f"{sys.executable} score.py {{outputs}} {{metrics}}",
        **more.pop("settings", {}),
    }
    return {"name": "own", "adapter": "command", "samples": 6, "settings": settings, **more}


def one_line(told: str) -> str:
    lines = [line for line in told.splitlines() if line.strip()]
    assert len(lines) == 1 and "Traceback" not in told, told
    return lines[0]


def test_results_come_as_the_contract_says_and_are_never_computed_twice(project: Path, prism: Prism) -> None:
    plan = write_plan(project, ["order", "copy"], "step-*")
    code, out, told = prism(plan, "-o", project / "run", "--engine", "local", "--json")
    assert code == 0, told
    document = json.loads(out)
    assert {"makespan_s", "lower_bound_s", "trials", "results"} <= set(document)
    assert set(document["results"]) == {"step-1", "step-2"}
    assert set(document["results"]["step-1"]) == {"order", "copy"}
    for name in ("results.json", "leaderboard.csv", "leaderboard.html", "progress.json", "trials.jsonl"):
        assert (project / "run" / name).stat().st_size > 0
    assert json.loads((project / "run" / "progress.json").read_text())["state"] == "done"
    again = json.loads(prism(plan, "-o", project / "run", "--engine", "local", "--json")[1])
    assert again["trials"] == 0 and again["results"] == document["results"]


def test_another_number_of_workers_gives_the_same_scores(project: Path, prism: Prism) -> None:
    found = []
    for workers in (1, 2):
        plan = write_plan(project, ["arithmetic", "text"], workers=workers)
        code, out, told = prism(plan, "-o", project / f"run-{workers}", "--engine", "local", "--json")
        assert code == 0, told
        found.append(json.loads(out)["results"])
    assert found[0] == found[1]


def test_a_copy_that_a_killed_worker_left_is_removed_at_the_end_of_the_run(
    project: Path, prism: Prism, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, close = project / "shelf", LocalEngine.close
    monkeypatch.setenv("PRISM_SHELF", str(shelf))

    def kill(engine: LocalEngine) -> None:
        close(engine)
        (shelf / "k").mkdir(parents=True)
        (shelf / "k.leases").mkdir()
        (shelf / "k.leases" / "999999999-1-abc").touch()

    monkeypatch.setattr(LocalEngine, "close", kill)
    code, _, told = prism(write_plan(project, ["order"]), "-o", project / "run", "--engine", "local", "--json")
    assert code == 0, told
    assert list(shelf.iterdir()) == []


def test_a_changed_checkpoint_is_scored_anew(project: Path, prism: Prism) -> None:
    plan = write_plan(project, ["text"])
    first = json.loads(prism(plan, "-o", project / "run", "--engine", "local", "--json")[1])
    write_tiny(project / "step-1", 99)
    second = json.loads(prism(plan, "-o", project / "run", "--engine", "local", "--json")[1])
    assert second["trials"] > 0 and second["results"] != first["results"]


def test_a_metric_that_raises_for_one_sample_costs_no_inference(project: Path, prism: Prism) -> None:
    (project / "bad-metric").touch()
    plan = write_plan(project, [command(), "order"])
    code, out, _ = prism(plan, "-o", project / "run", "--engine", "local", "--json")
    document = json.loads(out)
    assert code == 1 and "order" in document["results"]["step-1"]
    assert "sample 3 has no answer" in document["failures"][0]["text"]
    inferred = (project / "inferred.log").read_text()
    (project / "bad-metric").unlink()
    code, out, told = prism(plan, "-o", project / "run", "--engine", "local", "--json")
    assert code == 0, told
    assert json.loads(out)["results"]["step-1"]["own"] == {"acc": 0.5}
    assert (project / "inferred.log").read_text() == inferred


def test_a_value_that_is_no_number_is_a_failure_with_its_sample(project: Path, prism: Prism) -> None:
    (project / "bad-number").touch()
    plan = write_plan(project, [command()])
    code, out, told = prism(plan, "--output", project / "run", "--engine", "local", "--json")
    document = json.loads(out)
    assert code == 1
    (failure,) = document["failures"]
    assert failure["samples"] == [5] and "len is nan: samples 5 gave no finite value" in failure["text"]
    assert failure["part"] == "step-1/own" and document["results"]["step-1"]["own"] == {"acc": 0.5}, "acc stays"
    assert "nan" not in (project / "run" / "leaderboard.csv").read_text() and "1 part was given up" in told


def test_a_metric_that_hangs_is_stopped_and_reported(project: Path, prism: Prism) -> None:
    (project / "hang").touch()
    plan = write_plan(project, [command(settings={"score_timeout_s": 1.0})])
    code, out, _ = prism(plan, "-o", project / "run", "--engine", "local", "--json")
    assert code == 1 and "no end after 1 s" in json.loads(out)["failures"][0]["text"]


def test_a_trial_out_of_memory_is_retried_smaller(project: Path, prism: Prism) -> None:
    (project / "need-shrink").write_text("1")
    code, out, told = prism(write_plan(project, [command()]), "-o", project / "run", "--engine", "local", "--json")
    assert code == 0, told
    assert json.loads(out)["results"]["step-1"]["own"] == {"acc": 0.5}
    assert {line.split()[2] for line in (project / "inferred.log").read_text().splitlines()} == {"0", "1"}


def test_a_trial_that_never_fits_is_reported(project: Path, prism: Prism) -> None:
    (project / "need-shrink").write_text("99")
    code, out, _ = prism(write_plan(project, [command()]), "-o", project / "run", "--engine", "local", "--json")
    assert code == 1 and "out of memory" in json.loads(out)["failures"][0]["text"]


def test_a_command_ends_with_its_worker() -> None:
    """A worker that is stopped must leave its GPU, and so must what it has started."""
    program = (
        "from pathlib import Path; from prism.evaluate.run.adapters import WorkerCache, open_adapter;"
        "from prism.evaluate.schedule.trials import Dataset;"
        "own = Dataset(name='x', adapter='command', task='x', samples=1, settings={'infer': 'sleep 4219'});"
        "open_adapter('command').infer(own, Path(), WorkerCache(), 0, 1, 0)"
    )

    def is_running() -> bool:
        return "sleep 4219" in subprocess.run(
            ["ps", "-ww", "-eo", "args"], capture_output=True, text=True
        ).stdout.split("\n")

    with subprocess.Popen([sys.executable, "-c", program]) as worker:
        end = time.monotonic() + 600
        while not is_running() and time.monotonic() < end:
            time.sleep(0.05)
        assert is_running()
        worker.kill()
    end = time.monotonic() + 600
    while is_running() and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running()


def test_a_whole_metric_needs_an_unsplit_dataset(project: Path, prism: Prism) -> None:
    (project / "score.py").write_text(
        "import json, sys; json.dump({'metrics': {'bleu': 12.5}}, open(sys.argv[2], 'w'))"
    )
    plan = write_plan(project, [command(splittable=False)])
    code, out, told = prism(plan, "-o", project / "run", "--engine", "local", "--json")
    assert code == 0 and json.loads(out)["results"]["step-1"]["own"] == {"bleu": 12.5}, told


@pytest.mark.parametrize(
    ("datasets", "hardware", "message"),
    [
        (["aritmetic"], {}, "did you mean 'arithmetic'?"),
        (["order"], {"device": "gpu"}, "'hardware.device' is gpu and no node has one"),
        ([{"name": "x", "adapter": "command", "samples": 1}], {}, "'settings.infer' is missing"),
        ([command(settings={"data": "gone.jsonl"}, samples=0)], {}, "gone.jsonl: no such data file"),
        ([command(settings={"scroe": "x"})], {}, "no setting 'scroe'"),
        ([{"name": "order", "settings": {"lenght": 3}}], {}, "no setting 'lenght'"),
    ],
)
def test_a_plan_that_cannot_run_says_why_in_one_line(
    project: Path, prism: Prism, datasets: Any, hardware: dict[str, Any], message: str
) -> None:
    code, out, told = prism(write_plan(project, datasets, **hardware), "-o", project / "run", "--engine", "local")
    assert (code, out) == (2, "") and message in one_line(told)


def test_a_half_written_checkpoint_is_named(project: Path, prism: Prism) -> None:
    weights = project / "step-1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, _, told = prism(write_plan(project, ["order"]), "-o", project / "run", "--engine", "local")
    assert code == 2 and "step-1/model.safetensors: half written" in one_line(told)


def test_two_runs_into_one_folder_are_refused(project: Path, prism: Prism) -> None:
    with Store(project / "run").lock():
        code, _, told = prism(write_plan(project, ["order"]), "-o", project / "run", "--engine", "local")
    assert code == 2 and "another evaluation writes here" in one_line(told)


def test_a_plan_or_the_demo_must_be_asked_for(prism: Prism) -> None:
    code, _, told = prism("--engine", "local")
    assert code == 2 and "give a plan, or --demo" in one_line(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_a_full_disk_ends_in_one_line_and_what_is_finished_is_kept(project: Path, prism: Prism) -> None:
    small = project / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (small / "filler").write_bytes(b"0" * 12_000)
        plan = write_plan(project, ["arithmetic"])
        code, _, told = prism(plan, "-o", small / "run", "--engine", "local")
        assert code == 1 and "No space left on device" in told and "Traceback" not in told
        (small / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", str(small)], check=True)
        code, out, told = prism(plan, "-o", small / "run", "--engine", "local", "--json")
        assert code == 0, told
        assert "arithmetic" in json.loads(out)["results"]["step-1"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_the_command_of_the_examples_runs_on_a_checkpoint(project: Path, prism: Prism) -> None:
    example = Path(__file__).parents[2] / "examples" / "evaluate"
    shutil.copytree(example, project / "example")
    write_tiny(project / "example" / "checkpoints" / "step-5", 5)
    document = yaml.safe_load((example / "plan.yaml").read_text())
    document["datasets"] = [d for d in document["datasets"] if isinstance(d, str) or d["adapter"] != "lm-eval"]
    letters = next(d for d in document["datasets"] if not isinstance(d, str))["settings"]
    letters |= {key: letters[key].replace("python ", f"{sys.executable} ") for key in ("infer", "score")}
    (project / "example" / "plan.yaml").write_text(yaml.safe_dump(document))
    code, out, told = prism(project / "example" / "plan.yaml", "-o", project / "run", "--engine", "local", "--json")
    assert code == 0, told
    assert 0 <= json.loads(out)["results"]["step-5"]["letters"]["acc"] <= 1


def test_a_checkpoint_of_higher_priority_is_inferred_first(project: Path, prism: Prism) -> None:
    checkpoints = [{"path": "step-1"}, {"path": "step-2", "priority": 5}]
    plan = write_plan(project, ["arithmetic", "text"], checkpoints)
    code, _, told = prism(plan, "-o", project / "run", "--engine", "local", "--json")
    assert code == 0, told
    lines = [json.loads(line) for line in (project / "run" / "trials.jsonl").read_text().splitlines()]
    inferred = [line["checkpoint"] for line in lines if line["phase"] == "infer"]
    assert inferred == sorted(inferred, reverse=True) and set(inferred) == {"step-1", "step-2"}


@pytest.mark.slow
def test_a_checkpoint_behind_an_s3_api_is_scored_like_one_in_a_folder(
    project: Path, prism: Prism, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that speaks S3, read by worker processes."""
    pytest.importorskip("flask")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = pytest.importorskip("boto3").client("s3")
        client.create_bucket(Bucket="runs")
        for path in (project / "step-1").iterdir():
            client.put_object(Bucket="runs", Key=f"a/step-1/{path.name}", Body=path.read_bytes())
        found = []
        for checkpoint in ("s3://runs/a/step-1", "step-1"):
            plan, run = write_plan(project, ["order"], checkpoint), project / f"run-{len(found)}"
            code, _, told = prism(plan, "-o", run, "--engine", "local", "--quiet")
            assert code == 0, told
            found.append(json.loads((run / "results.json").read_text())["results"])
        assert found[0] == found[1]
    finally:
        server.stop()


def test_the_live_table_follows_a_run_on_a_terminal(project: Path) -> None:
    plan = write_plan(project, [{"name": "arithmetic", "samples": 300}])
    words = ["evaluate", str(plan), "-o", str(project / "run"), "--engine", "local"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", "from prism.cli.main import main; main()", *words],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm"},
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal tells that its other end is closed
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
    assert process.returncode == 0
    assert all(word in shown.decode() for word in ("trials", "GPUs busy", "none; CPU workers", "time left"))


def test_workers_make_way_for_training_and_come_back(project: Path, prism: Prism) -> None:
    run = project / "run"
    plan = write_plan(project, [{"name": "arithmetic", "samples": 400}, {"name": "text", "samples": 200}], workers=2)
    seen: list[int] = []

    def train() -> None:
        """Ask for both workers once the first part is there, until they are gone."""
        while not (run / "trials.jsonl").exists() or '"infer"' not in (run / "trials.jsonl").read_text():
            time.sleep(0.02)
        (run / "give-back").write_text("2")
        while not seen or seen[-1]:
            time.sleep(0.05)
            seen.append(json.loads((run / "progress.json").read_text())["workers"])
        (run / "give-back").unlink()

    training = threading.Thread(target=train, daemon=True)
    training.start()
    code, out, told = prism(plan, "-o", run, "--engine", "local", "--json")
    training.join(600)
    assert code == 0, told
    assert seen[-1] == 0 and "make way for training" in told
    alone = json.loads(prism(plan, "-o", project / "alone", "--engine", "local", "--json")[1])
    assert json.loads(out)["results"] == alone["results"]


def test_the_demo_needs_nothing_and_shows_a_leaderboard(tmp_path: Path, prism: Prism) -> None:
    code, out, told = prism("--demo", "-o", tmp_path / "demo")
    assert code == 0, told
    assert "arithmetic" in out and "step-300" in out


def test_the_demo_leaves_code_out_where_no_walls_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "why_no_isolation", lambda: "own: namespaces are forbidden")
    plan = demo.write_demo(tmp_path)
    assert yaml.safe_load(plan.read_text())["datasets"] == ["arithmetic", "order", "text", "copy"]
    assert "own: namespaces are forbidden" in plan.read_text()


def test_a_watch_that_is_stopped_has_written_its_results_and_the_next_computes_nothing_twice(
    project: Path, prism: Prism
) -> None:
    runs, run = project / "runs", project / "run"
    write_tiny(runs / "step-10", 10)
    plan = project / "watch.yaml"
    plan.write_text(json.dumps({"datasets": ["order"], "hardware": {"device": "cpu", "workers": 1}}))
    words = ["watch", str(runs), "--plan", str(plan), "-o", str(run), "--engine", "local", "--settle", "0.2"]
    with subprocess.Popen(
        [sys.executable, "-c", "from prism.cli.main import main; main()", "evaluate", *words],
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores it
    ) as process:
        end = time.monotonic() + 600
        while not (run / "leaderboard.html").exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=600)[1].decode()
    assert process.returncode != 0 and "Traceback" not in told
    before = json.loads((run / "results.json").read_text())["results"]
    assert "order" in before["step-10"]
    code, out, told = prism(*words, "--idle", "1", "--json")
    assert code == 0, told
    assert json.loads(out)["results"] == before and json.loads(out)["trials"] == 0


def test_watching_scores_what_appears_and_waits_for_what_is_half_written(
    project: Path, prism: Prism, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with a whole checkpoint, a half-written one, and one of Prism's own that is still being written."""
    runs = project / "runs"
    write_tiny(runs / "step-10", 10)
    write_tiny(runs / "step-20", 20)
    weights = runs / "step-20" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-5])
    write_tiny(runs / ".writing-30", 30)
    plan = project / "watch.yaml"
    plan.write_text(json.dumps({"datasets": ["order"], "hardware": {"device": "cpu", "workers": 1}}))
    note, noted = CheckpointWatch._note, []

    def finish_writing(watch: CheckpointWatch, name: str, state: Seen) -> None:
        """Write the rest of the second checkpoint once it was found to be half written."""
        note(watch, name, state)
        if (name, state.state) == ("step-20", "half written"):
            noted.append(name)
            weights.write_bytes(whole)

    monkeypatch.setattr(CheckpointWatch, "_note", finish_writing)
    flags = ("--plan", plan, "-o", project / "run", "--engine", "local", "--settle", "0.2", "--idle", "2", "--json")
    code, out, told = prism("watch", runs, *flags)
    assert code == 0, told
    assert noted == ["step-20"]
    assert set(json.loads(out)["results"]) == {"step-10", "step-20"}
    assert "1 checkpoint x 1 dataset on 1 worker" in told and "0 checkpoints" not in told, (
        "a plan of nothing is no plan"
    )


def test_a_watch_beside_what_it_cannot_read_ends_and_says_why(project: Path, prism: Prism) -> None:
    (project / "runs" / "global_step5").mkdir(parents=True)
    (project / "runs" / "global_step5" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b"x")
    (project / "runs" / "step-6").mkdir()
    (project / "runs" / "step-6" / "__0_0.distcp").write_bytes(b"x")
    plan = write_plan(project, ["order"])
    flags = ("--plan", plan, "-o", project / "run", "--engine", "local", "--settle", "0", "--idle", "1", "--json")
    code, out, told = prism("watch", project / "runs", *flags)
    assert code == 0, told
    assert "DeepSpeed's; run its zero_to_fp32.py" in told and "no .metadata yet, which is saved last" in told
    assert (
        "nothing new for 1 s, so the watch ends; left out: global_step5 is unsupported, step-6 is half written" in told
    )
    watched = json.loads(out)["watched"]
    assert (watched["global_step5"]["state"], watched["step-6"]["state"]) == ("unsupported", "half written")
