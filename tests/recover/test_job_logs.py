"""What is read from a job's own output: steps in the formats of the common trainers, and how its ranks ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.recover.supervise import events
from prism.recover.supervise.exits import read_ending
from prism.recover.supervise.explainer import PREEMPTED, explain_logs
from prism.recover.supervise.log_progress import LogFormats
from prism.recover.supervise.watch import Watch

FORMATS = {
    "plain": (["step 3 loss 2.5", "step 4 loss 2.25"], [(3, 2.5), (4, 2.25)]),
    "plain with a total": (["INFO Step 12/90, loss: 3.5", "INFO Step 13/90, loss: 3.25"], [(12, 3.5), (13, 3.25)]),
    "nanoGPT": (
        ["iter 0: loss 4.5, time 9ms", "step 0: train loss 4.2, val loss 4.3", "iter 10: loss 4.25, time 9ms"],
        [(0, 4.5), (10, 4.25)],
    ),
    "Megatron-LM": (
        [
            " [2026-01-01 00:00:00] iteration       10/     100 | lm loss: 1.050000E+01 | loss scale: 1.0 |",
            " [2026-01-01 00:00:09] iteration       20/     100 | lm loss: 9.500000E+00 | loss scale: 1.0 |",
        ],
        [(10, 10.5), (20, 9.5)],
    ),
    "torchtitan": (
        [
            "[titan] 2026-01-01 00:00:00,1 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  7.5000  \x1b[33mtps: 10",
            "[titan] 2026-01-01 00:00:01,1 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  6.5000  \x1b[33mtps: 10",
        ],
        [(1, 7.5), (10, 6.5)],
    ),
    "DeepSpeed": (
        [f"[INFO] [Rank 0] step={step}, skipped=0, lr=[0.001]" for step in (10, 20, 30)],
        [(10, None), (20, None), (30, None)],
    ),
    "Hugging Face": (
        [
            "  0%|          | 0/100 [00:00<?, ?it/s]",
            "  1%|1         | 1/100 [00:00<00:08, 9.9it/s]",
            "{'loss': '2.5', 'grad_norm': '1.2', 'learning_rate': '0.1', 'epoch': '0.1'}",
            "  2%|1         | 2/100 [00:00<00:08, 9.9it/s]",
            " 50%|#####     | 5/10 [00:00<00:00, 9.9it/s]",  # its evaluation
        ],
        [(0, None), (1, None), (1, 2.5), (2, None)],
    ),
    "Lightning, tqdm": (
        [
            "Sanity Checking DataLoader 0:  50%|#####     | 1/2 [00:00<00:00, 9.9it/s]",
            "Epoch 0:  50%|#####     | 20/40 [00:00<00:00, 99.0it/s, v_num=0, train_loss=0.5]",
            "Epoch 0:  55%|#####     | 22/40 [00:00<00:00, 99.0it/s, v_num=0]",
            "Epoch 1:   5%|          | 2/40 [00:00<00:00, 99.0it/s, v_num=0, train_loss=0.25]",
        ],
        [(20, 0.5), (22, None), (42, 0.25)],
    ),
    "Lightning, Rich": (
        [
            "Epoch 0/9 \u2501\u2501\u2501\u2578\u2501\u2501 1/10 0:00:01 \u2022 0:00:09 9.11it/s train_loss: 0.75",
            "Epoch 1/9 \u2501\u2501\u2501\u2578\u2501\u2501 2/10 0:00:01 \u2022 0:00:09 9.11it/s train_loss: 0.5",
        ],
        [(1, 0.75), (12, 0.5)],
    ),
}


def read(lines: list[str]) -> list[tuple[int, float | None]]:
    formats = LogFormats()
    return [(found.step, found.loss) for line in lines for found in formats.read(line.encode())]


@pytest.mark.parametrize("name", FORMATS)
def test_the_steps_of_a_known_trainer_are_read_from_its_log(name: str):
    lines, expected = FORMATS[name]
    assert read(lines) == expected


@pytest.mark.parametrize(
    "lines",
    [
        ["Training until step 100000", "the plan: step 100000 or one week", "model ready"],
        ["Loading checkpoint shards:  50%|#####     | 1/2 [00:00<00:00, 9.9it/s]"] * 3,
        ["Step 5000 is where the schedule ends"],
        ["step 3: computing loss ...", "Training until step 100000", "step 99999 is the last"],
        ["Map:  50%|##   | 500/1000 [00:00<00:00, 9.9 examples/s]", "Map:  60%|##   | 600/1000 [00:00<00:00, 9 it/s]"],
    ],
)
def test_a_headline_or_another_bar_is_no_step(lines: list[str]):
    assert read(lines) == []


def test_a_headline_does_not_hide_the_steps_that_follow():
    assert read(["step 100000 is the goal", "step 1 loss 3.0", "step 2 loss 2.0"]) == [(1, 3.0), (2, 2.0)]


def test_a_word_in_the_place_of_a_loss_breaks_nothing():
    lines = [f"step {number}: computing loss ..." for number in (3, 4, 5)]
    assert read(lines) == [(3, None), (4, None), (5, None)]


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_no_log_line_is_so_odd_that_it_breaks_the_supervisor(lines: list[bytes]):
    formats = LogFormats()
    for line in lines:
        formats.read(line)


@pytest.mark.parametrize("part", [b"step ", b"iteration [", b"]:", b"50%|", b"loss ", b"Epoch 1/1 "])
@pytest.mark.timeout(300)  # tried again at each of half a million letters, a pattern would need an hour
def test_no_log_line_takes_long(part: bytes):
    assert LogFormats().read(part * 100_000) == []


@pytest.mark.parametrize(
    ("text", "in_line"),
    [("step 1\nstep 2\n", False), ("step 1\nstep 2\nst", True), ("step 1\n\r 10%|#", False), ("step 1\rstep 2\r", False)],
)  # fmt: skip
def test_a_log_that_ends_within_a_line_is_distinguished_from_the_states_of_a_bar(
    tmp_path: Path, text: str, in_line: bool
):
    (tmp_path / "a.log").write_text(text)
    assert [e.in_line for e in Watch(tmp_path).poll(0.0) if isinstance(e, events.OutputSeen)] == [in_line]


def test_steps_are_read_from_every_log_and_from_bars_that_end_in_a_carriage_return(tmp_path: Path):
    (tmp_path / "a.log").write_text("a host that prints nothing of interest\n")
    (tmp_path / "b.log").write_bytes(
        b"".join(b"\r %d%%|#   | %d/100 [00:00<00:08, 9.9it/s]" % (n, n) for n in range(6))
    )
    found = [event.step for event in Watch(tmp_path).poll(0.0) if isinstance(event, events.StepDone)]
    assert found == [0, 1, 2, 3, 4]  # the last state of the bar is still being written


# -- how it ended

SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : node-1
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 4242)
  error_file: <N/A>
============================================================
"""
HELPER = """\
Process SpawnProcess-1:
Traceback (most recent call last):
  File "spawn.py", line 1, in main
    reader.read()
EOFError
"""
LOST_PEER = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 42, in main
[rank0]:     loss.backward()
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:12001: Connection reset by peer.
"""
BUG = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "train.py", line 7, in main
[rank{rank}]:     total = 1 + "x"
[rank{rank}]: TypeError: unsupported operand type(s) for +: 'int' and 'str'
"""
FUTURES = '{"kind": "save_failed", "step": 9, "why": "RuntimeError: cannot schedule new futures after shutdown"}\n'


