"""What an attempt adds to the manifest: labels, variables, nodes to avoid, time to save. Pure."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prism.errors import BadConfigError
from prism.recover.progress import HOST
from prism.recover.supervise.launchers.kubernetes.api import JsonObject
from prism.recover.supervise.launchers.kubernetes.manifest import Manifest, pod_templates
from prism.recover.supervise.launchers.kubernetes.placement import avoid
from prism.recover.supervise.launchers.kubernetes.pods import COMPLETION_INDEX, trainer_of

RUN_LABEL, ATTEMPT_LABEL = "prism-run", "prism-attempt"
MOUNT = "/prism"
_VOLUME = "prism-node"
_KEEP_S = 86_400  # a finished workload must still exist when a supervisor is restarted later
_SPARE_S = 5  # for the container's own end after the save
_MANAGER = "prism-supervise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What an attempt adds to the manifest."""

    run: str
    attempt: int
    command: tuple[str, ...] = ()  # in place of the container's; empty: as in the manifest
    container: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()  # only these nodes; empty: any
    excluded: tuple[str, ...] = ()
    grace_s: float = 60.0
    python: str = "python3"
    config_map: str = ""  # holds node.py; empty: no hook
    port: int = 29_500
    replace_pods: bool = False


def prepare(manifest: Manifest, more: Additions) -> JsonObject:
    """The object to create for an attempt."""
    document = copy.deepcopy(manifest.document)
    labels = {RUN_LABEL: more.run, ATTEMPT_LABEL: str(more.attempt)}
    meta = document["metadata"]
    meta["namespace"] = manifest.namespace
    meta["labels"] = {**(meta.get("labels") or {}), **labels}
    if manifest.kind == "TrainJob":
        return _prepare_train_job(document, more)
    for job in _jobs(document):
        _own_restarts(job, more)
    if manifest.kind == "JobSet" and not more.replace_pods:
        document["spec"]["failurePolicy"] = {"maxRestarts": 0}
    if "ttlSecondsAfterFinished" in document["spec"]:
        document["spec"]["ttlSecondsAfterFinished"] = max(_KEEP_S, int(document["spec"]["ttlSecondsAfterFinished"]))
    ranks = _rank_variables(manifest, more)
    for template in pod_templates(document):
        template["metadata"] = template.get("metadata") or {}
        template["metadata"]["labels"] = {**(template["metadata"].get("labels") or {}), **labels}
        _prepare_pod(template["spec"], more, ranks)
    return document


def _jobs(document: JsonObject) -> Iterator[JsonObject]:
    if document["kind"] == "Job":
        yield document["spec"]
    else:
        yield from (part["template"]["spec"] for part in document["spec"]["replicatedJobs"])


def _own_restarts(job: JsonObject, more: Additions) -> None:
    """Every restart is the supervisor's decision, unless Kubernetes is to replace pods."""
    if more.replace_pods:
        job.setdefault("backoffLimit", 1_000)
        return
    job["backoffLimit"] = 0
    job.pop("backoffLimitPerIndex", None)
    job.pop("podFailurePolicy", None)
    job["template"]["spec"]["restartPolicy"] = "Never"


def _prepare_pod(spec: JsonObject, more: Additions, ranks: list[JsonObject]) -> None:
    trainer = more.container or trainer_of(spec)
    if all(c.get("name") != trainer for c in spec["containers"]):
        raise BadConfigError(f"the manifest has no container '{trainer}'; check launch.kubernetes.container")
    spec.setdefault("restartPolicy", "Never")
    spec.setdefault("terminationGracePeriodSeconds", math.ceil(more.grace_s) + _SPARE_S)
    affinity = avoid(spec.get("affinity") or {}, more.hosts, more.excluded)
    if affinity:
        spec["affinity"] = affinity
    for container in spec["containers"]:
        own = dict(more.variables) if container["name"] == trainer else {}
        container["env"] = _variables(container.get("env") or [], own, ranks if own else [])
        if container["name"] != trainer:
            continue
        if more.command:
            container["command"] = list(more.command)
            container.pop("args", None)
        if more.config_map:
            _hook(spec, container, more)


