"""A job as users store it: a batch script for Slurm, an object for Kubernetes, or both under one name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prism.datacenter.place.live.slurm import Unit, read_script
from prism.datacenter.place.live.snapshot import Form
from prism.errors import BadConfigError, BadFileError

_SCRIPTS, _MANIFESTS = (".sh", ".sbatch"), (".yaml", ".yml")
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_COUNTS = ("parallelism", "replicas", "numNodes")  # of Job, JobSet and Kubeflow's kinds, Trainer
_MAX_TIME = "kueue.x-k8s.io/max-exec-time-seconds"
_MOST_VALUES = 100_000  # of one object; YAML's aliases can make a short file endless


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """One job with the file for each kind of cluster."""

    name: str
    script: Path | None = None
    manifest: Path | None = None

    def path(self, form: Form) -> Path | None:
        """The file for a kind of cluster."""
        return self.script if form == "batch script" else self.manifest

    @property
    def mark(self) -> str:
        """An identifier of the job's name and text, by which a repeated call recognises the first one."""
        files = [path for path in (self.script, self.manifest) if path is not None]
        text = b"".join(path.read_bytes() for path in files)
        digest = hashlib.sha256(text + (files[0].name if len(files) == 1 else self.name).encode()).hexdigest()[:16]
        return f"prism-{self.name[:40]}-{digest}"

    def read_needs(self, unit: Unit) -> tuple[int, float | None]:
        """GPUs (or nodes, or CPUs of batch scripts) and the time limit in seconds; both files must agree."""
        found = []
        if self.script is not None:
            found.append(read_script(_read_text(self.script), unit))
        if self.manifest is not None:
            found.append(read_manifest(self.manifest))
        if len(found) == 2 and unit != "gpu":
            raise BadConfigError(f"{self.name}: {unit}s of Slurm and GPUs of Kueue cannot be compared; use `unit: gpu`")
        if len(found) == 2 and found[0][0] != found[1][0]:
            raise BadConfigError(
                f"{self.name}: asks for {found[0][0]} GPUs in {self.script} and for {found[1][0]} in {self.manifest}"
            )
        gpus, limit_s = found[0]
        if gpus < 1 and self.script is not None:
            raise BadConfigError(f"{self.script}: no #SBATCH line asks for GPUs; add --gpus or --gres=gpu:N")
        if gpus < 1:
            raise BadConfigError(f"{self.manifest}: no container asks for {' or '.join(GPU_RESOURCES)}")
        return gpus, limit_s


def find_job(path: Path) -> JobFile:
    """The job of a file; a file of the other kind with the same name in the same folder is the same job."""
    is_manifest = path.suffix in _MANIFESTS
    others = [path.with_suffix(suffix) for suffix in (_SCRIPTS if is_manifest else _MANIFESTS)]
    beside = [other for other in others if other.is_file()]
    if len(beside) > 1:
        raise BadConfigError(f"{path}: both {beside[0].name} and {beside[1].name} lie beside it; keep one")
    other = beside[0] if beside else None
    script, manifest = (other, path) if is_manifest else (path, other)
    return JobFile(name=path.stem, script=script, manifest=manifest)


def list_jobs(folder: Path) -> list[JobFile]:
    """All jobs of a folder in order of name."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in (*_SCRIPTS, *_MANIFESTS))
    if not paths:
        raise BadConfigError(f"{folder}: no *.sh, *.sbatch or *.yaml in it")
    return list(dict.fromkeys(find_job(path) for path in paths))


def load_manifest(path: Path) -> dict[str, Any]:
    """The one Kubernetes object of a file."""
    try:
        found = [document for document in yaml.safe_load_all(_read_text(path)) if document is not None]
    except yaml.YAMLError as error:
        raise BadFileError(f"{path}: not readable YAML ({str(error)[:80]})") from None
    if len(found) != 1 or not isinstance(found[0], dict) or not {"apiVersion", "kind"} <= set(found[0]):
        raise BadFileError(f"{path}: expected one Kubernetes object with apiVersion and kind; split the file")
    return found[0]


def read_manifest(path: Path) -> tuple[int, float | None]:
    """GPUs of all pods that run at once, and the time limit in seconds."""
    document = load_manifest(path)
    try:
        gpus = _count_gpus(document.get("spec"), [0])
        labels = (document.get("metadata") or {}).get("labels") or {}
        limit = (document.get("spec") or {}).get("activeDeadlineSeconds") or labels.get(_MAX_TIME)
        return gpus, None if limit is None else float(limit)
    except (ValueError, TypeError, AttributeError) as error:
        raise BadFileError(f"{path}: its counts or limits cannot be read ({error!r:.60})") from None


def _count_gpus(node: Any, seen: list[int]) -> int:
    seen[0] += 1
    if seen[0] > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values")
    if isinstance(node, list):
        return sum(_count_gpus(item, seen) for item in node)
    if not isinstance(node, Mapping):
        return 0
    wanted = {**(node.get("requests") or {}), **(node.get("limits") or {})} if _is_resources(node) else {}
    own = sum(int(str(wanted[name])) for name in GPU_RESOURCES if name in wanted)
    factor = 1
    for name in _COUNTS:
        factor *= int(node.get(name, 1))
    return factor * (own + sum(_count_gpus(value, seen) for key, value in node.items() if key != "initContainers"))


def _is_resources(node: Mapping[str, Any]) -> bool:
    return any(isinstance(node.get(name), Mapping) for name in ("requests", "limits"))


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: cannot be read ({error}); check the path") from None
