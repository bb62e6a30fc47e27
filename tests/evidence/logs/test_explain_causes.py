"""What explains what: hardware explains time-outs, a dead rank its peers, a wrapper nothing."""

import pytest

from prism.evidence.logs import diagnose, read_job, read_text


def verdict_of(text, tmp_path=None):
    return diagnose(read_text(text)).verdict


TIMEOUT = "[rank{r}]:[E ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={s}, OpType=ALLREDUCE)"
CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


def test_a_gpu_that_left_the_bus_explains_the_time_outs_that_follow():
    text = "\n".join(
        [
            TIMEOUT.format(r=0, s=9),
            "May  3 10:11:12 gpu17 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        ]
    )
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.action, verdict.hosts) == ("CUDAError", "isolate_and_restart", ("gpu17",))


def test_the_launchers_summary_explains_nothing():
    assert verdict_of(CHILD_FAILED).reason == "Unknown"
    assert verdict_of(f"{CHILD_FAILED}\nKeyError: 'labels'").reason == "KeyError"


def test_a_direct_cause_is_the_root_and_a_look_up_told_again_is_not():
    cause = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    handling = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert verdict_of(f"PermissionError: [Errno 13] no{cause}RuntimeError: cannot save").reason == "PermissionError"
    assert verdict_of(f"KeyError: 'size'{handling}AttributeError: no attribute 'size'").reason == "AttributeError"
    assert (
        verdict_of(f"ConnectionResetError: gone{handling}OSError: We couldn't connect to 'https://x'").reason
        == "ConnectionError"
    )


def test_a_dataset_error_is_looked_through_to_the_exception_inside():
    text = (
        "KeyError: 'instruction'\n\nThe above exception was the direct cause of the following exception:\n\n"
        "datasets.builder.DatasetGenerationError: An error occurred while generating the dataset"
    )
    assert verdict_of(text).reason == "KeyError"


def test_what_the_job_survived_is_not_its_end():
    steps = "\n".join(f"iteration {i} | loss: 2.0" for i in range(10))
    text = f"ConnectionError: metrics service is down\n{steps}\nZeroDivisionError: division by zero"
    assert verdict_of(text).reason == "ZeroDivisionError"


def test_a_missing_path_explains_the_exception_that_it_leads_to():
    text = "[WARN] imread_('a.jpg'): can't open/read file: check file path/integrity\nAttributeError: 'NoneType' object has no attribute 'shape'"
    assert verdict_of(text).reason == "FileNotFoundError"


def test_code_lines_of_a_traceback_are_no_evidence():
    text = '  File "a.py", line 3, in f\n    raise KeyError("x") from OSError\n  File "b.py", line 9, in g\n    h()\nTypeError: f() missing'
    assert verdict_of(text).reason == "TypeError"


def test_the_rank_that_fell_silent_is_named(tmp_path):
    for rank in range(4):
        lines = [f"[2024-01-01 10:00:0{i},000] iteration {i} | loss: 1.0" for i in range(9)]
        if rank != 2:
            lines.append("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:2920")
        (tmp_path / f"node-{rank}_rank_{rank}.log").write_text("\n".join(lines) + "\n")
    verdict = diagnose(read_job(str(tmp_path))).verdict
    assert (verdict.reason, verdict.first_rank, verdict.hosts) == ("NodeFailure", 2, ("node-2",))


def test_the_rank_whose_collective_is_behind_is_named():
    text = "\n".join(TIMEOUT.format(r=r, s=800 if r != 1 else 799) for r in range(4))
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.first_rank) == ("NCCLTimeoutError", 1)


def test_the_one_rank_whose_message_differs_is_named(tmp_path):
    for rank in range(8):
        message = "KeyError: 'labels'" if rank == 5 else "ValueError: a peer left the group"
        (tmp_path / f"rank_{rank}.log").write_text(f"start\n{message}\n")
    verdict = diagnose(read_job(str(tmp_path))).verdict
    assert (verdict.reason, verdict.first_rank) == ("KeyError", 5)


def test_what_may_pass_by_itself_is_tried_once_more_even_before_the_first_step():
    start = "initializing process group, world size 8\n" + "".join(f"setting {i} is 7\n" for i in range(30))
    steps = "iteration 1 | loss: 2.0\niteration 2 | loss: 2.0\n"
    gone = "ConnectionRefusedError: [Errno 111] Connection refused\n"
    early = verdict_of(start + gone)
    assert early.action == "restart" and "restart once" in early.notes[0]
    assert (verdict_of(start + steps + gone).action, verdict_of(start + steps + gone).notes) == ("restart", ())
    assert verdict_of(gone).notes == (), "a snippet does not say when the job died"
    assert verdict_of(start + "KeyError: 'labels'\n").action == "stop"
    assert verdict_of(start + "CUDA error: uncorrectable ECC error encountered\n").action == "isolate_and_restart"


