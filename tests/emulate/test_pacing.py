"""Live pacing: ops end when their virtual peers would have ended them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from prism.emulate.inside.pacing import HostPacer, PacedCall, Rule, Schedule, read_schedule, sleep_until
from prism.emulate.inside.plan import FaultPlan, RunPlan
from prism.emulate.inside.rehearsal import Call, find_fault, meet_fault


class Peers:
    """Virtual peers that know when everything ends."""

    def __init__(self, duration_ns: int, ticket: int = 0) -> None:
        self._duration_ns, self._ticket = duration_ns, ticket
        self._issued: list[int] = []

    def ask(self, verb: str, *values: Any) -> int | None:
        if verb == "issue":
            self._issued.append(values[3])
            return self._ticket
        return self._issued[-1] + self._duration_ns if verb == "due" else 0


CALL = PacedCall("all_reduce", 8, "0", -1)


def test_a_wait_lasts_until_the_peers_say_it_is_over() -> None:
    pacer = HostPacer(Peers(20_000_000))  # type: ignore[arg-type]
    pacer.start_step(1)
    began = time.perf_counter_ns()
    pacer.issue(CALL, 0)
    pacer.finish(0)
    assert time.perf_counter_ns() - began >= 20_000_000


def test_start_up_is_not_held_and_unknown_calls_are_counted() -> None:
    pacer = HostPacer(Peers(10**12, ticket=-1))  # type: ignore[arg-type]
    began = time.perf_counter_ns()
    pacer.issue(CALL, 0)
    pacer.start_step(1)
    pacer.issue(CALL, 1)
    pacer.finish(0)
    pacer.finish(1)
    sleep_until(0)
    assert time.perf_counter_ns() - began < 50_000_000
    assert pacer.diverged == 1


def test_ops_that_differ_from_the_schedule_pass_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    rule = {"kind": "all_reduce", "bytes": 8, "back": 0, "gap_ns": 0, "duration_ns": 1}
    path.write_text(json.dumps({"rules": [rule], "slow_rules": [{**rule, "duration_ns": 9}], "slow_from": 3}))
    schedule = read_schedule(path)
    assert schedule.next_rule("all_reduce", 8) is None  # start-up is not held
    schedule.start_step(1)
    assert schedule.next_rule("all_reduce", 8) == Rule("all_reduce", 8, 0, 0, 1)
    assert schedule.next_rule("all_reduce", 8) is None
    schedule.start_step(2)
    assert schedule.next_rule("broadcast", 8) is None
    assert schedule.diverged == 2
    schedule.start_step(3)
    assert schedule.next_rule("all_reduce", 8) == Rule("all_reduce", 8, 0, 0, 9)


def test_a_fault_stops_its_own_groups_first_and_all_others_a_step_later() -> None:
    fault = FaultPlan(kind="hang", rank=5, step=3)
    assert find_fault([fault], range(4, 8), 2) is None
    assert find_fault([fault], range(4, 8), 3) is fault
    assert find_fault([fault], range(4), 3) is None
    assert find_fault([fault], range(4), 4) is fault


def _call(backend: str, timeout_s: float = 0.01) -> Call:
    return Call("all_reduce", 7, backend, 4096, timeout_s, "train.py:3")


@pytest.mark.parametrize(
    ("kind", "message"),
    [("die", "Connection closed by peer"), ("wrong_size", "op.preamble.length"), ("hang", "Timed out waiting 10ms")],
)
def test_gloo_fails_in_its_own_words(kind: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        meet_fault(FaultPlan(kind=kind, rank=1, step=0), _call("gloo"))  # type: ignore[arg-type]


def test_nccl_reports_a_dead_peer_as_a_backend_error() -> None:
    import torch.distributed as dist

    with pytest.raises(dist.DistBackendError, match="ncclRemoteError"):
        meet_fault(FaultPlan(kind="die", rank=1, step=0), _call("nccl"))


def test_a_plan_survives_its_file() -> None:
    plan = RunPlan(
        rank=3, world_size=8, gpus_per_node=4, output="x", live_ranks=(0, 3), twins=(0,) * 8,
        faults=(FaultPlan(kind="slow", rank=2, step=1, factor=3.0),),
    )  # fmt: skip
    assert RunPlan.from_json(plan.to_json()) == plan


def test_ranks_see_what_torchrun_would_set() -> None:
    plan = RunPlan(rank=13, world_size=16, gpus_per_node=8, output="")
    seen = plan.environment(num_devices=0)
    assert (seen["RANK"], seen["LOCAL_RANK"], seen["GROUP_RANK"], seen["LOCAL_WORLD_SIZE"]) == ("13", "5", "1", "8")
    assert plan.environment(num_devices=1)["LOCAL_RANK"] == "0"


def test_schedules_start_empty() -> None:
    assert Schedule([]).next_rule("barrier", 0) is None
