"""The settings of a supervised run, and how they are read from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prism.errors import BadConfigError
from prism.records.settings import Checked, build, describe, number, one_of, parse_mapping, read_text
from prism.recover.isolate.agents import Backend
from prism.recover.supervise.hosts import HostPolicy
from prism.recover.supervise.losses import LossPolicy
from prism.recover.supervise.pace import PacePolicy
from prism.recover.supervise.restarts import RestartPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where hosts are reached; those not named, by their name."""

    named: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How processes are started and ended."""

    grace_s: float = 60.0  # from SIGTERM to SIGKILL, so that the trainer can save
    host_prefix: tuple[str, ...] = ()  # local: put before the command, {host} filled in; ip netns exec {host}
    addresses: Addresses = field(default_factory=Addresses)  # local
    sbatch: tuple[str, ...] = ()  # slurm: more options for sbatch
    drain: bool = True  # slurm: drain cordoned nodes, where the user may


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
class SuperviseConfig(Checked):
    """Everything that can be set; every default is meant for a real run."""

    hosts: HostPolicy = field(default_factory=HostPolicy)
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    losses: LossPolicy = field(default_factory=LossPolicy)
    pace: PacePolicy = field(default_factory=PacePolicy)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    examine: ExamineSettings = field(default_factory=ExamineSettings)
    webhook: str = ""
    poll_s: float = number(2.0, 0.01, 3_600.0)


def read_config(path: Path) -> SuperviseConfig:
    """Read a YAML file of sections; an unknown name or a wrong value is told with its place."""
    text, where = read_text(path), str(path)
    empty = not any(line.split("#")[0].strip() for line in text.splitlines())
    document = {} if empty else parse_mapping(text, where, "'hosts', 'restarts' and 'poll_s'")
    launch = document.get("launch")
    if isinstance(launch, Mapping) and "addresses" in launch:
        document["launch"] = {**launch, "addresses": _read_addresses(launch["addresses"], where)}
    config: SuperviseConfig = build(SuperviseConfig, document, where, base=SuperviseConfig())
    return check_hosts(config, where)


def check_hosts(config: SuperviseConfig, where: str) -> SuperviseConfig:
    """Refuse hosts that cannot hold together."""
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
