"""`python -m proving.drills.kubernetes_drill`: faults in jobs on Kubernetes, through a real API server on this
machine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from proving.drills import default_drills, judgement_drills, process_drills
from proving.drills.__main__ import DRILLS as DRILLS_HERE
from proving.drills.__main__ import HEADER, render, why_not
from proving.drills.kube_cluster import KubeCluster, why_no_kubernetes
from proving.drills.kube_stage import KubeStage, kubernetes_place
from proving.drills.outcome import Outcome, measure, require
from proving.drills.plain_stage import PLACE
from proving.drills.process_drills import JOB, Script
from proving.drills.stage import DrillError

Drill = Callable[[Script, KubeCluster], Outcome]


def drain_node(script: Script, cluster: KubeCluster) -> Outcome:
    """kubectl drain of a node: the ranks save before their pod goes, nothing is lost, the next attempt is elsewhere."""
    stage = _stage(script, cluster, "drain-node")
    expected = script.reference(stage.job)
    try:
        stage.start()
        stage.wait_step(25)
        victim = stage.state().hosts[0]
        stage.mark_hurt()
        cluster.drain(victim)
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome} ({state.outcome_text})")
        require(state.attempt == 2, f"two attempts, not {state.attempt}")
        require(not state.failures, f"no failure counted, not {state.failures}")
        require(victim not in state.hosts, f"the second attempt to be elsewhere than on {victim}")
        outcome = measure("drain a node", stage, expected, note=f"{victim} drained, saved first")
        require(outcome.equal is True, "the losses of an undisturbed run")
        require(outcome.lost_steps == 0, f"no step lost, not {outcome.lost_steps}")
        return outcome
    finally:
        stage.close()
        for node in cluster.nodes:
            cluster.uncordon(node)


def lose_node(script: Script, cluster: KubeCluster) -> Outcome:
    """A node loses its power: the cluster calls it unreachable, the next attempt avoids it."""
    stage = _stage(script, cluster, "lose-node")
    expected = script.reference(stage.job)
    victim = ""
    try:
        stage.start()
        stage.wait_step(25)
        victim = stage.state().hosts[-1]
        stage.mark_hurt()
        cluster.lose_node(victim)
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome} ({state.outcome_text})")
        require(victim not in state.hosts, f"the next attempt to be elsewhere than on {victim}")
        outcome = measure("lose a node", stage, expected, note=f"{victim} out, {', '.join(state.hosts)} in")
        require(outcome.equal is True, "the losses of an undisturbed run")
        require(outcome.lost_steps <= JOB.save_every, "at most one interval lost")
        return outcome
    finally:
        stage.close()
        if victim:
            cluster.start_node(victim)


def restart_api_server(script: Script, cluster: KubeCluster) -> Outcome:
    """The API server is restarted: the job is not affected."""
    stage = _stage(script, cluster, "restart-api-server")
    expected = script.reference(stage.job)
    try:
        stage.start()
        stage.wait_step(15)
        stage.mark_hurt()
        cluster.restart_server()
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome} ({state.outcome_text})")
        require(state.attempt == 1, f"one attempt, not {state.attempt}")
        outcome = measure("restart the API server", stage, expected, note="the job was not disturbed")
        require(outcome.equal is True, "the losses of an undisturbed run")
        return outcome
    finally:
        stage.close()


def ask_to_stop(script: Script, cluster: KubeCluster) -> Outcome:
    """SIGTERM to the supervisor: the ranks save, the pods go."""
    stage = _stage(script, cluster, "ask-to-stop")
    try:
        stage.start()
        stage.wait_step(25)
        stage.mark_hurt()
        assert stage.supervisor is not None
        stage.supervisor.send_signal(signal.SIGTERM)
        state = stage.wait_end()
        require(state.outcome == "stopped", f"the run to be stopped, not {state.outcome}")
        saved = [report["step"] for report in stage.reports() if report["kind"] == "saved"]
        require(bool(saved) and max(saved) >= stage.hurt_at_step, f"a save at the end, not {saved[-1:]}")
        require(not [p for p in cluster.pods() if p["status"]["phase"] == "Running"], "no pod left")
        return measure("SIGTERM to the supervisor", stage, None, note=f"saved step {max(saved)}, then left")
    finally:
        stage.close()


def kill_pod_process(kind: str, script: Script, cluster: KubeCluster) -> Outcome:
    """kill -9 of one rank in one pod, for a kind of workload."""
    stage = _stage(script, cluster, f"kill-rank-{kind.lower()}")
    stage = KubeStage(folder=stage.folder, job=stage.job, settings={}, cluster=cluster, kind=kind)
    return process_drills.disturb(
        script, f"kill -9 a rank ({kind})", stage, 25, lambda: os.kill(stage.rank_pid(2), signal.SIGKILL)
    )


def _plain(drill: Callable[[Script], Outcome], script: Script, cluster: KubeCluster) -> Outcome:
    return drill(script)


def _stage(script: Script, cluster: KubeCluster, name: str) -> KubeStage:
    stage = script.stage(name)
    assert isinstance(stage, KubeStage)
    return stage


DRILLS: dict[str, Drill] = {
    "kill-rank": partial(kill_pod_process, "JobSet"),
    "kill-rank-job": partial(kill_pod_process, "Job"),
    "kill-rank-trainjob": partial(kill_pod_process, "TrainJob"),
    "kill-supervisor": partial(_plain, process_drills.kill_supervisor),
    "kill-tree": partial(_plain, process_drills.kill_tree),
    "corrupt": partial(_plain, process_drills.corrupt_newest),
    "nan": partial(_plain, process_drills.poison_nan),
    "spike": partial(_plain, process_drills.poison_spike),
    "bug-at-start": partial(_plain, process_drills.bug_at_start),
    "bug-at-step-50": partial(_plain, process_drills.bug_at_step_50),
    "stop-rank": partial(_plain, process_drills.stop_rank),
    "full-disk": partial(_plain, process_drills.fill_disk),
    "drain-node": drain_node,
    "lose-node": lose_node,
    "restart-api-server": restart_api_server,
    "ask-to-stop": ask_to_stop,
    **{name: partial(_plain, DRILLS_HERE[name]) for name in (*default_drills.DRILLS, *judgement_drills.DRILLS)},
}
for _name in ("healthy-hosts", "slow-host"):  # a node cannot be entered from outside, so hosts are not tested there
    del DRILLS[_name]


def main() -> int:
    """Run the named drills, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(DRILLS)}; all if none is named")
    parser.add_argument("--keep", type=Path, help="folder to keep the run folders in")
    options = parser.parse_args()
    reason = why_no_kubernetes()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    folder = options.keep or Path(tempfile.mkdtemp(prefix="prism-kubernetes-"))
    failed = 0
    with KubeCluster(folder / "cluster") as cluster:
        script = Script(folder, partial(KubeStage, cluster=cluster))
        PLACE.set(kubernetes_place(cluster))
        print(HEADER, flush=True)
        for name in options.names or DRILLS:
            start = time.monotonic()
            if (reason := why_not(name)) is not None:
                print(f"{name:32} skipped  {reason}", flush=True)
                continue
            try:
                print(render(DRILLS[name](script, cluster)), flush=True)
            except DrillError as error:
                failed += 1
                print(f"{name:32} FAILED   after {time.monotonic() - start:.0f} s: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
