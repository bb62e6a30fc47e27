"""What schedulers, launchers and container runtimes refuse, and when that is no fault of a machine."""

import pytest

from prism.evidence.logs import diagnose, read_text

STEPS = "".join(f"step {i} | loss: 2.0\n" for i in range(9))


def verdict_of(text):
    return diagnose(read_text(text)).verdict


@pytest.mark.parametrize(
    ("text", "reason", "action"),
    [
        (
            "srun: error: Task launch for StepId=7.0 failed on node gpu-17: Job credential expired\n"
            "srun: error: Application launch failed: Job credential expired\n"
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
            "srun: error: Timed out waiting for job step to complete\n",
            "NodeFailure",
            "restart",
        ),
        (
            "[2024-03-02T11:20:01.123] error: Credential signature check: Credential replayed\n"
            "[2024-03-02T11:20:01.200] error: Invalid job credential from 500@10.0.0.7: Invalid job credential\n",
            "NodeFailure",
            "restart",
        ),
        (
            "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect failure)\n",
            "ConnectionError",
            "restart",
        ),
        ("srun: error: Unable to confirm allocation for job 12: Socket timed out\n", "ConnectionError", "restart"),
        (
            "slurmstepd: error: *** JOB 12 ON gpu-17 CANCELLED AT 2024-03-02T11:20:01 DUE TO PREEMPTION ***\n"
            "srun: error: gpu-17: task 0: Terminated\n",
            "NodeFailure",
            "restart",
        ),
        (
            "LAST SEEN   TYPE      REASON      OBJECT        MESSAGE\n"
            "3m          Warning   Evicted     pod/llm-3     Pod ephemeral local storage usage exceeds the total limit of containers 20Gi.\n",
            "OSError",
            "stop",
        ),
        (
            "LAST SEEN   TYPE      REASON             OBJECT        MESSAGE\n"
            "3m          Warning   FailedScheduling   pod/llm-3     0/8 nodes are available: 8 Insufficient nvidia.com/gpu.\n",
            "NodeFailure",
            "restart",
        ),
        (
            "n1:12:34 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\nLast error:\nBootstrap : no socket interface found\n",
            "NetworkError",
            "restart",
        ),
        ("srun: error: gpu-17: task 3: lost contact with the step daemon\n", "NodeFailure", "restart"),
    ],
)
def test_what_a_scheduler_refuses_or_takes_back_accuses_no_host(text, reason, action):
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.action, verdict.hosts) == (reason, action, ())


def test_a_launch_that_a_node_did_not_answer_still_blames_the_node():
    lost = "srun: error: Task launch for StepId=7.0 failed on node gpu-17: Communication connection failure\n"
    verdict = verdict_of(lost + "srun: error: Application launch failed: Communication connection failure\n")
    assert (verdict.reason, verdict.action, verdict.hosts) == ("NodeFailure", "isolate_and_restart", ("gpu-17",))


@pytest.mark.parametrize(
    ("code", "signal", "reason"), [(-7, "SIGBUS", "DataloaderKilled"), (-11, "SIGSEGV", "RuntimeError")]
)
def test_a_rank_that_crashed_by_itself_is_no_lost_node(code, signal, reason):
    text = (
        f"{STEPS}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2024-01-01\n  host      : node-7\n"
        f"  rank      : 9 (local_rank: 1)\n  exitcode  : {code} (pid: 12)\n  error_file: <N/A>\n"
        f"  traceback : Signal {-code} ({signal}) received by PID 12"
    )
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.action, verdict.first_rank, verdict.hosts) == (reason, "restart", 9, ())


