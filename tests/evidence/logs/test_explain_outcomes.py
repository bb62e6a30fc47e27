"""Outcome before cause: how a run ended is decided first, by whoever knows it best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.evidence.logs import diagnose, read_job, read_text

STEPS = "".join(f"step {i}/40 loss {2 / i:.3f}\n" for i in range(1, 41))
HALF = "".join(f"step {i}/100 loss {2 / i:.3f}\n" for i in range(1, 41))
END = "{'train_runtime': '812.1', 'train_samples_per_second': '3.1', 'train_loss': '1.31', 'epoch': '1.0'}\n"

FINISHED = {
    "the resource tracker complains": STEPS
    + END
    + (
        "Traceback (most recent call last):\n"
        '  File "/x/lib/python3.12/multiprocessing/resource_tracker.py", line 239, in main\n'
        "    cache[rtype].remove(name)\n"
        "KeyError: '/psm_1'\n"
    ),
    "an exit handler fails": STEPS
    + END
    + (
        "Error in atexit._run_exitfuncs:\n"
        "Traceback (most recent call last):\n"
        '  File "/x/train.py", line 30, in _cleanup\n'
        "    main()\n"
        '  File "/x/train.py", line 20, in main\n'
        "    save()\n"
        "OSError: [Errno 28] No space left on device\n"
    ),
    "a helper thread fails": STEPS
    + END
    + (
        "Exception in thread Thread-3 (_pin_memory_loop):\n"
        "Traceback (most recent call last):\n"
        '  File "/x/train.py", line 30, in _bootstrap_inner\n'
        "    main()\n"
        '  File "/x/train.py", line 20, in main\n'
        "    save()\n"
        "OSError: [Errno 28] x\n"
    ),
    "a destructor fails": STEPS
    + END
    + (
        "Task was destroyed but it is pending!\n"
        "Exception ignored in: <coroutine object x>\n"
        "Traceback (most recent call last):\n"
        '  File "/x/lib/python3.12/multiprocessing/resource_tracker.py", line 239, in main\n'
        "    cache[rtype].remove(name)\n"
        "KeyError: '/psm_1'\n"
    ),
    "the store of NCCL is gone": STEPS
    + END
    + '[rank0]:[E1102 10:00:00 ProcessGroupNCCL.cpp:1400] [PG 0 Rank 0] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n',
    "a pipe is broken": STEPS + END + "BrokenPipeError: [Errno 32] Broken pipe\n",
    "the launcher knows better": HALF
    + (
        "Traceback (most recent call last):\n"
        '  File "/x/train.py", line 30, in <module>\n'
        "    main()\n"
        '  File "/x/train.py", line 20, in main\n'
        "    save()\n"
        "OSError: [Errno 28] No space left on device\n"
        "Job finished with exit code 0\n"
    ),
    "the pod was completed": HALF + ("RuntimeError: x\nState: Terminated\n  Reason: Completed\n  Exit Code: 0\n"),
    "the table of the scheduler says completed": HALF
    + ("wandb: ERROR x failed\n12345 train gpu acct 64 COMPLETED 0:0\n"),
    "a tracker is away": STEPS
    + (
        "Training finished.\n"
        "MlflowException: API request to http://x failed with exception HTTPConnectionPool(host='x', port=1): Max retries exceeded\n"
    ),
    "the allocator complains": STEPS + END + "*** Error in `python': free(): invalid pointer: 0x1 ***\n",
    "an upload fails": STEPS + END + "COMET ERROR: Failed to upload asset: connection reset by peer\n",
    "a sample quotes a traceback": STEPS
    + END
    + "prediction: 'Traceback (most recent call last):\\n File x, in <module>\\nKeyError: 3'\n",
    "a push is tried again": STEPS
    + END
    + ("huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out\nretrying in 5s\nUploaded.\n"),
    "Ray lost a node": STEPS
    + (
        "(raylet) The node with node id x has been marked dead because it has missed too many heartbeats\n"
        "Training completed after 40 iterations at 2026-11-02\n"
        "SUCCEEDED\n"
    ),
    "semaphores leak": STEPS
    + (
        "`Trainer.fit` stopped: `max_steps=40` reached.\n"
        "/x/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 6 leaked semaphore objects to clean up at shutdown\n"
    ),
    "an argument speaks of memory kills": "argument --oom_killed retry\n" + STEPS + END,
}  # what follows, or comes before, a whole end
FAILED = {
    "final save": (
        STEPS
        + END
        + (
            "Traceback (most recent call last):\n"
            '  File "/x/train.py", line 30, in <module>\n'
            "    main()\n"
            '  File "/x/train.py", line 20, in main\n'
            "    save()\n"
            "OSError: [Errno 28] No space left on device\n"
        ),
        "failed",
        "OSError",
        "OSError",
        "stop",
    ),
    "done after": (
        HALF
        + (
            "Traceback (most recent call last):\n"
            '  File "/x/train.py", line 30, in <module>\n'
            "    main()\n"
            '  File "/x/train.py", line 20, in main\n'
            "    save()\n"
            "OSError: [Errno 28] No space left on device\n"
            "Done.\n"
        ),
        "failed",
        "OSError",
        "OSError",
        "stop",
    ),
    "launcher": (
        STEPS
        + END
        + (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
            "Root Cause (first observed failure):\n"
            "[0]:\n"
            "  time      : x\n"
            "  host      : n1\n"
            "  rank      : 3 (local_rank: 3)\n"
            "  exitcode  : 1 (pid: 4)\n"
            "  error_file: <N/A>\n"
            "  traceback : x\n"
        ),
        "failed",
        "Unknown",
        "Unknown",
        "restart",
    ),
    "cancel": (
        HALF + "slurmstepd: error: *** STEP 1.0 ON g7 CANCELLED AT 2026-11-02T12:00:01 ***\n",
        "cancelled",
        "Cancelled",
        "Unknown",
        "restart",
    ),
    "ctrlc": (
        HALF + ('Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\nKeyboardInterrupt\n'),
        "cancelled",
        "Cancelled",
        "Unknown",
        "restart",
    ),
    "requeue": (
        HALF + "slurmstepd: error: *** JOB 1 ON g7 CANCELLED AT 2026-11-02T12:00:01 DUE TO JOB REQUEUE ***\n",
        "preempted",
        "Preempted",
        "NodeFailure",
        "restart",
    ),
    "nodefail": (
        HALF
        + (
            "slurmstepd: error: *** STEP 1.0 ON g7 CANCELLED AT 2026-11-02T12:00:01 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***\n"
            "srun: error: Node failure on g7\n"
        ),
        "lost_node",
        "NodeFailure",
        "NodeFailure",
        "isolate_and_restart",
    ),
    "srun oom": (
        HALF
        + (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some of the step tasks have been OOM Killed.\n"
            "srun: error: gpu-n014: task 3: Out Of Memory\n"
            "srun: Terminating StepId=8.0\n"
        ),
        "failed",
        "OutOfMemoryError",
        "OutOfMemoryError",
        "stop",
    ),
    "group": (
        (
            "  + Exception Group Traceback (most recent call last):\n"
            '  |   File "t.py", line 9, in <module>\n'
            "  |     main()\n"
            "  | ExceptionGroup: errors (2 sub-exceptions)\n"
            "  +-+---------------- 1 ----------------\n"
            "    | Traceback (most recent call last):\n"
            '    |   File "t.py", line 4, in f\n'
            '    |     d["x"]\n'
            "    | KeyError: 'x'\n"
            "    +---------------- 2 ----------------\n"
            "    | TypeError: bad\n"
            "    +------------------------------------\n"
        ),
        "failed",
        "KeyError",
        "KeyError",
        "stop",
    ),
    "note": (
        (
            "Traceback (most recent call last):\n"
            '  File "t.py", line 9, in <module>\n'
            "    main()\n"
            "ValueError: bad lr\n"
            "while loading shard 3: CUDA out of memory would look different\n"
            "see also: connection refused earlier\n"
        ),
        "failed",
        "ValueError",
        "ValueError",
        "stop",
    ),
    "raymem": (
        HALF
        + (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
            "Memory on the node (IP: 10.0.0.4, ID: ab) where the task (task ID: x, name=train, pid=4, memory used=200GB) was running was 250.1GB / 256.0GB (0.97), which exceeds the memory usage threshold of 0.95.\n"
        ),
        "failed",
        "OutOfMemoryError",
        "OutOfMemoryError",
        "stop",
    ),
    "raypod": (
        HALF
        + "(raylet, ip=10.0.0.4) [2026] (raylet) node_manager.cc:3064: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: x, IP: 10.0.0.4) over the last time period.\n",
        "failed",
        "OutOfMemoryError",
        "OutOfMemoryError",
        "stop",
    ),
    "comm": (
        (
            "Traceback (most recent call last):\n"
            '  File "t.py", line 9, in <module>\n'
            "    wandb.init()\n"
            "wandb.errors.errors.CommError: failed to upsert bucket: returned error 403 Forbidden: permission denied\n"
        ),
        "failed",
        "PermissionError",
        "PermissionError",
        "stop",
    ),
    "comm2": (
        (
            "Traceback (most recent call last):\n"
            '  File "t.py", line 9, in <module>\n'
            "    wandb.init()\n"
            "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.\n"
        ),
        "failed",
        "ConnectionError",
        "ConnectionError",
        "restart",
    ),
    "xid92": (
        "[ 123.456789] NVRM: Xid (PCI:0000:3b:00): 92, pid=4411, High single-bit ECC error rate\n",
        "failed",
        "ECCError",
        "ECCError",
        "isolate_and_restart",
    ),
    "port": (
        (
            "Traceback (most recent call last):\n"
            '  File "t.py", line 9, in <module>\n'
            "    init()\n"
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
        ),
        "failed",
        "PortInUse",
        "ConnectionError",
        "restart",
    ),
    "port2": (
        (
            "Traceback (most recent call last):\n"
            '  File "t.py", line 9, in <module>\n'
            "    s.bind()\n"
            "OSError: [Errno 98] Address already in use\n"
        ),
        "failed",
        "PortInUse",
        "ConnectionError",
        "restart",
    ),
    "nan": (
        HALF
        + (
            "Traceback (most recent call last):\n"
            '  File "t.py", line 9, in <module>\n'
            "    main()\n"
            "RuntimeError: loss is nan at step 41\n"
        ),
        "failed",
        "LossSpike",
        "RuntimeError",
        "rollback",
    ),
    "segv": (
        HALF
        + (
            "Fatal Python error: Segmentation fault\n"
            "\n"
            "Current thread 0x1 (most recent call first):\n"
            '  File "t.py", line 3 in f\n'
        ),
        "failed",
        "NativeCrash",
        "RuntimeError",
        "restart",
    ),
    "raydied": (
        HALF + "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.\n",
        "failed",
        "WorkerDied",
        "Unknown",
        "restart",
    ),
    "german": (
        HALF + "train.sh: Zeile 12: 4411 Getötet    python train.py\n",
        "failed",
        "WorkerDied",
        "Unknown",
        "restart",
    ),
    "frkill": (
        HALF + "./train.sh: ligne 3 :  4411 Processus arrêté      python train.py\n",
        "failed",
        "WorkerDied",
        "Unknown",
        "restart",
    ),
    "sigterm": (
        HALF + "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4 got signal: 15\n",
        "cancelled",
        "SIGTERM",
        "Unknown",
        "restart",
    ),
    "deadline": (
        "Warning  DeadlineExceeded  3m  job-controller  Job was active longer than specified deadline\n",
        "timed_out",
        "TimeLimit",
        "Unknown",
        "restart",
    ),
    "pbs": (
        HALF + "=>> PBS: job killed: walltime 3620 exceeded limit 3600\n",
        "timed_out",
        "TimeLimit",
        "Unknown",
        "restart",
    ),
    "lsf": (
        HALF + ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.\n"),
        "timed_out",
        "TimeLimit",
        "Unknown",
        "restart",
    ),
    "exit137": (HALF + "command terminated with exit code 137\n", "failed", "SIGKILL", "Unknown", "restart"),
}


def verdict_of(text: str, exit_code: int | None = None):
    return diagnose(read_text(text), exit_code=exit_code).verdict


@pytest.mark.parametrize("name", FINISHED)
def test_nothing_that_is_printed_after_a_whole_end_makes_a_failure(name):
    verdict = verdict_of(FINISHED[name])
    assert (verdict.outcome, verdict.reason, verdict.action) == ("completed", "none", "none")


@pytest.mark.parametrize("name", FAILED)
def test_an_end_is_told_by_outcome_cause_and_action(name):
    text, *told = FAILED[name]
    verdict = verdict_of(text)
    assert [verdict.outcome, verdict.cause.name, verdict.reason, verdict.action] == told


@pytest.mark.parametrize("name", ["done after", "nan", "segv"])
def test_an_exit_code_of_zero_beats_any_text(name):
    assert verdict_of(FAILED[name][0], 0).outcome == "completed"


def test_an_exit_code_makes_a_failure_of_a_run_that_only_says_that_it_is_done():
    verdict = verdict_of(STEPS + END, 1)
    assert (verdict.outcome, verdict.reason, verdict.cause.name) == ("failed", "Unknown", "exit code 1")
    assert verdict_of(STEPS + END, 137).says == "killed by SIGKILL: the kernel's memory killer or a person"
    assert verdict_of(HALF, 143).outcome == "cancelled"


def test_a_log_that_only_stops_has_an_unknown_outcome():
    assert verdict_of(HALF).outcome == "unknown"


def test_srun_names_the_task_that_the_daemon_of_the_step_saw_out_of_memory():
    assert verdict_of(FAILED["srun oom"][0]).first_rank == 3


def test_the_command_takes_an_exit_code_and_prints_the_outcome(tmp_path: Path):
    (tmp_path / "a.log").write_text(STEPS + END)
    command = ["explain", str(tmp_path / "a.log"), "--exit-code", "137"]
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (told["outcome"], told["reason"], told["cause"]["kind"]) == ("failed", "Unknown", "signal")
    assert "killed by SIGKILL" in CliRunner().invoke(app, command).output


@pytest.mark.parametrize(
    "other",
    [
        b"== process 7 rank 1: python train.py --oom_killed\nstate: S\nThread 7 (idle): MainThread\n  x (error.py:3)\n",
        b'Process 7: python train.py\nPython v3.11.7 (/usr/bin/python)\n\nThread 7 (active): "M"\n    MemoryError (a.py:1)\n',
        b"\x80\x04\x95oom_kill MemoryError\n",
    ],
)
def test_what_is_no_log_is_not_read_as_one_whatever_its_name(tmp_path: Path, other: bytes):
    (tmp_path / "rank0.log").write_text(STEPS + END)
    (tmp_path / "stacks.txt").write_bytes(other)
    assert diagnose(read_job(str(tmp_path))).verdict.reason == "none"
