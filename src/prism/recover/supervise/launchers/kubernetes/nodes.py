"""Nodes: checks whether they are reachable, and marks them as suspect if the user wants that."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from prism.recover.supervise.launchers.kubernetes.api import MERGE, STRATEGIC, Api, ApiRefused
from prism.recover.supervise.launchers.kubernetes.pods import pick

TAINT = "prism-suspect"
CONDITION = "PrismSuspect"
_ASK_EVERY_S = 10.0
_MAX_MESSAGE = 1_000


class NodeWatch:
    """Which nodes of a job the cluster has called unreachable for a while. Without the right to ask: none."""

    def __init__(self, api: Api, patience_s: float) -> None:
        self._api, self._patience_s = api, patience_s
        self._asked_s = -_ASK_EVERY_S
        self._since: dict[str, float] = {}  # per node that is unreachable: since when we know
        self._allowed = True

    def lost(self, nodes: tuple[str, ...]) -> frozenset[str]:
        """Those that are lost by now."""
        now = time.monotonic()
        if self._allowed and now - self._asked_s >= min(_ASK_EVERY_S, max(self._patience_s, 0.5)):
            self._asked_s = now
            self._since = {node: self._since.get(node, now) for node in nodes if self._is_away(node)}
        return frozenset(n for n, since in self._since.items() if n in nodes and now - since >= self._patience_s)

    def _is_away(self, node: str) -> bool:
        try:
            found = self._api.find(f"/api/v1/nodes/{node}")
        except ApiRefused as refused:
            self._allowed = refused.status != 403
            return False
        except OSError:
            return node in self._since  # the server does not answer: what was known stays
        return found is None or is_unreachable(found)


def is_unreachable(node: dict[str, Any]) -> bool:
    """Whether the node's kubelet has stopped reporting. A node that reports trouble itself is still there."""
    return pick((node.get("status") or {}).get("conditions"), "type", "Ready").get("status") == "Unknown"


def mark_suspect(api: Api, node: str, reason: str, dry_run: bool) -> str:
    """Taint a node so that nothing new is placed there, and say why in a condition; what was done, in a line."""
    if dry_run:
        return f"node {node} would be tainted {TAINT}:NoSchedule ({reason}); launch.kubernetes.taint: true does it"
    path = f"/api/v1/nodes/{node}"
    found = api.find(path)
    if found is None:
        return f"node {node} is not in the cluster any more"
    taints = [t for t in (found.get("spec") or {}).get("taints") or () if t.get("key") != TAINT]
    taint = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
    _set_taints(api, path, [*taints, taint], found)
    _set_condition(api, path, "True", "HostCondemned", reason)
    return f"node {node} is tainted {TAINT}:NoSchedule ({reason})"


def clear_suspect(api: Api, node: str) -> None:
    """Remove our own mark; marks of others stay."""
    path = f"/api/v1/nodes/{node}"
    found = api.find(path)
    taints = ((found or {}).get("spec") or {}).get("taints") or []
    if found is None or all(t.get("key") != TAINT for t in taints):
        return
    _set_taints(api, path, [t for t in taints if t.get("key") != TAINT], found)
    _set_condition(api, path, "False", "Returned", "the time out of use is over")


def _set_taints(api: Api, path: str, taints: list[dict[str, Any]], seen: dict[str, Any]) -> None:
    # With the version that was read: a list is replaced whole, and someone else's change must not be lost.
    meta = {"resourceVersion": seen["metadata"]["resourceVersion"]}
    api.patch(path, {"metadata": meta, "spec": {"taints": taints}}, MERGE)


def _set_condition(api: Api, path: str, status: str, reason: str, message: str) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": CONDITION, "status": status, "reason": reason, "message": message[:_MAX_MESSAGE]}
    condition |= {"lastTransitionTime": now, "lastHeartbeatTime": now}
    api.patch(f"{path}/status", {"status": {"conditions": [condition]}}, STRATEGIC)
