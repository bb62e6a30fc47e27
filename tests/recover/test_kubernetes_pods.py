"""From what a cluster says of pods to how an attempt stands: hand-made events, no cluster."""

from __future__ import annotations

from typing import Any

import pytest

from prism.recover.supervise import events
from prism.recover.supervise.actions import Cordon, Explain, Launch
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.exits import read_ending
from prism.recover.supervise.launchers.kubernetes.nodes import is_unreachable
from prism.recover.supervise.launchers.kubernetes.pods import (
    Judging,
    WorkloadState,
    judge,
    read_pod,
    read_workload,
)
from prism.recover.supervise.state import JobState

AT = "2026-03-01T10:00:0"


def pod(
    index: int = 0, node: str = "", phase: str = "Running", ended: dict[str, Any] | None = None, **more: Any
) -> dict:
    """A pod of an Indexed Job; `more` are fields of its status, or `deleted`."""
    meta: dict[str, Any] = {
        "name": f"train-{index}-abcde",
        "uid": f"uid-{index}",
        "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
    }
    if more.pop("deleted", False):
        meta["deletionTimestamp"] = f"{AT}5Z"
    policy = more.pop("restart_policy", "Never")
    state = {"terminated": ended} if ended else {"running": {"startedAt": f"{AT}0Z"}}
    status = {"phase": phase, **more}
    if phase != "Pending":
        status.setdefault("containerStatuses", [{"name": "trainer", "state": state, "restartCount": 0}])
    spec = {"nodeName": node or f"node-{index}", "restartPolicy": policy, "containers": [{"name": "trainer"}]}
    return {"metadata": meta, "spec": spec, "status": status}


def ended(code: int, second: int = 1, reason: str = "Error") -> dict[str, Any]:
    return {"exitCode": code, "reason": reason, "finishedAt": f"{AT}{second}Z"}


def target(reason: str) -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": f"{AT}1Z"}]


def see(*pods: dict, num: int | None = None, workload: WorkloadState | None = None, **judging: Any):
    states = [read_pod(p) for p in pods]
    return judge(states, workload or WorkloadState(name="train", num_pods=num or len(pods)), Judging(**judging))


def test_pods_that_run_are_shown_on_their_nodes_in_the_order_of_ranks():
    look = see(pod(1, "b"), pod(0, "z"))
    assert look.running and not look.queued and look.hosts == ("z", "b")


def test_a_set_that_is_not_complete_yet_waits_in_the_queue():
    assert see(pod(0), num=2).queued
    assert see(pod(0), pod(1, phase="Pending")).queued
    assert see(num=2).queued


def test_a_killed_rank_ends_the_attempt_with_its_code_and_node():
    look = see(pod(0), pod(1, phase="Failed", ended=ended(137, reason="OOMKilled")))
    assert (look.running, look.code, look.first_failed, look.lost) == (False, 137, "node-1", False)
    assert read_pod(pod(1, phase="Failed", ended=ended(137, reason="OOMKilled"))).reason == "OOMKilled"


def test_of_two_failures_in_one_second_the_kill_came_before_the_exit_code():
    look = see(pod(0, phase="Failed", ended=ended(1)), pod(1, phase="Failed", ended=ended(137)))
    assert look.first_failed == "node-1" and look.code == 137


def test_a_pod_that_a_controller_deleted_after_a_failure_is_not_the_cause():
    """Else every fault of a program would look like a preemption, which is restarted without end."""
    failed = pod(1, phase="Failed", ended=ended(1, 3))
    bystander = pod(0, phase="Failed", ended=ended(143, 3), deleted=True)
    look = see(bystander, failed, workload=WorkloadState(name="train", failed="BackoffLimitExceeded", num_pods=2))
    assert look.first_failed == "node-1" and look.code == 1


@pytest.mark.parametrize("reason", ["EvictionByEvictionAPI", "PreemptionByScheduler", "TerminationByKubelet"])
def test_a_disrupted_pod_was_told_to_go_even_if_it_saved_and_left_with_0(reason: str, tmp_path):
    gone = pod(0, phase="Succeeded", ended=ended(0), conditions=target(reason), deleted=True)
    look = see(gone, pod(1, phase="Succeeded", ended=ended(0)))
    assert look.code == 143 and look.first_failed == "node-0"
    assert read_ending([], look.code).told_to_go


@pytest.mark.parametrize("reason", ["Evicted", "Preempted", "NodeShutdown"])
def test_reasons_of_older_clusters_say_the_same(reason: str):
    evicted = pod(0, phase="Failed", reason=reason, containerStatuses=[])
    assert see(evicted, pod(1)).code == 143


def test_a_pod_that_is_saving_before_it_goes_is_left_to_it():
    assert see(pod(0, deleted=True, conditions=target("EvictionByEvictionAPI")), pod(1)).running