@pytest.mark.parametrize(
    ("text", "reason", "action"),
    [
        (
            "n1:12:34 [6] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab12Cd to 9637892 bytes, error: No space left on device (28)\n"
            "n1: Test NCCL failure common.cu:958 'internal error'\n",
            "OSError",
            "stop",
        ),
        ("n1:12:34 [3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n", "OSError", "stop"),
        (
            "n1:12:34 [0] misc/shmutils.cc:93 NCCL WARN Call to open failed: No such file or directory\n"
            "n1:12:34 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-Ab12Cd (size 14), error: No such file or directory (2)\n",
            "OSError",
            "restart",
        ),
        ("['python', '-u', 'train.py', '--local_rank=3'] exits with return code = -7\n", "DataloaderKilled", "restart"),
        ("['python', '-u', 'train.py', '--local_rank=3'] exits with return code = -11\n", "RuntimeError", "restart"),
        (
            "docker: Error response from daemon: OCI runtime create failed: stderr: nvidia-container-cli: initialization error: driver error: failed to process request: unknown.\n",
            "CUDAError",
            "restart",
        ),
        (
            "worker-1:46:52 [0] nccl_ofi_net.c:1512 NCCL WARN NET/OFI Request completed with error. RC: 21. Error: unknown error.\n"
            "RuntimeError: NCCL communicator was aborted on rank 0.\n",
            "NetworkError",
            "restart",
        ),
        (
            'wandb.errors.errors.CommError: failed to upsert bucket: returned error 403 Forbidden: {"errors":[{"message":"permission denied"}]}\n',
            "PermissionError",
            "stop",
        ),
        (
            'wandb.errors.errors.CommError: Error uploading run: returned error 400: {"errors":[{"message":"run config is too large"}]}\n',
            "ConnectionError",
            "stop",
        ),
        (
            "Smudge error: Error downloading a.bin: batch response: This repository is over its data quota.\nfatal: a.bin: smudge filter lfs failed\n",
            "ConnectionError",
            "stop",
        ),
        ("Lmod has detected the following error: The following module(s) are unknown: \"cuda/12.9\"\n", "FileNotFoundError", "stop"),
        ("ERROR: Unable to locate a modulefile for 'cuda/12.9'\n", "FileNotFoundError", "stop"),
        ("[22342.964952] [drm:mes_submit_pkt [amdgpu]] *ERROR* MES failed to response msg=3\n", "CUDAError", "isolate_and_restart"),
        ("[rank60]: FileNotFoundError: [Errno 2] No such file or directory: '/tmp/torchinductor_u/triton/4/5e/k.cubin.tmp.pid_9_1'\n", "FileNotFoundError", "restart"),
        ("[rank3]: OSError: [Errno 16] Device or resource busy: '/home/u/.triton/cache/ab/utils.so' -> '/home/u/.triton/cache/ab/utils.so.tmp'\n", "OSError", "restart"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW\n", "CUDAError", "stop"),
        ('srun: error: "--mpi=pmix" -- long invalid MPI type, --mpi=list for acceptable types.\n', "ArgumentError", "stop"),
        ("10.0.0.33 [3]   (1) Resource exhausted: Attempting to allocate 180.59M. That was not possible. There are 142.58M free.\n", "OutOfMemoryError", "stop"),
        ("[2025-07-04T00:54:23.932] update_node: node gpu-8 reason set to: Scheduler health check failed\n", "NodeFailure", "isolate_and_restart"),
        ("slurmstepd: error: execve(): /var/spool/slurmd/job00012/slurm_script: Permission denied\n", "PermissionError", "stop"),
        ("srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.\n", "ArgumentError", "stop"),
        ("E1224 22:35:53.165575   26868 program.cc:1331] TC0: *** Halt is unexpected, all pending programs will fail.\n", "CUDAError", "restart"),
    ],
)  # fmt: skip
def test_the_cause_is_named_as_the_runtime_tells_it(text, reason, action):
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.action) == (reason, action)


