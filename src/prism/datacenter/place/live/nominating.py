"""MultiKueue with scores instead of a race: writes the best worker clusters into the status of a workload.

Kueue's manager sends a workload only to the clusters in `status.nominatedClusterNames` when its configuration names an
external dispatcher. Workers have the names of their MultiKueueCluster objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prism.datacenter.place.clusters import Job
from prism.datacenter.place.live.dispatcher import Dispatcher
from prism.datacenter.place.live.journal import Entry
from prism.datacenter.place.live.kueue import KueueCluster, read_workload
from prism.datacenter.place.live.snapshot import SubmitError

# Kueue clears the field once a worker has admitted the workload, which works only for its own field manager.
_FIELD_MANAGER = "kueue-admission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nomination:
    """The clusters that a workload may be sent to, best first, and why."""

    namespace: str
    workload: str
    version: str  # of the object that was read
    clusters: tuple[str, ...]
    why: str


@dataclass(slots=True, kw_only=True)
class Nominator:
    """Nominates clusters for a manager's workloads: one cluster first, another one each time the patience ends."""

    manager: KueueCluster
    dispatcher: Dispatcher
    patience_s: float = 300.0  # as Kueue's own incremental dispatcher
    _since: dict[str, float] = field(default_factory=dict)

    def decide(self) -> list[Nomination]:
        """The nominations due now; changes nothing."""
        found = []
        for item in self.manager.list_workloads():
            held = tuple((item.get("status") or {}).get("nominatedClusterNames") or ())
            seen = read_workload(item)
            if seen is None or not _waits_for_worker(item):
                continue
            name = f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
            now_s = self.dispatcher.clock()
            if held and now_s - self._since.setdefault(name, now_s) < self.patience_s:
                continue
            job = Job(id=name, submit_s=now_s, gpus=seen.gpus, home="", user=seen.user)
            asked = self.dispatcher.weigh(job, None)
            best = next((c for c in asked.choices if c.fits and c.cluster not in held), None)
            if best is None:
                continue
            self._since[name] = now_s
            self.dispatcher.note_placed(job, Entry(mark=name, state="placed", cluster=best.cluster))
            found.append(
                Nomination(
                    namespace=item["metadata"].get("namespace", ""),
                    workload=item["metadata"]["name"],
                    version=str(item["metadata"]["resourceVersion"]),
                    clusters=(*held, best.cluster),
                    why=best.why,
                )
            )
        return found

    def act(self, nomination: Nomination) -> bool:
        """Write it; False if the workload has changed since, so that the next round decides again."""
        body = {
            "metadata": {"resourceVersion": nomination.version},
            "status": {"nominatedClusterNames": list(nomination.clusters)},
        }
        words = ["patch", "workloads.kueue.x-k8s.io", nomination.workload, "-n", nomination.namespace]
        words += ["--subresource=status", "--type=merge", f"--field-manager={_FIELD_MANAGER}", "-p", json.dumps(body)]
        try:
            self.manager.kubectl(*words)
        except SubmitError as error:
            self.dispatcher.tell(f"{nomination.namespace}/{nomination.workload}: not nominated now ({error})")
            self._since.pop(f"{nomination.namespace}/{nomination.workload}", None)
            return False
        return True


def _waits_for_worker(item: Mapping[str, Any]) -> bool:
    """Whether quota is reserved on the manager, a check is pending and no worker has taken it."""
    status = item.get("status") or {}
    conditions = {c["type"] for c in status.get("conditions", []) if c.get("status") == "True"}
    pending = any(check.get("state") == "Pending" for check in status.get("admissionChecks", []))
    return "QuotaReserved" in conditions and pending and not status.get("clusterName") and "Admitted" not in conditions