def test_an_unstable_loss_is_rolled_back():
    assert verdict_of("RuntimeError: Loss is nan at iteration 12").action == "rollback"
    assert verdict_of("AssertionError: Rank 3: found NaN in local forward loss calculation").action == "rollback"


def test_an_empty_log_is_unknown():
    verdict = verdict_of("")
    assert (verdict.reason, verdict.confidence, verdict.evidence) == ("Unknown", 0.0, ())


def test_torchruns_summary_names_rank_and_host_of_a_killed_process():
    text = (
        "iteration 1 loss: 1\niteration 2 loss: 1\n[rank0]: RuntimeError: Connection closed by peer [10.0.0.1]:9\n"
        f"{CHILD_FAILED}\nRoot Cause (first observed failure):\n[0]:\n  time      : 2024-01-01\n  host      : node-7\n"
        "  rank      : 9 (local_rank: 1)\n  exitcode  : -9 (pid: 12)\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL)"
    )
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.first_rank, verdict.hosts) == ("Unknown", 9, ("node-7",))
    assert verdict.action == "restart", "its launcher still runs there, so the host is not lost"


def summary_of(failures, first):
    """torchrun's list of failures: (rank, exit code) of each, and which it observed first."""

    def block(n, rank, code):
        return (
            f"[{n}]:\n  time      : 2024-01-01\n  host      : node-{rank // 4}\n  rank      : {rank} (local_rank: {rank % 4})\n"
            f"  exitcode  : {code} (pid: {900 + rank})\n  error_file: <N/A>\n  traceback : x\n"
        )

    others = "".join(block(n, *f) for n, f in enumerate((f for f in failures if f[0] != first), start=1))
    root = "".join(block(0, *f) for f in failures if f[0] == first)
    return f"{CHILD_FAILED}\nFailures:\n{others}Root Cause (first observed failure):\n{root}"


WATCHDOG = "[E ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"
STEPS = "".join(f"step {i} | loss: 2.0\n" for i in range(9))


def test_the_launchers_first_failure_may_be_a_victim_of_the_rank_that_raised():
    for bad in range(8):
        victims = [r for r in range(8) if r != bad]
        text = STEPS + "KeyError: 'labels'\n" + "".join(WATCHDOG.format(r=r) + "\n" for r in victims)
        text += summary_of([(r, -6 if r != bad else 1) for r in range(8)], first=victims[0])
        verdict = verdict_of(text)
        assert (verdict.reason, verdict.first_rank) == ("KeyError", bad)


def test_exit_codes_tell_who_raised_where_nobody_else_names_itself():
    text = STEPS + "KeyError: 'labels'\n" + summary_of([(0, -6), (1, -15), (2, 1), (3, -6)], first=0)
    assert verdict_of(text).first_rank == 2


def test_where_several_may_have_raised_no_rank_is_named():
    text = STEPS + "KeyError: 'labels'\n" + WATCHDOG.format(r=0) + "\n" + summary_of([(0, -6), (1, 1), (2, 1)], first=0)
    assert verdict_of(text).first_rank is None


def test_a_rank_that_left_no_log_is_noticed_and_no_other_host_is_blamed(tmp_path):
    for rank in (0, 1, 3):
        lines = [f"iteration {i} | loss: 1.0" for i in range(9)]
        lines.append("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:2920")
        (tmp_path / f"node-{rank}_rank_{rank}.log").write_text("\n".join(lines) + "\n")
    verdict = diagnose(read_job(str(tmp_path))).verdict
    assert (verdict.first_rank, verdict.hosts) == (2, ())
    assert verdict.notes == ("rank 2 left no log in this folder",)


def test_what_explains_a_later_error_never_loses_depth_by_it():
    kernel = "Indexing.cu:1141: f: block: [6,0,0], thread: [1,0,0] Assertion `a < b` failed."
    text = f"{kernel}\nRuntimeError: NCCL communicator was aborted on rank 3.\nValueError: not the cause"
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.action) == ("AssertionError", "stop")