@pytest.mark.parametrize(
    "text",
    [
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See the stack trace above.\n",
        "ERROR 07-23 19:34:55 [core.py:586] EngineCore failed to start.\n",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit type: SYSTEM_ERROR\n",
        "slurmstepd: error: pyxis: failed to import docker image\n"
        "slurmstepd: pyxis: could not remove squashfs /tmp/9.0.squashfs: No such file or directory\n",
        "srun: error: Unable to create step for job 12: Job/step already completing or completed\n",
    ],
)
def test_a_line_that_only_reports_an_end_names_no_cause(text):
    assert verdict_of(text).reason == "Unknown"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "n1:79:79 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n"
            "n1:79:79 [0] ofi_domain_get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f failed: Invalid argument\n"
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled system error\n",
            "NetworkError",
        ),
        (
            "RuntimeError: Socket Timeout\n"
            "gpu-8:796:796 [1] NCCL INFO Bootstrap : Using enp67s0:10.0.0.8<0>\n"
            "gpu-8:796:796 [1] NCCL INFO NET/IB : No device found.\n"
            "gpu-8:795:822 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.0.0.9<54263> failed : No route to host\n",
            "NetworkError",
        ),
        ("[1668693503.473099] [n1:1188443:0] ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory\n", "NetworkError"),
    ],
)  # fmt: skip
def test_a_call_that_the_network_refused_accuses_no_host(text, reason):
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.action, verdict.hosts) == (reason, "restart", ())


def test_a_completion_error_still_blames_the_peer():
    broken = "n4:98:13 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<44206> with status={} opcode=1 len=1 vendor err 129\n"
    verdict = verdict_of(broken.format(12) + broken.format(5).replace("opcode", "(flushed) opcode"))
    assert (verdict.reason, verdict.action, verdict.hosts) == ("NetworkError", "isolate_and_restart", ("10.0.0.9",))


@pytest.mark.parametrize(
    "claim",
    [
        "10.0.0.7:99:99 [3] NCCL WARN socketStartConnect: Connect to 10.0.0.7<45763> failed : No route to host\n",
        "slurmstepd: error: *** JOB 12 ON gpu-17 CANCELLED AT 2024-03-02T11:20:01 DUE TO PREEMPTION ***\n",
        "srun: error: Task launch for StepId=7.0 failed on node gpu-17: Job credential expired\n",
    ],
)
def test_what_excuses_every_host_still_counts_least_where_a_job_can_have_printed_it(claim):
    assert verdict_of(STEPS + claim + STEPS[:33] + "Training finished.\n").reason == "none"
    assert verdict_of(STEPS + claim + "KeyError: 'labels'\n").reason == "KeyError"


def test_a_servers_access_log_is_no_evidence():
    served = 'INFO:     10.0.0.7:4711 - "POST /v1/completions HTTP/1.1" {}\n'
    dead = "vllm.engine.async_llm_engine.AsyncEngineDeadError: Task finished unexpectedly.\n"
    assert verdict_of(dead + served.format("500 Internal Server Error")).reason == "Unknown"
    assert verdict_of(served.format("404 Not Found") + served.format("200 OK")).reason in ("Unknown", "none")


def test_a_gpu_that_the_kernel_misses_is_named_also_where_its_message_has_several_lines():
    text = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
        "[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
    )
    assert (verdict_of(text).reason, verdict_of(text).action) == ("CUDAError", "isolate_and_restart")


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("slurmstepd: error: execve(): /var/spool/slurmd/job00012/slurm_script: No such file or directory\n", "FileNotFoundError", "spool folder"),
        ("srun: error: Unable to create step for job 12: Requested node configuration is not available\n", "ArgumentError", "allocation"),
        ("Bus error (core dumped)\n", "DataloaderKilled", "/dev/shm"),
        ("Illegal instruction (core dumped)\n", "RuntimeError", "processor"),
    ],
)  # fmt: skip
def test_the_advice_fits_what_a_scheduler_or_a_signal_says(text, reason, words):
    verdict = verdict_of(text)
    assert verdict.reason == reason and words in verdict.mitigation