@pytest.mark.parametrize("sight", [{"phase": "Unknown"}, {"phase": "Running", "reason": "NodeLost"}])
def test_a_pod_of_a_lost_node_names_it(sight: dict):
    look = see(pod(0), pod(1, **sight))
    assert look.lost and look.first_failed == "node-1" and look.code is None


def test_a_node_that_the_cluster_cannot_reach_is_lost_with_what_runs_there():
    look = see(pod(0), pod(1), lost_nodes=frozenset({"node-1"}))
    assert look.lost and look.first_failed == "node-1"
    finished = see(pod(0, phase="Succeeded", ended=ended(0)), lost_nodes=frozenset({"node-0"}))
    assert not finished.lost and finished.code == 0


def test_only_silence_of_a_kubelet_makes_a_node_unreachable():
    def node(status: str) -> dict:
        return {"status": {"conditions": [{"type": "Ready", "status": status}]}}

    assert is_unreachable(node("Unknown"))
    assert not is_unreachable(node("False")) and not is_unreachable(node("True")) and not is_unreachable({})


def test_all_pods_done_or_the_workloads_word_ends_it_well():
    done = [pod(i, phase="Succeeded", ended=ended(0)) for i in range(2)]
    assert see(*done).code == 0
    assert see(done[0], workload=WorkloadState(name="t", complete=True)).code == 0
    assert see(done[0], num=2).running


def test_a_failed_workload_without_failed_pods_is_no_success():
    look = see(workload=WorkloadState(name="train", failed="DeadlineExceeded", num_pods=1))
    assert not look.running and look.code is None and look.first_failed == "train"


def test_a_workload_that_someone_deleted_is_gone_without_a_word():
    look = see(workload=WorkloadState(name="train", exists=False, num_pods=1))
    assert not look.running and look.code is None


def test_where_kubernetes_replaces_pods_only_the_workloads_end_counts():
    failed, fresh = pod(0, phase="Failed", ended=ended(137)), pod(0)
    assert see(failed, fresh, pod(1), num=2, replaced=True).running
    over = WorkloadState(name="train", failed="BackoffLimitExceeded", num_pods=2)
    assert see(failed, fresh, workload=over, replaced=True).code == 137


def test_a_container_that_is_restarted_in_its_pod_is_not_over():
    assert see(pod(0, ended=ended(1), restart_policy="OnFailure")).running
    assert not see(pod(0, ended=ended(1))).running


def test_a_sidecar_does_not_keep_an_attempt_alive():
    both = [
        {"name": "trainer", "state": {"terminated": ended(0)}, "restartCount": 0},
        {"name": "proxy", "state": {"running": {}}, "restartCount": 0},
    ]
    assert see(pod(0, containerStatuses=both)).code == 0


def test_why_a_pod_does_not_start_is_reported():
    waiting = [{"name": "trainer", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]
    assert read_pod(pod(0, phase="Pending", containerStatuses=waiting)).waits_for == "ErrImagePull: no such image"
    creating = [{"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    assert read_pod(pod(0, phase="Pending", containerStatuses=creating)).waits_for == ""
    full = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
    assert read_pod(pod(0, phase="Pending", conditions=full)).waits_for == "Unschedulable: 0/3 nodes"


def test_conditions_of_all_kinds_are_understood():
    def item(kind: str) -> dict:
        return {"status": {"conditions": [{"type": kind, "status": "True", "reason": "r", "message": "m"}]}}

    assert read_workload(item("Complete"), "j", 1).complete and read_workload(item("Completed"), "j", 1).complete
    assert read_workload(item("Failed"), "j", 1).failed == "r: m"
    assert not read_workload({"status": {}}, "j", 1).complete


# -- what the supervisor makes of it


def decide(look) -> list:
    job = JobState(config=SuperviseConfig())
    job.handle(events.Tick(now_s=0.0))
    job.handle(events.Launched(now_s=1.0, hosts=("node-0", "node-1")))
    job.handle(events.StepDone(now_s=2.0, step=5))
    return job.handle(events.Exited(now_s=3.0, code=look.code, host=look.first_failed, lost=look.lost))


def test_a_lost_node_is_excluded_from_the_next_attempt():
    decided = decide(see(pod(0), pod(1, phase="Unknown")))
    assert any(isinstance(a, Cordon) and a.host == "node-1" for a in decided)
    assert next(a for a in decided if isinstance(a, Launch)).excluded == ("node-1",)


def test_a_killed_pod_is_explained_before_anything_is_blamed():
    decided = decide(see(pod(0), pod(1, phase="Failed", ended=ended(137))))
    assert any(isinstance(a, Explain) and a.code == 137 for a in decided)
    assert not any(isinstance(a, Cordon) for a in decided)