def explain(folder: Path, text: str, code: int | None = 1):
    (folder / "node-1.log").write_text(text)
    return explain_logs(folder, code)


def test_a_killed_rank_outranks_the_traceback_of_its_orphaned_writer(tmp_path: Path):
    verdict = explain(tmp_path, LOST_PEER + HELPER + SUMMARY.format(rank=1, code=-9))
    assert verdict.reason == "SIGKILL" and verdict.first_rank == 1 and verdict.action == "restart"


def test_a_rank_that_was_killed_on_one_host_outranks_one_that_lost_it_earlier_on_another(tmp_path: Path):
    """Each host's torchrun writes down what it saw first; the one that only lost a peer can be quicker."""
    (tmp_path / "node-1.log").write_text(LOST_PEER + SUMMARY.format(rank=0, code=1))
    (tmp_path / "node-2.log").write_text(SUMMARY.format(rank=3, code=-9).replace("00:00:00", "00:00:04"))
    verdict = explain_logs(tmp_path, 1)
    assert verdict.reason == "SIGKILL" and verdict.first_rank == 3


def test_a_lost_connection_outranks_what_a_queued_save_says_about_it(tmp_path: Path):
    (tmp_path / "steps.jsonl").write_text(FUTURES * 3)
    verdict = explain(tmp_path, LOST_PEER + HELPER + SUMMARY.format(rank=0, code=1))
    assert verdict.category == "infrastructure" and "futures" not in str(verdict.evidence)


def test_a_bug_in_the_rank_that_failed_first_is_not_hidden_by_those_that_lost_it(tmp_path: Path):
    verdict = explain(tmp_path, BUG.format(rank=1) + LOST_PEER + SUMMARY.format(rank=1, code=1))
    assert verdict.reason == "TypeError" and verdict.category == "script"


def test_a_launcher_that_was_told_to_go_is_no_killed_data_loader(tmp_path: Path):
    text = (
        "W0101 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGTERM death signal, shutting down\n"
        "[rank0]: RuntimeError: DataLoader worker (pid 77) is killed by signal: Terminated.\n"
    )
    assert explain(tmp_path, text).reason == PREEMPTED


@pytest.mark.parametrize("code", [-9, 137])
def test_a_command_that_was_killed_is_known_by_its_exit_code(tmp_path: Path, code: int):
    assert read_ending([], code).signal == signal.SIGKILL
    assert explain(tmp_path, "", code).reason == "SIGKILL"


def test_a_crash_of_which_the_log_tells_only_the_exit_code_is_no_lost_node(tmp_path: Path):
    before = "\r 24%|##        | 38/160 [00:00<00:02, 41.80it/s]\n    raise ChildFailedError(\n"
    verdict = explain(tmp_path, before + SUMMARY.format(rank=0, code=-11).replace("4242)", "4242)  (SIGSEGV)"))
    assert (verdict.reason, verdict.action) == ("SIGSEGV", "restart")


def test_logs_that_say_nothing_are_unknown_and_lead_to_a_restart(tmp_path: Path):
    verdict = explain(tmp_path, "hello\n")
    assert (verdict.reason, verdict.action) == ("Unknown", "restart")
