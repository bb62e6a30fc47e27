"""The settings of a supervised run, and how they are read from a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from prism.errors import BadConfigError
from prism.records.settings import Checked, build, describe, nearest, number, one_of, parse_mapping, read_text
from prism.recover.isolate.agents import Backend
from prism.recover.progress import AUTO, AUTO_FOLDER, AUTO_INTERVAL
from prism.recover.supervise.hosts import HostPolicy
from prism.recover.supervise.launchers.kubernetes.settings import KubernetesSettings
from prism.recover.supervise.losses import LossPolicy
from prism.recover.supervise.pace import PacePolicy
from prism.recover.supervise.restarts import RestartPolicy

# Found by its path, not imported: its code runs inside the trainer and may import torch; the supervisor must not.
_SITE = Path(__file__).resolve().parents[1] / "checkpoint" / "integrations" / "site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The address of each host; a host that is not listed is reached by its name."""

    named: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How processes are started and ended."""

    grace_s: float = 60.0  # from SIGTERM to SIGKILL, so that the trainer can save
    settle_s: float = 5.0  # after one host has failed, for the others to end by themselves
    host_prefix: tuple[str, ...] = ()  # local: put before the command, {host} filled in; ip netns exec {host}
    addresses: Addresses = field(default_factory=Addresses)  # local and ssh
    ssh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")  # ssh: put before the address
    python: str = "python3"  # ssh, slurm and kubernetes: on the hosts, in the containers
    sbatch: tuple[str, ...] = ()  # slurm: more options for sbatch
    drain: bool = True  # slurm: drain cordoned nodes if the user has the permission
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamineSettings(Checked):
    """The host test between attempts."""

    enabled: bool = True
    backend: Backend = field(default="socket", metadata=one_of(Backend))
    megabytes: float = 8.0
    timeout_s: float = 30.0
    group_rounds: int = 6  # the job is waiting; a full search is `prism isolate`
    slow_ratio: float = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomaticCheckpoints:
    """Checkpoints of known trainers through their own hooks, without a change of the script."""

    enabled: bool = False
    folder: str = ""  # empty: `checkpoints` in the run folder
    interval_steps: int | None = None  # None: chosen from what saves and failures cost

    def variables(self, run_dir: Path) -> dict[str, str]:
        """The variables that switch them on in the job's environment."""
        if not self.enabled:
            return {}
        path = os.environ.get("PYTHONPATH", "")
        return {
            AUTO: "auto",
            AUTO_FOLDER: self.folder or str(run_dir / "checkpoints"),
            AUTO_INTERVAL: "" if self.interval_steps is None else str(self.interval_steps),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_SITE), path))),
        }


Judgement = Literal["spike", "slow", "hang", "corruption", "bug"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperviseConfig(Checked):
    """All settings. Every default is meant for a real run."""

    hosts: HostPolicy = field(default_factory=HostPolicy)
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    losses: LossPolicy = field(default_factory=LossPolicy)
    pace: PacePolicy = field(default_factory=PacePolicy)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    examine: ExamineSettings = field(default_factory=ExamineSettings)
    checkpoint: AutomaticCheckpoints = field(default_factory=AutomaticCheckpoints)
    act_on: tuple[Judgement, ...] = ()  # judgements that act; the others are only decided, written down and shown
    risk: str = ""  # file of risks that `prism predict` writes; read again whenever it changes
    webhook: str = ""
    poll_s: float = number(2.0, 0.01, 3_600.0)

    def __post_init__(self) -> None:
        """Refuse unknown judgements."""
        Checked.__post_init__(self)
        for name in self.act_on:
            if name not in get_args(Judgement):
                hint = nearest(name, get_args(Judgement))
                raise BadConfigError(f"'act_on' names {name!r}{hint}; known are {', '.join(get_args(Judgement))}")


def read_config(path: Path) -> SuperviseConfig:
    """Read a YAML file of sections. An error names the place of an unknown name or a wrong value."""
    text, where = read_text(path), str(path)
    empty = not any(line.split("#")[0].strip() for line in text.splitlines())
    document = {} if empty else parse_mapping(text, where, "'hosts', 'restarts' and 'poll_s'")
    launch = document.get("launch")
    if isinstance(launch, Mapping) and "addresses" in launch:
        document["launch"] = {**launch, "addresses": _read_addresses(launch["addresses"], where)}
    config: SuperviseConfig = build(SuperviseConfig, document, where, base=SuperviseConfig())
    return check_hosts(config, where)


def check_hosts(config: SuperviseConfig, where: str) -> SuperviseConfig:
    """Refuse host settings that contradict each other."""
    named, wanted = config.hosts.hosts, config.hosts.num_hosts or 0
    if named and wanted > len(named):
        raise BadConfigError(f"{where}: 'hosts.num_hosts' is {wanted}, only {len(named)} hosts are named")
    if len(set(named)) != len(named):
        raise BadConfigError(f"{where}: 'hosts.hosts' names a host twice")
    return config


def _read_addresses(value: object, where: str) -> Addresses:
    if not isinstance(value, Mapping):
        raise BadConfigError(f"{where}: 'launch.addresses' is {describe(value)}, expected hosts and addresses")
    return Addresses(named={str(host): str(address) for host, address in value.items()})
