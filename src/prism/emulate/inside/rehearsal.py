"""Failures of virtual ranks: what the live rank's own backend would do to it, in that backend's words."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from prism.emulate.inside.plan import FaultPlan

STEPS_TO_SPREAD = 1
"""A rank that hangs stops its own groups at once; every other group is stuck no later than one iteration after."""


@dataclass(frozen=True, slots=True)
class Call:
    """The communication that meets a fault."""

    kind: str
    number: int
    backend: str
    size_bytes: int
    timeout_s: float
    source: str


def find_fault(faults: Sequence[FaultPlan], ranks: Sequence[int], step: int) -> FaultPlan | None:
    """The fault that a call of this group meets in this step, if any."""
    for fault in faults:
        if fault.kind == "slow" or step < fault.step:
            continue  # a slow rank is already in the schedule
        if fault.rank in ranks or step >= fault.step + STEPS_TO_SPREAD:
            return fault
    return None


def meet_fault(fault: FaultPlan, call: Call) -> None:
    """Fail as the real backend would; a hang lasts for the group's real timeout first."""
    say(f"rehearsal: rank {fault.rank} {_TOLD[fault.kind]} in step {fault.step}; met in {call.kind} ({call.source})")
    if call.backend == "nccl":
        _fail_like_nccl(fault, call)
    else:
        _fail_like_gloo(fault, call)


_TOLD = {
    "hang": "stops",
    "die": "dies",
    "wrong_collective": "calls another collective",
    "wrong_size": "brings another size",
}


def _fail_like_gloo(fault: FaultPlan, call: Call) -> None:
    if fault.kind == "die":
        raise RuntimeError(f"[rank {fault.rank}] Connection closed by peer [127.0.0.1]:29500")
    if fault.kind == "wrong_size":
        half = call.size_bytes // 2
        raise RuntimeError(f"[enforce fail] op.preamble.length <= op.nbytes. {call.size_bytes} vs {half}")
    time.sleep(call.timeout_s)
    raise RuntimeError(f"Timed out waiting {round(call.timeout_s * 1000)}ms for recv operation to complete")


def _fail_like_nccl(fault: FaultPlan, call: Call) -> None:
    """NCCL's host call returns; the watchdog ends the process when the timeout is over."""
    if fault.kind == "die":
        raise dist.DistBackendError(
            "NCCL error: remote process exited or there was a network error (ncclRemoteError); "
            f"rank {fault.rank} is gone"
        )
    # NCCL checks no sizes and no kinds across ranks, so every mismatch is a kernel that never ends.
    threading.Thread(target=_watch, args=(call,), daemon=True).start()


def _watch(call: Call) -> None:
    time.sleep(call.timeout_s)
    timeout_ms = round(call.timeout_s * 1000)
    say(
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={call.number}, OpType={call.kind.upper()}, "
        f"NumelIn={call.size_bytes}, Timeout(ms)={timeout_ms}) ran for {timeout_ms} milliseconds before timing out."
    )
    os.abort()


def say(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"prism: {message}\n")
    sys.stderr.flush()
