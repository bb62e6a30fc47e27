"""The file with the access to live clusters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from prism.datacenter.place.clusters import Cluster
from prism.datacenter.place.live.kueue import KueueCluster
from prism.datacenter.place.live.slurm import SlurmCluster
from prism.datacenter.place.live.snapshot import LiveCluster
from prism.datacenter.place.tables import read_cluster
from prism.errors import BadConfigError, BadFileError

_SLURM = {"conf": str, "cluster": str, "prefix": list, "unit": str, "timeout_s": float, "settle_s": float}
_KUEUE = {"context": str, "kubeconfig": str, "namespace": str, "queue": str, "folder": str, "timeout_s": float}


def read_live(path: Path) -> tuple[dict[str, LiveCluster], dict[str, Cluster]]:
    """Clusters by name, with what the file says about each."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadFileError(f"{path}: not readable YAML ({str(error)[:80]})") from None
    rows = document.get("clusters") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows:
        raise BadFileError(f"{path}: expected `clusters:` with a list of name and slurm or kueue")
    live: dict[str, LiveCluster] = {}
    traits = {}
    for number, row in enumerate(rows, 1):
        where = f"{path} cluster {number}"
        if not isinstance(row, dict) or "name" not in row or ("slurm" in row) == ("kueue" in row):
            raise BadConfigError(f"{where}: needs a name and either `slurm:` or `kueue:`")
        name = str(row["name"])
        if name in live:
            raise BadConfigError(f"{where}: '{name}' is named twice")
        if "slurm" in row:
            words = _check(row["slurm"], _SLURM, where)
            if words.get("unit", "gpu") not in ("gpu", "node", "cpu"):
                raise BadConfigError(f"{where}: 'unit' is {words['unit']!r}, expected gpu, node or cpu")
            live[name] = SlurmCluster(name=name, **words)
        else:
            live[name] = KueueCluster(name=name, **_check(row["kueue"], _KUEUE, where))
        known = {key: value for key, value in row.items() if key not in ("slurm", "kueue")}
        traits[name] = read_cluster({"gpus": 1, **known}, where)
    return live, traits


def _check(section: Any, known: Mapping[str, type], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    section = section or {}
    if not isinstance(section, Mapping) or not set(section) <= set(known):
        raise BadConfigError(f"{where}: expected only {', '.join(known)}")
    for name, value in section.items():
        kind = known[name]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind):
            raise BadConfigError(f"{where}: '{name}' is {value!r:.40}, expected {kind.__name__}")
        found[name] = tuple(str(word) for word in value) if isinstance(value, list) else value
    return found
