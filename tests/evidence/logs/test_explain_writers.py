"""Who wrote a line decides what it may prove: what the job itself printed never speaks against a host."""

import pytest

from prism.evidence.logs import diagnose, read_job, read_text
from prism.evidence.logs.origins import parse_line

STEPS = "".join(f"step {i} | loss: {2 / i:.3f}\n" for i in range(1, 41))
KEY_ERROR = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'labels'\n"
TIMEOUTS = "".join(
    f"[rank{r}]:[E ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
    for r in (0, 1, 3)
)
CLAIMS = [
    'sample 12: "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus on node-12"',
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus. node-12",
    "May  3 10:11:12 node-12 kernel: NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error",
    "[12345.678901] NVRM: Xid (PCI:0000:3b:00): 48, An uncorrectable double bit error on node-12",
    "slurmstepd: error: *** STEP 1.0 ON node-12 CANCELLED AT 2024-03-02T11:20:01 DUE TO NODE FAILURE ***",
    "Node node-12 is DOWN, not responding",
    "node-12:77:99 [3] NCCL WARN NET/IB : Got completion from peer node-12<4791> with error 12, vendor err 129",
    "Warning  NodeNotReady  3m  node-controller  Node node-12 is not ready",
    "kernel: mlx5_core 0000:0c:00.0 ib0: Link down on node-12",
    "user asks: my log says uncorrectable ECC error on host node-12, what do I do?",
]


def verdict_of(text):
    return diagnose(read_text(text)).verdict


@pytest.mark.parametrize("prefix", ["", "[rank2]: ", "[default2]:", "2: "])
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_printed_sample_never_blames_a_host(claim, prefix):
    sample = f"{prefix}{claim}\n"
    for text in (
        STEPS + sample + STEPS + KEY_ERROR,
        STEPS + sample + KEY_ERROR,
        STEPS + sample + TIMEOUTS,
        STEPS + sample + STEPS + TIMEOUTS,
        STEPS + sample + STEPS + "Training finished.\n",
        STEPS + sample + STEPS,
    ):
        verdict = verdict_of(text)
        assert verdict.hosts == ()
        assert verdict.action != "isolate_and_restart"


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_printed_sample_does_not_hide_the_reason(claim):
    assert verdict_of(STEPS + claim + "\n" + STEPS + KEY_ERROR).reason == "KeyError"
    assert verdict_of(STEPS + claim + "\n" + KEY_ERROR).reason == "KeyError"
    assert verdict_of(STEPS + claim + "\n" + STEPS + TIMEOUTS).reason == "NCCLTimeoutError"
    assert verdict_of(STEPS + claim + "\n" + STEPS + "Training finished.\n").reason == "none"


def test_the_kernels_own_log_beside_the_job_blames_its_host(tmp_path):
    (tmp_path / "job.log").write_text(STEPS + TIMEOUTS)
    (tmp_path / "dmesg.log").write_text(
        "May  3 10:11:10 gpu17 kernel: usb 1-1: new device\n"
        "May  3 10:11:12 gpu17 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    verdict = diagnose(read_job(str(tmp_path))).verdict
    assert (verdict.reason, verdict.action, verdict.hosts) == ("CUDAError", "isolate_and_restart", ("gpu17",))


def test_slurms_last_words_in_the_jobs_own_file_blame_the_node_that_failed_and_not_the_one_that_speaks():
    end = "slurmstepd: error: *** STEP 7.0 ON gpu-16 CANCELLED AT 2024-03-02T11:20:01 DUE TO NODE FAILURE ***\n"
    aborted = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    failed = "srun: error: Node failure on gpu-17\n"
    verdict = verdict_of(STEPS + TIMEOUTS + end + aborted + failed)
    assert (verdict.reason, verdict.action, verdict.hosts) == ("NodeFailure", "isolate_and_restart", ("gpu-17",))
    assert verdict_of(STEPS + TIMEOUTS + end + aborted).hosts == ()
    assert verdict_of(STEPS + end + STEPS + TIMEOUTS).hosts == ()
    assert verdict_of(STEPS + end).hosts == (), "one line alone can have been printed by the job"


@pytest.mark.parametrize(
    ("raw", "writer"),
    [
        ("May  3 10:11:12 gpu17 kernel: NVRM: Xid (PCI:0): 79", "kernel"),
        ("[Tue Mar  5 11:20:01 2024] NVRM: Xid (PCI:0): 79", "kernel"),
        ("2024-03-05T11:20:01+0000 gpu17 nvidia-fabricmanager[99]: fatal", "kernel"),
        ("[2024-03-02T11:20:01.123] error: Node gpu-17 not responding", "scheduler"),
        ("slurmstepd: error: Detected 1 oom-kill event(s)", "scheduler"),
        ("2024-03-05T11:20:01+0000 gpu17 python[99]: NVRM: Xid (PCI:0): 79", "application"),
        ("[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog", "framework"),
        ("node-3:984:1357 [4] NCCL WARN bad", "framework"),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "launcher"),
        ("E1115 20:52:28.818000 30034 torch/distributed/elastic/multiprocessing/api.py:1002] failed", "launcher"),
        ("sample: NVRM: Xid 79", "application"),
    ],
)
def test_each_writer_is_known_by_its_frame(raw, writer):
    assert parse_line(raw).writer == writer


def test_a_header_cannot_be_forged_in_a_plain_log():
    forged = "\x1e1\t\tnode-12\t\t\tkernel\x1fNVRM: Xid (PCI:0): 79, GPU has fallen off the bus\n"
    assert verdict_of(STEPS + forged + TIMEOUTS).hosts == ()
    wrapped = '{"log": "\\u001e1\\t\\tnode-12\\t\\t\\tkernel\\u001fNVRM: Xid (PCI:0): 79\\n", "stream": "stdout"}\n'
    assert verdict_of(wrapped * 3).hosts == ()
