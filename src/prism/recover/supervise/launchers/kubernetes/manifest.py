"""The user's manifest: one Job, JobSet or TrainJob, read and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, BadFileError
from prism.records.settings import read_text
from prism.recover.supervise.launchers.kubernetes.api import JsonObject

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_PLURALS = {("batch", "Job"): "jobs", ("jobset.x-k8s.io", "JobSet"): "jobsets"}
_PLURALS |= {("trainer.kubeflow.org", "TrainJob"): "trainjobs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One workload as the user wrote it."""

    document: JsonObject
    name: str
    namespace: str
    path: str  # of its collection in the API

    @property
    def kind(self) -> str:
        """Job, JobSet or TrainJob."""
        return str(self.document["kind"])

    @property
    def num_pods(self) -> int | None:
        """How many pods it will have; None where a runtime decides."""
        spec = self.document.get("spec") or {}
        if self.kind == "Job":
            return _parallelism(spec)
        if self.kind == "JobSet":
            parts = spec.get("replicatedJobs") or ()
            return sum(int(p.get("replicas", 1)) * _parallelism(p["template"].get("spec") or {}) for p in parts)
        return None  # with its initializers a TrainJob has more pods than nodes

    @property
    def selector(self) -> str:
        """Labels of its pods, of all attempts."""
        return f"{JOBSET_NAME}={self.name}" if self.kind == "TrainJob" else ""


def read_manifest(path: Path, namespace: str) -> Manifest:
    """The one workload of a file."""
    import yaml

    try:
        documents = [d for d in yaml.safe_load_all(read_text(path)) if d is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadFileError(f"{path}: not YAML ({' '.join(str(error).split())[:200]})") from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise BadConfigError(
            f"{path}: {len(documents)} documents, expected one Job, JobSet or TrainJob; kubectl apply the others"
        )
    document: JsonObject = documents[0]
    version, kind = str(document.get("apiVersion", "")), str(document.get("kind", ""))
    plural = _PLURALS.get((version.partition("/")[0], kind))
    if plural is None:
        raise BadConfigError(
            f"{path}: {version} {kind} is not supported; expected a batch/v1 Job, a JobSet or a TrainJob"
        )
    meta = document.get("metadata") or {}
    if not meta.get("name"):
        raise BadConfigError(f"{path}: 'metadata.name' is missing; a run needs a name that stays (not generateName)")
    space = str(meta.get("namespace") or namespace)
    found = Manifest(
        document=document,
        name=str(meta["name"]),
        namespace=space,
        path=f"/apis/{version}/namespaces/{space}/{plural}",
    )
    _check(found, path)
    return found


def _check(manifest: Manifest, path: Path) -> None:
    spec = manifest.document.get("spec") or {}
    if manifest.kind == "Job" and _parallelism(spec) > 1 and spec.get("completionMode") != "Indexed":
        raise BadConfigError(f"{path}: 'spec.completionMode' must be Indexed, so that each pod knows its rank")
    try:
        templates = list(pod_templates(manifest.document))
    except (KeyError, TypeError, AttributeError):
        raise BadConfigError(f"{path}: the pod template is missing or in the wrong place") from None
    if manifest.kind != "TrainJob" and not all((t.get("spec") or {}).get("containers") for t in templates or [{}]):
        raise BadConfigError(f"{path}: a pod template has no containers")


def pod_templates(document: JsonObject) -> Iterator[JsonObject]:
    """The pod templates of a Job or a JobSet."""
    if document["kind"] == "Job":
        yield document["spec"]["template"]
    for part in document["spec"].get("replicatedJobs") or () if document["kind"] == "JobSet" else ():
        yield part["template"]["spec"]["template"]


def _parallelism(spec: Mapping[str, Any]) -> int:
    return int(spec.get("completions") or spec.get("parallelism") or 1)
