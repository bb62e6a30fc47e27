"""`python -m drills.cluster_drills --launcher ssh|slurm [NAMES]`: the drills of one machine, on two hosts of a cluster.

ssh: an sshd in each of three network namespaces. Slurm: a controller and three slurmd on this machine. Needs root.
"""

# ruff: noqa: T201 (a program of its own)
from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from drills import process_drills
from drills.__main__ import HEADER, run_drill
from drills.outcome import Outcome
from drills.process_drills import Script
from drills.slurm_cluster import SlurmCluster, why_no_slurm
from drills.slurm_drill import lose_slurm_node
from drills.ssh_hosts import SshHosts, why_no_ssh_hosts
from drills.stage import Stage, merge

_HOSTS = 2
_SPARES = 1
DRILLS: dict[str, Callable[[Script], Outcome]] = {
    "kill-rank": process_drills.kill_rank,
    "kill-supervisor": process_drills.kill_supervisor,
    "kill-tree": process_drills.kill_tree,
    "stop-rank": process_drills.stop_rank,
    "corrupt": process_drills.corrupt_newest,
    "nan": process_drills.poison_nan,
    "spike": process_drills.poison_spike,
    "bug-at-start": process_drills.bug_at_start,
    "bug-at-step-50": process_drills.bug_at_step_50,
}


@dataclass(slots=True, kw_only=True)
class HostsStage(Stage):
    """The same ranks, spread over hosts."""

    shared: dict[str, Any] = field(default_factory=dict)  # settings of every drill on this cluster
    words: tuple[str, ...] = ()  # before the command

    def __post_init__(self) -> None:
        self.settings = merge(self.shared, self.settings)
        Stage.__post_init__(self)

    def command(self) -> list[str]:
        """The training command of one host."""
        one = Stage(folder=self.folder, job=replace(self.job, ranks=self.job.ranks // _HOSTS), settings=self.settings)
        return [*self.words, *one.command()]


@contextmanager
def ssh_stages(folder: Path) -> Iterator[Callable[..., Stage]]:
    """Stages on hosts with an sshd each."""
    with SshHosts(folder, _HOSTS + _SPARES) as hosts:
        launch = {"ssh": list(hosts.settings.ssh), "addresses": dict(hosts.spaces.addresses)}
        shared = {"hosts": {"hosts": list(hosts.spaces.hosts), "num_hosts": _HOSTS}, "launch": launch}
        words = ("env", "GLOO_SOCKET_IFNAME=eth0")  # gloo must not choose the loopback of the namespace
        yield partial(HostsStage, launcher="ssh", shared=shared, words=words, timeout_s=600.0)


@contextmanager
def slurm_stages(folder: Path) -> Iterator[Callable[..., Stage]]:
    """Stages on a Slurm of our own."""
    shared = {"hosts": {"num_hosts": _HOSTS}, "poll_s": 1.0}
    with SlurmCluster(folder / "cluster"):
        yield partial(HostsStage, launcher="slurm", shared=shared, timeout_s=600.0)


CLUSTERS = {"ssh": (why_no_ssh_hosts, ssh_stages), "slurm": (why_no_slurm, slurm_stages)}


def main() -> int:
    """Run the named drills, or all, on one kind of cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*DRILLS, []], help="drills to run; all if none is named")
    parser.add_argument("--launcher", choices=CLUSTERS, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the cluster is taken down
    why_not, open_stages = CLUSTERS[options.launcher]
    if (reason := why_not()) is not None:
        print(f"skipped: {reason}")
        return 0
    failed = 0
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory(prefix="prism-drills-") as name, open_stages(Path(name)) as stages:
        script = Script(Path(name), stages)
        for drill in options.names or DRILLS:
            failed += not run_drill(drill, DRILLS[drill], script)
    if options.launcher == "slurm" and not options.names:
        with tempfile.TemporaryDirectory(prefix="prism-slurm-") as name:
            failed += not run_drill("lose-node", lambda _: lose_slurm_node(Path(name)), Script(Path(name)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
