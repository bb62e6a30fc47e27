"""Families of failures beyond one vendor and one launcher, each told by a line as its system would write it."""

import pytest

from prism.evidence.logs import diagnose, read_text

LINES = {
    "CUDAError": [
        "Memory access fault by GPU node-2 (Agent handle: 0x55aa) on address 0x7f00dead0000. Reason: Unknown.",
        "RuntimeError: HIP error: an illegal memory access was encountered",
        "rocBLAS error: Could not initialize Tensile host",
        "HW Exception by GPU node-5 (Agent handle: 0x1234) reason :GPU Hang",
        "[  812.000001] amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=12, emitted seq=14",
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Core halted unexpectedly at pc 12",
        "RuntimeError: NPU function error: aclrtSynchronizeStream, error code is 507015",
        "RuntimeError: HIP error: invalid device function",
    ],
    "ECCError": [
        "[  812.000001] amdgpu 0000:03:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
        "hipErrorECCNotCorrectable: uncorrectable ECC error encountered",
    ],
    "NVLinkError": ["[  812.000001] amdgpu 0000:03:00.0: amdgpu: xgmi pcs fatal err on link 3, xgmi down"],
    "OutOfMemoryError": [
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 4.00 GiB",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 1073741824 bytes",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB",
        "ray.exceptions.ObjectStoreFullError: Failed to put object in object store because it is full",
        "Memory on the node (IP: 10.0.0.4) was 250.1GB / 256.0GB, which exceeds the memory usage threshold of 0.95",
        "Last State:     Terminated\n  Reason:       OOMKilled\n  Exit Code:    137",
    ],
    "NCCLTimeoutError": [
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: step_7",
        "EI0002: [hccl] notify wait timeout, stream 12, remote rank 5",
        "HCCL: connect timed out after 120 s, local rank 3, remote rank 4",
        "W horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be reduced, gathered or "
        "broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.",
    ],
    "NCCLRemoteError": ["horovod.common.exceptions.HorovodInternalError: Horovod has been shut down"],
    "NodeFailure": [
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/task:3",
        "Warning  Evicted  3m  kubelet  The node was low on resource: ephemeral-storage",
        "pod/llm-3: status Failed, reason OutOfnvidia.com/gpu",
        "Warning  NodeNotReady  3m  node-controller  Node is not ready",
        "UnexpectedAdmissionError: Allocate failed due to no healthy devices present",
        "ray.exceptions.OwnerDiedError: Failed to get object 00ff, its owner died",
        "(raylet) The node with node id: 3f and address: 10.0.0.7 has been marked dead because the detector has missed too many heartbeats",
        "[2024-03-02T11:20:01.123] error: Nodes gpu-17 not responding, setting DOWN",
    ],
    "ConnectionError": [
        "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api: offline mode is enabled",
        "OSError: We couldn't connect to 'https://huggingface.co' to load this file, and it is not in the cached files",
        "wandb.errors.CommError: Run initialization has timed out after 90.0 sec",
        "wandb: ERROR Internal error: connection to wandb-core timed out",
        "horovodrun: Timed out waiting for tasks to start. Check connectivity between hosts.",
        "Failed to connect to GCS within 60 seconds.",
        "Warning  Failed  2m  kubelet  Error: ErrImagePull",
    ],
    "PermissionError": ["wandb.errors.UsageError: api_key not configured (no-tty). Call wandb.login()"],
    "S3StorageError": [
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation",
        "s3fs.core.S3Error: failed to list s3://bucket/data: 503",
    ],
    "OSError": ['Warning  FailedMount  4m  kubelet  MountVolume.SetUp failed for volume "data"'],
}


@pytest.mark.parametrize(("reason", "line"), [(r, line) for r, lines in LINES.items() for line in lines])
def test_each_family_is_named_right(reason, line):
    assert diagnose(read_text(line)).verdict.reason == reason


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: HIP error: invalid device function",
        "wandb.errors.UsageError: api_key not configured (no-tty). Call wandb.login()",
    ],
)
def test_what_a_restart_would_meet_again_stops(line):
    assert diagnose(read_text(line)).verdict.action == "stop"


def test_the_cause_is_found_among_what_its_peers_say():
    text = (
        "(TrainWorker pid=11, ip=10.0.0.4) KeyError: 'labels'\n"
        "ray.exceptions.RayTaskError(KeyError): ray::TrainWorker.step() (pid=11, ip=10.0.0.4)\n"
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
    )
    assert diagnose(read_text(text)).verdict.reason == "KeyError"
    stalled = (
        "[1,0]<stderr>:Missing ranks: 3\n[1,3]<stderr>:FileNotFoundError: [Errno 2] No such file or directory: 'x'\n"
    )
    verdict = diagnose(read_text(stalled)).verdict
    assert (verdict.reason, verdict.first_rank) == ("FileNotFoundError", 3)
