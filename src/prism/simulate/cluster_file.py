"""Read a cluster file: YAML with the keys of `Cluster`, on its own or on top of a preset."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path

from prism.errors import BadConfigError, BadFileError
from prism.records.settings import build, nearest, parse_mapping, read_text
from prism.simulate.cluster import Cluster

_PRESETS = resources.files("prism.simulate") / "presets"


def preset_names() -> tuple[str, ...]:
    """The clusters that Prism brings along."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in _PRESETS.iterdir() if f.name.endswith(".yaml")))


def load_cluster(path_or_preset: str | Path, num_hosts: int | None = None) -> Cluster:
    """A preset by name, or a YAML file; `num_hosts` says how many hosts it has, and no more."""
    where = str(path_or_preset)
    names = preset_names()
    if where in names:
        cluster = _preset(where)
    else:
        path = Path(path_or_preset)
        if not path.is_file():
            hint = nearest(where, names)
            raise BadFileError(f"{where}: no such cluster file or preset{hint}; presets: {', '.join(names)}")
        cluster = read_cluster(read_text(path), where)
    return cluster if num_hosts is None else replace(cluster, num_hosts=num_hosts, elastic=False)


def read_cluster(text: str, where: str = "cluster") -> Cluster:
    """Parse the text of a cluster file; `where` is what errors call it."""
    settings = parse_mapping(text, where, "'preset' or 'num_hosts'")
    base = None
    if "preset" in settings:
        preset = settings.pop("preset")
        if preset not in preset_names():
            raise BadConfigError(
                f"{where}: 'preset' is {preset!r}{nearest(str(preset), preset_names())}; "
                f"expected one of {', '.join(preset_names())}"
            )
        base = _preset(preset)
    settings.setdefault("elastic", "num_hosts" not in settings and (base is None or base.elastic))
    settings.setdefault("name", base.name if base else Path(where).stem or "cluster")
    cluster: Cluster = build(Cluster, settings, where, base=base)
    return cluster


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write a cluster as a file that `load_cluster` reads back as the same cluster."""
    import yaml

    known = {key: value for key, value in asdict(cluster).items() if value is not None}
    known["nccl_algo"], known["links"] = list(cluster.nccl_algo), [dict(link) for link in known["links"]]
    path.write_text(yaml.safe_dump(known, sort_keys=False))


def _preset(name: str) -> Cluster:
    return read_cluster((_PRESETS / f"{name}.yaml").read_text("utf-8"), name)
