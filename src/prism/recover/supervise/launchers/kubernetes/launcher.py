"""Attempts as one workload of a cluster, created anew for each under the same name.

Who owns what is said by labels: the run's random id and the attempt's number are on the workload and its pods, so that
a supervisor that was killed finds its attempt again, and none touches what is not its own. An object's name is unique,
so the same attempt started twice is one.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from prism.errors import BadConfigError
from prism.recover.progress import ATTEMPT_KEY, RUN_DIR
from prism.recover.supervise.config import LaunchSettings
from prism.recover.supervise.launchers import LaunchPlan, Look, no_hurry
from prism.recover.supervise.launchers.kubernetes.additions import (
    ATTEMPT_LABEL,
    RUN_LABEL,
    Additions,
    override_pods,
    prepare,
)
from prism.recover.supervise.launchers.kubernetes.api import Api, ApiRefused, JsonObject
from prism.recover.supervise.launchers.kubernetes.credentials import find_credentials
from prism.recover.supervise.launchers.kubernetes.manifest import read_manifest
from prism.recover.supervise.launchers.kubernetes.nodes import NodeWatch, clear_suspect, mark_suspect
from prism.recover.supervise.launchers.kubernetes.records import (
    WorkloadRecord,
    read_end,
    read_record,
    run_id,
    write_end,
    write_record,
)
from prism.recover.supervise.launchers.kubernetes.session import Session
from prism.recover.supervise.launchers.local import NODE_PROGRAM, attempt_key

_SYNC_S = 5.0
_SETTLE_S = 60.0
_POLL_S = 0.3
_NOW_S = 1  # of grace: 0 would only forget the pod, while its processes may live on


class KubernetesLauncher:
    """One JobSet, TrainJob or Indexed Job per run, created again for every attempt."""

    def __init__(self, settings: LaunchSettings | None = None, say: Callable[[str], None] = lambda line: None) -> None:
        self.settings = settings or LaunchSettings()
        own = self.settings.kubernetes
        if not own.manifest:
            raise BadConfigError(
                "--launcher kubernetes needs a workload: --manifest FILE, or launch.kubernetes.manifest"
            )
        self._api = Api(find_credentials(own.context))
        self._manifest = read_manifest(Path(own.manifest), own.namespace or self._api.credentials.namespace)
        self._nodes = NodeWatch(self._api, own.node_lost_s)
        self._say = say
        self._sessions: dict[Path, Session] = {}

    # -- the contract of a launcher

    def start(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Create the workload of an attempt, or take it over if it exists."""
        plan.folder.mkdir(parents=True, exist_ok=True)
        run = run_id(plan.folder.parent.parent)
        body = prepare(self._manifest, self._additions(plan, run))
        found = self._api.find(self._path)
        if found is not None and not self._is_of(found, run, plan.orders.attempt):
            self._check_own(found, run)
            self._end(plan.folder, 0.0, no_hurry)
            found = None
        if found is None:
            self._wait_gone(run)
            found = self._create(body, run)
        meta = found["metadata"]
        record = WorkloadRecord(
            name=self._manifest.name,
            namespace=self._manifest.namespace,
            path=self._manifest.path,
            uid=str(meta["uid"]),
            selector=self._manifest.selector or f"{RUN_LABEL}={run},{ATTEMPT_LABEL}={plan.orders.attempt}",
            num_pods=self._manifest.num_pods,
        )
        write_record(plan.folder, record)
        self._open(plan.folder, record)
        return ()

    def look(self, folder: Path) -> Look:
        """The status from the watches; the end of an attempt is written to its folder."""
        ended = read_end(folder)
        if ended is not None:
            return ended
        session = self._session(folder)
        if session is None:
            return Look(running=False)
        if not session.wait_listed(_SYNC_S):
            # Without an answer of the cluster nothing is known about the job; it is assumed to run.
            self._tell_trouble(session)
            return Look(running=True, queued=True)
        self._tell_trouble(session)
        look = session.look(self._nodes)
        if not look.running:
            session.logs.drain(_SETTLE_S / 4)
            write_end(folder, look)
            for line in session.describe_ends():
                self._say(line)
        return look

    def stop(self, folder: Path, grace_s: float, hurry: Callable[[], bool] = no_hurry) -> None:
        """Delete the workload. With grace its ranks are asked first, by the hook that any other drain would run."""
        ended = read_end(folder)
        if ended is None and self._session(folder) is None:
            return
        if ended is None or ended.code != 0:  # a completed workload stays, so that it can be inspected
            self._end(folder, grace_s, hurry)
        if ended is None:
            write_end(folder, self.look(folder))
        session = self._sessions.pop(folder, None)
        if session is not None:
            session.close()

    def logs(self, folder: Path) -> list[Path]:
        """One log per pod; those of new pods are followed from now on."""
        session = self._session(folder) if read_end(folder) is None else None
        if session is not None:
            session.follow_logs()
        return sorted(folder.glob("*.log"))

    def pids(self, folder: Path) -> list[int]:
        """None on this machine."""
        return []

    def cordon(self, host: str, reason: str) -> None:
        """Taint the node if the user wants that; our own attempts avoid it in any case."""
        with contextlib.suppress(OSError):
            try:
                self._say(mark_suspect(self._api, host, reason, dry_run=not self.settings.kubernetes.taint))
            except ApiRefused as refused:
                self._say(f"node {host} was not tainted: {refused}")

    def uncordon(self, host: str) -> None:
        """Undo our own taint."""
        if self.settings.kubernetes.taint:
            with contextlib.suppress(OSError, ApiRefused):
                clear_suspect(self._api, host)

    def prefix(self, host: str) -> tuple[str, ...]:
        """Raise: no command can be run on a node without a pod there."""
        raise BadConfigError("the host test does not reach Kubernetes nodes; nodes are judged by how pods end there")

    # -- inside

    @property
    def _path(self) -> str:
        return f"{self._manifest.path}/{self._manifest.name}"

    def _additions(self, plan: LaunchPlan, run: str) -> Additions:
        own = self.settings.kubernetes
        orders = plan.orders.to_environment()
        orders[RUN_DIR] = own.run_dir
        return Additions(
            run=run,
            attempt=plan.orders.attempt,
            command=plan.command,
            container=own.container,
            variables={**orders, **plan.variables, ATTEMPT_KEY: attempt_key(plan.folder)},
            hosts=plan.hosts,
            excluded=plan.excluded,
            grace_s=self.settings.grace_s,
            python=self.settings.python,
            config_map="" if self._manifest.kind == "TrainJob" else self._config_map,
            # Pods on the host's own network share its ports: each attempt has another.
            port=20_000 + (zlib.crc32(run.encode()) * 7 + plan.orders.attempt) % 20_000,
            replace_pods=own.restart == "pod" and self._manifest.kind != "TrainJob",
        )

    @property
    def _config_map(self) -> str:
        return f"{self._manifest.name}-prism"

    def _create(self, body: JsonObject, run: str) -> JsonObject:
        if self._manifest.kind == "TrainJob":
            return self._create_train_job(body)
        maps = f"/api/v1/namespaces/{self._manifest.namespace}/configmaps"
        self._api.delete(f"{maps}/{self._config_map}")
        meta = {"name": self._config_map, "labels": {RUN_LABEL: run}}
        data = {"node.py": NODE_PROGRAM.read_text()}
        self._api.create(maps, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
        made = self._api.create(self._manifest.path, body)
        owner = {key: made[key] for key in ("apiVersion", "kind")} | {
            key: made["metadata"][key] for key in ("name", "uid")
        }
        # Owned by the workload, so that it goes with it.
        self._api.patch(f"{maps}/{self._config_map}", {"metadata": {"ownerReferences": [owner]}})
        return made

    def _create_train_job(self, body: JsonObject) -> JsonObject:
        """Put the nodes to avoid into the field that this cluster's TrainJob knows; it drops unknown fields."""
        patches = body["spec"].get("runtimePatches")
        if patches:
            tried = self._api.create(self._manifest.path, body, {"dryRun": "All"})
            body = body if (tried.get("spec") or {}).get("runtimePatches") else override_pods(body)
        made = self._api.create(self._manifest.path, body)
        if patches and not {"runtimePatches", "podTemplateOverrides"} & set(made.get("spec") or ()):
            self._say("this cluster's TrainJob takes no affinity: cordoned nodes are not avoided")
        return made

    def _is_of(self, found: JsonObject, run: str, attempt: int) -> bool:
        labels = found["metadata"].get("labels") or {}
        mine = (labels.get(RUN_LABEL), labels.get(ATTEMPT_LABEL)) == (run, str(attempt))
        return mine and not found["metadata"].get("deletionTimestamp")

    def _check_own(self, found: JsonObject, run: str) -> None:
        owner = (found["metadata"].get("labels") or {}).get(RUN_LABEL)
        if owner != run:
            whose = f"another run's ({RUN_LABEL}={owner})" if owner else "not one of prism supervise"
            raise BadConfigError(
                f"{self._manifest.kind} {self._manifest.namespace}/{self._manifest.name} exists and is {whose}; "
                "delete it or name yours otherwise"
            )

    def _end(self, folder: Path, grace_s: float, hurry: Callable[[], bool]) -> None:
        """Delete workload and pods and wait for their end; pods of lost nodes are deleted without confirmation."""
        run = run_id(folder.parent.parent)
        found = self._api.find(self._path)
        if found is not None and (found["metadata"].get("labels") or {}).get(RUN_LABEL) == run:
            self._api.delete(self._path, propagation="Foreground")
        deadline = time.monotonic() + grace_s
        while grace_s > 0 and self._left(run) and time.monotonic() < deadline and not hurry():
            time.sleep(_POLL_S)
        for pod in self._left(run):
            self._api.delete(self._pod_path(pod), grace_s=_NOW_S)
        deadline = time.monotonic() + _SETTLE_S
        while (left := self._left(run)) and time.monotonic() < deadline:
            nodes = tuple({str(pod["spec"].get("nodeName") or "") for pod in left})
            away = self._nodes.lost(nodes)
            for pod in left:
                if pod["spec"].get("nodeName") in away or not pod["spec"].get("nodeName"):
                    self._api.delete(self._pod_path(pod), grace_s=0)  # no kubelet is there to confirm its end
            time.sleep(_POLL_S)

    def _pods(self, run: str) -> list[JsonObject]:
        selector = self._manifest.selector or f"{RUN_LABEL}={run}"
        found = self._api.get(f"/api/v1/namespaces/{self._manifest.namespace}/pods", {"labelSelector": selector})
        return list(found.get("items") or ())

    def _left(self, run: str) -> list[JsonObject]:
        """Pods that may still run something."""
        phases = ("Succeeded", "Failed")
        return [pod for pod in self._pods(run) if (pod.get("status") or {}).get("phase") not in phases]

    def _pod_path(self, pod: JsonObject) -> str:
        return f"/api/v1/namespaces/{self._manifest.namespace}/pods/{pod['metadata']['name']}"

    def _wait_gone(self, run: str) -> None:
        """Wait until the name is free and no pod of the previous attempt is left."""
        deadline = time.monotonic() + _SETTLE_S
        while self._api.find(self._path) is not None or self._pods(run):
            if time.monotonic() > deadline:
                nodes = sorted({str(pod["spec"].get("nodeName") or "no node") for pod in self._pods(run)})
                where = f" (pods on {', '.join(nodes)} do not end)" if nodes else ""
                raise OSError(f"{self._manifest.kind} {self._manifest.name} is still being deleted{where}")
            time.sleep(_POLL_S)

    def _session(self, folder: Path) -> Session | None:
        if folder not in self._sessions:
            record = read_record(folder)
            if record is None:
                return None
            self._open(folder, record)
        return self._sessions[folder]

    def _open(self, folder: Path, record: WorkloadRecord) -> None:
        earlier = self._sessions.pop(folder, None)
        if earlier is not None:
            earlier.close()
        self._sessions[folder] = Session(self._api, folder, record, self.settings.kubernetes)

    def _tell_trouble(self, session: Session) -> None:
        for line in session.new_trouble():
            self._say(line)
