"""Which nodes pods may go to: an affinity without the excluded ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from prism.recover.supervise.launchers.kubernetes.api import JsonObject


def avoid(affinity: Mapping[str, Any], hosts: tuple[str, ...], excluded: tuple[str, ...]) -> JsonObject:
    """The same affinity without the excluded nodes, and with only the named ones where some are.

    A pod goes where any one of the terms holds, so each of them must leave the nodes out. By the node's name: the label
    kubernetes.io/hostname may differ from it.
    """
    result = copy.deepcopy(dict(affinity))
    if not hosts and not excluded:
        return result
    required = (result.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or [{}]
    out = [_by_name("NotIn", node) for node in excluded]
    pins = [[_by_name("In", host)] for host in hosts if host not in excluded] or [[]]
    new = [{**term, "matchFields": [*(term.get("matchFields") or ()), *out, *pin]} for term in terms for pin in pins]
    node = {**(result.get("nodeAffinity") or {})}
    node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": new}
    return {**result, "nodeAffinity": node}


def _by_name(operator: str, node: str) -> JsonObject:
    return {"key": "metadata.name", "operator": operator, "values": [node]}
