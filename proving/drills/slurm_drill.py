"""`python -m proving.drills.slurm_drill`: a job on a real Slurm loses a node and goes on with the spare."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from proving.drills.outcome import Outcome, measure, require
from proving.drills.process_drills import JOB, Script
from proving.drills.slurm_cluster import SlurmCluster, why_no_slurm
from proving.drills.stage import DrillError, Stage

_RANKS_PER_NODE = 2


def lose_slurm_node(folder: Path) -> Outcome:
    """Submit on two of three nodes, lose one, and look on: drained, excluded, requeued on the spare."""
    script = Script(folder)
    job = replace(JOB, ranks=_RANKS_PER_NODE, step_s=0.3)
    expected = script.reference(job, ranks=2 * _RANKS_PER_NODE)
    stage = Stage(
        folder=folder / "slurm",
        job=job,
        settings={"hosts": {"num_hosts": 2}, "poll_s": 1.0, "pace": {"min_silence_s": 60.0}},
        launcher="slurm",
        timeout_s=400.0,
    )
    with SlurmCluster(folder / "cluster") as cluster:
        try:
            stage.start()
            stage.wait_step(25)
            victim = stage.state().hosts[-1]
            stage.mark_hurt()
            cluster.lose_node(victim)
            state = stage.wait_end()
            require(state.outcome == "done", f"the run to be done, not {state.outcome} ({state.outcome_text})")
            require(state.book.cordoned() == (victim,), f"{victim} out of use, not {state.book.cordoned()}")
            require(victim not in state.hosts and len(state.hosts) == 2, f"two nodes without {victim}")
            require("DRAIN" in cluster.node_state(victim), f"{victim} drained")
            outcome = measure(
                "lose a Slurm node", stage, expected, note=f"{victim} drained, {', '.join(state.hosts)} in"
            )
            require(outcome.equal is True, "the losses of an undisturbed run")
            require(outcome.lost_steps <= job.save_every, "at most one interval lost")
            return outcome
        finally:
            stage.close()


def main() -> int:
    """Run the drill."""
    from proving.drills.__main__ import HEADER, render

    reason = why_no_slurm()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="prism-slurm-") as folder:
        try:
            outcome = lose_slurm_node(Path(folder))
        except DrillError as error:
            print(f"lose a Slurm node: FAILED: {error}")
            return 1
    print(f"{HEADER}\n{render(outcome)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
