"""`python -m proving.drills.cluster_drills --launcher ssh|slurm [NAMES]`: the drills of one machine, on hosts of a
cluster.

ssh: an sshd in each of four network namespaces. Slurm: a controller and three slurmd on this machine. Needs root. Those
of scripts as users write them run on one host, or on two where their ranks talk to each other.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from prism.lab.testbed.namespaces import Namespaces
from proving.drills import default_drills, judgement_drills, network_drills, process_drills
from proving.drills.__main__ import DRILLS as DRILLS_HERE
from proving.drills.__main__ import HEADER, run_drill
from proving.drills.judgement_drills import isolate_with, judge_isolation
from proving.drills.outcome import Outcome
from proving.drills.plain_stage import PLACE, Place
from proving.drills.process_drills import Script
from proving.drills.slurm_cluster import SlurmCluster, why_no_slurm
from proving.drills.slurm_drill import lose_slurm_node
from proving.drills.ssh_hosts import SshHosts, why_no_ssh_hosts
from proving.drills.stage import Stage, merge

_HOSTS = 2
_SPARES = 2
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
    "full-disk": process_drills.fill_disk,
    **{name: DRILLS_HERE[name] for name in (*default_drills.DRILLS, *judgement_drills.DRILLS)},
}
# The nodes of this Slurm share one network, so no cable can be cut or slowed; instead a node is lost.
NEED_CABLES = {"cut-network", "slow-link", "healthy-hosts", "slow-host"}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The hosts on which drills run."""

    place: Place
    stages: Callable[..., Stage]
    victim: str  # a host that is among the first two
    net: Namespaces | None = None
    ssh: tuple[str, ...] = ()  # from the first host


@contextmanager
def ssh_cluster(folder: Path) -> Iterator[Cluster]:
    """Hosts that each run an sshd."""
    with _shared_mount(folder), SshHosts(folder, _HOSTS + _SPARES) as hosts:
        launch = {"ssh": list(hosts.settings.ssh), "addresses": dict(hosts.spaces.addresses)}
        shared = {"hosts": {"hosts": list(hosts.spaces.hosts), "num_hosts": _HOSTS}, "launch": launch}
        # gloo must not choose the loopback of the namespace; the code under test is the one beside this file.
        variables = {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        words = ("env", *(f"{name}={value}" for name, value in variables.items()))
        yield Cluster(
            place=Place(launcher="ssh", settings=shared, variables=variables),
            stages=partial(HostsStage, launcher="ssh", shared=shared, words=words, timeout_s=600.0),
            victim="h2",
            net=hosts.spaces,
            ssh=hosts.settings.ssh,
        )


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Cluster]:
    """A Slurm of our own."""
    shared = {"hosts": {"num_hosts": _HOSTS}, "poll_s": 1.0}
    with SlurmCluster(folder / "cluster"):
        yield Cluster(
            place=Place(launcher="slurm", settings={"poll_s": 1.0}),
            stages=partial(HostsStage, launcher="slurm", shared=shared, timeout_s=600.0),
            victim="n2",
        )


@contextmanager
def _shared_mount(folder: Path) -> Iterator[None]:
    """Make later mounts below a folder visible in the hosts' mount namespaces."""
    for words in (["--bind", str(folder), str(folder)], ["--make-shared", str(folder)]):
        subprocess.run(["mount", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


CLUSTERS = {"ssh": (why_no_ssh_hosts, ssh_cluster), "slurm": (why_no_slurm, slurm_cluster)}


def isolate_over_ssh(cluster: Cluster, slow: str = "") -> Outcome:
    """`prism isolate` through real sshds: it names no host, or only the one whose link has a tenth of the speed."""
    assert cluster.net is not None
    for host in cluster.net.hosts if slow else ():
        cluster.net.slow(host, 8_000 if host == slow else 80_000)
    addresses = cluster.net.addresses
    found = isolate_with([], list(addresses.values()), " ".join((*cluster.ssh, "{host}")))
    return judge_isolation("slow-host" if slow else "healthy-hosts", found, addresses[slow] if slow else "")


def choose(name: str, cluster: Cluster) -> Callable[[Script], Outcome]:
    """A drill in the form for this cluster."""
    match name:
        case "bad-node":
            return partial(network_drills.bad_node, victim=cluster.victim)
        case "cut-network":
            return partial(network_drills.cut_network, net=cluster.net)
        case "slow-link":
            return partial(network_drills.slow_link, net=cluster.net)
        case "healthy-hosts" | "slow-host":
            return lambda _: isolate_over_ssh(cluster, "h3" if name == "slow-host" else "")
        case "lose-node":
            return lambda script: lose_slurm_node(script.folder / "lost")
        case _:
            return DRILLS[name]


def list_drills(launcher: str) -> list[str]:
    """The drills for a kind of cluster; each drill that cuts a cable gets a new cluster."""
    own = ["lose-node"] if launcher == "slurm" else sorted(NEED_CABLES)
    return [*(name for name in DRILLS if name not in NEED_CABLES), "bad-node", *own]


def main() -> int:
    """Run the named drills, or all, on one kind of cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="drills to run; all if none is named")
    parser.add_argument("--launcher", choices=CLUSTERS, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the cluster is taken down
    known = list_drills(options.launcher)
    if unknown := set(options.names) - set(known):
        parser.error(f"no drill of {options.launcher}: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    why_not, open_cluster = CLUSTERS[options.launcher]
    if (reason := why_not()) is not None:
        print(f"skipped: {reason}")
        return 0
    names = options.names or known
    apart = [name for name in names if name in NEED_CABLES or name == "lose-node"]
    together = [name for name in names if name not in apart]
    print(HEADER, flush=True)
    failed = sum(run_on(open_cluster, group) for group in (together, *([name] for name in apart)) if group)
    return 1 if failed else 0


def run_on(open_cluster: Callable[[Path], AbstractContextManager[Cluster]], names: list[str]) -> int:
    """Run drills on one cluster; returns how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="prism-drills-") as name, ExitStack() as stack:
        if names != ["lose-node"]:  # which has a cluster of its own
            cluster = stack.enter_context(open_cluster(Path(name)))
            stack.callback(PLACE.reset, PLACE.set(cluster.place))
            script = Script(Path(name), cluster.stages)
        else:
            cluster, script = Cluster(place=Place(), stages=Stage, victim=""), Script(Path(name))
        for drill in names:
            failed += not run_drill(drill, choose(drill, cluster), script)
    return failed


if __name__ == "__main__":
    sys.exit(main())