def test_a_killed_process_outranks_the_tracebacks_of_its_victims():
    victim = (
        "[rank{r}]: Traceback (most recent call last):\n"
        '[rank{r}]:   File "/x/torch/distributed/distributed_c10d.py", line 3252, in all_reduce\n'
        "[rank{r}]:     work.wait()\n[rank{r}]: RuntimeError: the remote end aborted the operation\n"
    )
    text = STEPS + "".join(victim.format(r=r) for r in (0, 1, 3))
    text += summary_of([(0, -15), (1, -15), (2, -9), (3, -15)], first=2)
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.first_rank, verdict.hosts) == ("Unknown", 2, ("node-0",))
    assert verdict.says == "killed by SIGKILL: the kernel's memory killer or a person"


def test_frames_say_what_failed_where_the_log_ends_before_the_exception():
    frames = 'Traceback (most recent call last):\n  File "train.py", line 3, in save\n    upload(x)\n  File "/x/{lib}", line 7, in call\n    return f('
    for lib, reason in (
        ("botocore/client.py", "S3StorageError"),
        ("wandb/sdk/wandb_init.py", "ConnectionError"),
        ("datasets/builder.py", "DatasetLoadingError"),
        ("project/train.py", "Unknown"),
    ):
        assert verdict_of(frames.format(lib=lib)).reason == reason


@pytest.mark.parametrize(
    ("line", "reason", "action"),
    [
        ("OSError: [Errno 116] Stale file handle: '/nfs/ckpt/step_10.pt'", "OSError", "restart"),
        ("OSError: [Errno 5] Input/output error: '/data/shard-3'", "OSError", "restart"),
        ("OSError: [Errno 28] No space left on device: '/ckpt/x'", "OSError", "stop"),
        ("Fatal Python error: Bus error", "RuntimeError", "restart"),
        ("bash: line 1: 4412 Killed   python train.py", "Unknown", "restart"),
        ("[19071.9] Memory cgroup out of memory: Killed process 4178 (python)", "OutOfMemoryError", "stop"),
        ("botocore.exceptions.ParamValidationError: Parameter validation failed:", "S3StorageError", "stop"),
    ],
)
def test_only_what_would_fail_again_is_stopped(line, reason, action):
    verdict = verdict_of(f"step 1 | loss: 2.0\nstep 2 | loss: 2.0\n{line}\n")
    assert (verdict.reason, verdict.action) == (reason, action)


def test_the_rank_that_never_timed_out_is_the_one_that_was_waited_for(tmp_path):
    gloo = "RuntimeError: [gloo/transport/tcp/{}] {}"
    late = gloo.format("pair.cc:553", "Connection closed by peer [127.0.0.1]:22251.")
    waited = gloo.format("unbound_buffer.cc:78", "Timed out waiting 5000ms for recv operation to complete")
    for rank in range(3):
        text = "step 1/9 loss 2.0\nstep 2/9 loss 2.0\n" + (late if rank == 2 else waited)
        (tmp_path / f"rank_{rank}.log").write_text(text + "\n")
    verdict = diagnose(read_job(str(tmp_path))).verdict
    assert (verdict.reason, verdict.first_rank) == ("NCCLTimeoutError", 2)


def test_a_cancelled_step_is_no_lost_node():
    lines = [f"step {n}/900 loss 0.4" for n in range(9)]
    lines += ["srun: Job step aborted: Waiting up to 5 seconds for job step to finish."]
    lines += ["slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-16T01:37:29 ***"]
    verdict = verdict_of("\n".join(lines))
    assert (verdict.reason, verdict.hosts) == ("Unknown", ())


@pytest.mark.parametrize(
    "line",
    [
        "mpirun noticed that process rank 3 with PID 77 on node gpu-7 exited on signal 9 (Killed).",
        "srun: error: gpu-7: task 3: Killed",
        "train.sh: line 12: 4411 Killed    python train.py",
        "exitcode  : -9 (pid: 12)",
        "[2026-11-02 10:04:08,310] [ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = -9",
    ],
)
def test_a_kill_of_which_nothing_more_is_known_is_said_in_one_way(line):
    verdict = verdict_of(STEPS + line + "\n")
    assert (verdict.reason, verdict.outcome, verdict.cause.kind, verdict.action) == (
        "Unknown",
        "failed",
        "signal",
        "restart",
    )
    assert verdict.says == "killed by SIGKILL: the kernel's memory killer or a person"


@pytest.mark.parametrize(
    "line",
    [
        "Memory cgroup out of memory: Killed process 4412 (python) total-vm:1kB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some of the step tasks have been OOM Killed.",
    ],
)
def test_the_memory_killer_that_says_so_is_named(line):
    assert verdict_of(STEPS + line + "\nKilled\n").reason == "OutOfMemoryError"
