"""A run that did not fail is called so; one that died without a word is not."""

import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.evidence.logs import diagnose, read_job, read_text
from prism.records.verdict import NO_FAILURE

STEPS = "".join(f"step {i} | loss: {2 / i:.3f}\n" for i in range(1, 41))
OF_TOTAL = "".join(f"iteration {i}/ 40 | lm loss: 2.0\n" for i in range(1, 41))
KEY_ERROR = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'labels'\n"


def verdict_of(text):
    return diagnose(read_text(text)).verdict


@pytest.mark.parametrize(
    "end",
    [
        "{'train_runtime': 12.3, 'train_samples_per_second': 81.2, 'train_loss': 0.91, 'epoch': 1.0}",
        "`Trainer.fit` stopped: `max_epochs=3` reached.",
        "[after training is done] datetime: 2024-03-02 11:20:01",
        "Training completed",
        "[2024-03-02 11:20:01,123] [INFO] [launch.py:351:main] Process 88 exits successfully.",
        "Done.",
    ],
)
def test_a_run_that_says_that_it_is_done_did_not_fail(end):
    verdict = verdict_of(STEPS + end + "\n")
    assert (verdict.reason, verdict.action, verdict.hosts) == ("none", "none", ())
    assert verdict.evidence[0].text.strip().endswith(end[-10:])


def test_an_empty_log_is_told_to_be_empty():
    verdict = verdict_of("")
    assert (verdict.reason, verdict.evidence) == ("Unknown", ()) and "The log is empty" in verdict.mitigation
    assert "empty" not in verdict_of("hello\n").mitigation


def test_the_lines_that_an_unknown_end_cites_are_shown(tmp_path):
    (tmp_path / "a.log").write_text("starting\nstep 1 loss 2.9\nstep 2 loss 2.8\n")
    told = CliRunner().invoke(app, ["explain", str(tmp_path / "a.log")]).output
    assert "Unknown" in told and "        3  step 2 loss 2.8" in told


def test_a_run_that_took_its_last_step_did_not_fail():
    verdict = verdict_of(OF_TOTAL)
    assert (verdict.reason, verdict.action) == ("none", "none")
    padded = "".join(f" iteration {i:8d}/{12:8d} | lm loss: 2.0E+00 |\n" for i in range(1, 13))
    assert verdict_of(padded).reason == "none"
    assert verdict_of(padded[: len(padded) // 2]).reason == "Unknown"
    assert verdict_of("Epoch 0: 100%|####| 500/500 [01:22<00:00, 6.1it/s, loss=2.3]\n" * 3).reason == "none"


def test_errors_that_a_finished_run_lived_through_are_not_its_end():
    text = STEPS + "ConnectionError: metrics service is down\n" + STEPS + "Training finished.\n"
    assert verdict_of(text).reason == "none"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (STEPS + KEY_ERROR, "KeyError"),
        (OF_TOTAL + KEY_ERROR, "KeyError"),
        (STEPS + "Training finished.\n" + KEY_ERROR, "KeyError"),
        (STEPS + KEY_ERROR + "Training finished.\n", "KeyError"),
        ("iteration 1/ 40 | lm loss: 2.0\n" * 9 + "iteration 21/ 40 | lm loss: 2.0\n", "Unknown"),
        ("", "Unknown"),
        ("hello\n", "Unknown"),
        (STEPS + "Killed\n", "Unknown"),
        (STEPS + "something unexpected happened, cannot go on\n", "Unknown"),
        (STEPS + "Training finished.\nsrun: error: n1: task 3: Segmentation fault\n", "RuntimeError"),
    ],
)
def test_a_run_that_failed_or_that_nothing_is_known_of_is_not_called_good(text, reason):
    assert verdict_of(text).reason == reason


def test_all_ranks_must_have_come_to_their_end(tmp_path):
    for rank in range(4):
        (tmp_path / f"rank_{rank}.log").write_text(OF_TOTAL)
    assert diagnose(read_job(str(tmp_path))).verdict.reason == "none"
    (tmp_path / "rank_2.log").write_text(OF_TOTAL[:600] + KEY_ERROR)
    assert diagnose(read_job(str(tmp_path))).verdict.reason == "KeyError"
    (tmp_path / "rank_2.log").write_text("".join(OF_TOTAL.splitlines(keepends=True)[:20]))
    assert diagnose(read_job(str(tmp_path))).verdict.reason != "none"


def test_a_run_without_trouble_or_end_is_probably_fine_and_says_so():
    verdict = verdict_of(STEPS)
    assert (verdict.reason, verdict.confidence) == ("none", 0.5)


@pytest.mark.parametrize(("code", "reason"), [("0", NO_FAILURE), ("-9", "Unknown"), ("1", "Unknown")])
def test_the_exit_code_that_the_supervisor_keeps_beside_a_log_decides(tmp_path, code, reason):
    (tmp_path / "n1.log").write_text("".join(f"step {i} loss 2.0\n" for i in range(1, 16)))
    (tmp_path / "n1.exit").write_text(f"{code}\n")
    assert diagnose(read_job(str(tmp_path))).verdict.reason == reason


def test_a_log_that_only_stops_is_not_said_to_have_come_to_its_end(tmp_path):
    (tmp_path / "n1.log").write_text("".join(f"step {i} loss 2.0\n" for i in range(1, 16)))
    verdict = diagnose(read_job(str(tmp_path))).verdict
    assert verdict.confidence == 0.5 and "not how the run ended" in verdict.notes[0] and not verdict.mitigation


@pytest.mark.parametrize(("name", "hosts"), [("node-7", ("node-7",)), ("localhost", ())])
def test_the_name_that_torchrun_gives_every_machine_accuses_none(name, hosts):
    text = (
        f"{STEPS}[rank0]: RuntimeError: Connection closed by peer [10.0.0.1]:9\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2024-01-01\n  host      : {name}\n"
        "  rank      : 9 (local_rank: 1)\n  exitcode  : -9 (pid: 12)\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL)"
    )
    assert verdict_of(text).hosts == hosts