def _hook(spec: JsonObject, container: JsonObject, more: Additions) -> None:
    """Before anything ends the pod (a drain, an eviction, a deletion) its ranks are asked to save, and waited for."""
    if (container.get("lifecycle") or {}).get("preStop"):
        return  # the user has one
    words = [more.python, "-S", f"{MOUNT}/node.py", "leave"]
    container["lifecycle"] = {**(container.get("lifecycle") or {}), "preStop": {"exec": {"command": words}}}
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": _VOLUME, "mountPath": MOUNT, "readOnly": True},
    ]
    volumes = [v for v in spec.get("volumes") or () if v.get("name") != _VOLUME]
    spec["volumes"] = [*volumes, {"name": _VOLUME, "configMap": {"name": more.config_map}}]


def _rank_variables(manifest: Manifest, more: Additions) -> list[JsonObject]:
    """Rendezvous of a plain set of pods, for what the manifest itself does not set; larger sets name their own."""
    parts = manifest.document["spec"].get("replicatedJobs") or [{}]
    count = manifest.num_pods or 1
    if len(parts) > 1 or int(parts[0].get("replicas", 1)) > 1:
        return []
    field_path = f"metadata.annotations['{COMPLETION_INDEX}']"
    index: JsonObject = {"valueFrom": {"fieldRef": {"fieldPath": field_path}}}
    first = _first_address(manifest, parts[0]) if count > 1 else "127.0.0.1"
    plain = {"PRISM_NUM_NODES": str(count), "PET_NNODES": str(count)}
    plain |= {"MASTER_PORT": str(more.port), "PET_MASTER_PORT": str(more.port)}
    plain |= {"MASTER_ADDR": first, "PET_MASTER_ADDR": first} if first else {}
    indexed = count > 1 or manifest.document["spec"].get("completionMode") == "Indexed" or manifest.kind == "JobSet"
    rank = [{"name": name, **(index if indexed else {"value": "0"})} for name in ("PRISM_NODE_RANK", "PET_NODE_RANK")]
    return [*({"name": name, "value": value} for name, value in plain.items()), *rank]


def _first_address(manifest: Manifest, part: JsonObject) -> str:
    """The name of the first pod in the cluster's DNS, where the manifest gives it one."""
    spec = manifest.document["spec"]
    if manifest.kind == "JobSet":
        domain = (spec.get("network") or {}).get("subdomain") or manifest.name
        return f"{manifest.name}-{part['name']}-0-0.{domain}"
    domain = spec["template"]["spec"].get("subdomain", "")
    return f"{manifest.name}-0.{domain}" if domain else ""


def _variables(own: list[JsonObject], orders: Mapping[str, str], ranks: list[JsonObject]) -> list[JsonObject]:
    """The container's variables with our orders over them, and what it does not set itself."""
    if not orders:
        return own
    told: list[JsonObject] = [{"name": name, "value": value} for name, value in orders.items() if name != HOST]
    told.append({"name": HOST, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    ours = {entry["name"] for entry in told}
    kept = [entry for entry in own if entry.get("name") not in ours]
    known = {entry.get("name") for entry in kept}
    return [*kept, *told, *(entry for entry in ranks if entry["name"] not in known)]


def _prepare_train_job(document: JsonObject, more: Additions) -> JsonObject:
    """A TrainJob takes variables and a command for its trainer, and patches for its runtime's pods."""
    trainer = document["spec"].setdefault("trainer", {})
    trainer["env"] = _variables(trainer.get("env") or [], more.variables, [])
    if more.command:
        trainer["command"] = list(more.command)
        trainer.pop("args", None)
    affinity = avoid({}, more.hosts, more.excluded)
    if affinity:
        pod = {"spec": {"template": {"spec": {"affinity": affinity}}}}
        jobs = {"replicatedJobs": [{"name": "node", "template": pod}]}
        patch = {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": jobs}}}
        document["spec"]["runtimePatches"] = [*(document["spec"].get("runtimePatches") or ()), patch]
    return document


def override_pods(document: JsonObject) -> JsonObject:
    """The same for a cluster whose TrainJob does not know `runtimePatches` yet (Kubeflow Trainer before 2.2)."""
    result = copy.deepcopy(document)
    patches = result["spec"].pop("runtimePatches", [])
    own = next((p for p in patches if p.get("manager") == _MANAGER), None)
    if own is not None:
        job = own["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
        entry = {"targetJobs": [{"name": job["name"]}], "spec": job["template"]["spec"]["template"]["spec"]}
        result["spec"]["podTemplateOverrides"] = [*(result["spec"].get("podTemplateOverrides") or ()), entry]
    return result
