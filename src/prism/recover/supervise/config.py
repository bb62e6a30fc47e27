"""The settings of a supervised run, and how they are read from a file."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from prism.errors import BadConfigError, BadFileError
from prism.recover.supervise.hosts import HostPolicy
from prism.recover.supervise.losses import LossPolicy
from prism.recover.supervise.pace import PacePolicy
from prism.recover.supervise.restarts import RestartPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How processes are started and ended."""

    grace_s: float = 60.0  # from SIGTERM to SIGKILL, so that the trainer can save
    host_prefix: tuple[str, ...] = ()  # local: put before the command, {host} filled in; ip netns exec {host}
    addresses: Mapping[str, str] = field(default_factory=dict)  # local: where hosts are reached; else by their name
    sbatch: tuple[str, ...] = ()  # slurm: more options for sbatch
    drain: bool = True  # slurm: drain cordoned nodes, where the user may


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamineSettings:
    """The host test between attempts."""

    enabled: bool = True
    backend: str = "socket"  # or gloo, nccl
    megabytes: float = 8.0
    timeout_s: float = 30.0
    group_rounds: int = 6  # the job is waiting; a full search is `prism isolate`
    slow_ratio: float = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperviseConfig:
    """Everything that can be set; every default is meant for a real run."""

    hosts: HostPolicy = field(default_factory=HostPolicy)
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    losses: LossPolicy = field(default_factory=LossPolicy)
    pace: PacePolicy = field(default_factory=PacePolicy)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    examine: ExamineSettings = field(default_factory=ExamineSettings)
    webhook: str = ""
    poll_s: float = 2.0


def read_config(path: Path) -> SuperviseConfig:
    """Read a YAML file of sections; an unknown name or a wrong value is told with its place."""
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: not valid YAML ({' '.join(str(error).split())[:160]})") from None
    built: SuperviseConfig = _build(SuperviseConfig, document or {}, str(path))
    return check_config(built, str(path))


def check_config(config: SuperviseConfig, where: str) -> SuperviseConfig:
    """Refuse settings that cannot hold together."""
    hosts = config.hosts
    wanted = hosts.num_hosts or 0
    if hosts.hosts and wanted > len(hosts.hosts):
        raise BadConfigError(f"{where}: hosts.num_hosts is {wanted}, only {len(hosts.hosts)} hosts are named")
    if len(set(hosts.hosts)) != len(hosts.hosts):
        raise BadConfigError(f"{where}: hosts.hosts names a host twice")
    if config.examine.backend not in ("socket", "gloo", "nccl"):
        raise BadConfigError(f"{where}: examine.backend is '{config.examine.backend}', expected socket, gloo or nccl")
    if config.poll_s <= 0:
        raise BadConfigError(f"{where}: poll_s is {config.poll_s}, expected more than 0")
    return config


def _build(kind: type[Any], document: object, where: str) -> Any:
    if not isinstance(document, Mapping):
        raise BadConfigError(f"{where}: expected names and values, found {type(document).__name__}")
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in document.items():
        if name not in hints:
            raise BadConfigError(f"{where}: unknown setting '{name}'; expected one of {', '.join(hints)}")
        values[name] = _convert(hints[name], value, f"{where}: {name}")
    return kind(**values)


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value, where)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        origin = typing.get_origin(option)
        if origin is tuple and isinstance(value, list):
            return tuple(str(part) for part in value)
        if origin is Mapping and isinstance(value, Mapping):
            inner = typing.get_args(option)[1]
            return {str(k): _convert(inner, v, f"{where}: {k}") for k, v in value.items()}
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
    names = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise BadConfigError(f"{where} is {value!r}, expected {names}")
