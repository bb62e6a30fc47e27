"""Read scenarios: YAML files, or the named ones that ship with Prism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from prism.errors import BadConfigError, BadFileError
from prism.lab.scenarios.scenario import Scenario, check_scenario
from prism.records.settings import build, nearest, parse_mapping, read_text
from prism.simulate.cluster import Cluster
from prism.simulate.cluster_file import read_cluster
from prism.simulate.plans.model import MODELS

_LIBRARY = resources.files("prism.lab.scenarios") / "library"


def scenario_names() -> tuple[str, ...]:
    """The scenarios that ship with Prism."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in _LIBRARY.iterdir() if f.name.endswith(".yaml")))


def load_scenario(name_or_path: str | Path) -> Scenario:
    """A named scenario, or one from a YAML file."""
    where = str(name_or_path)
    if where in scenario_names():
        return read_scenario((_LIBRARY / f"{where}.yaml").read_text("utf-8"), where)
    path = Path(name_or_path)
    if not path.is_file():
        hint = nearest(where, scenario_names())
        raise BadFileError(f"{where}: no such scenario or file{hint}; list them with: prism scenario --list")
    return read_scenario(read_text(path), where)


def read_scenario(text: str, where: str = "scenario") -> Scenario:
    """Parse the text of a scenario file; errors call it `where`."""
    document = parse_mapping(text, where, "'cluster' and 'jobs'")
    settings = {"name": Path(where).stem, **document}
    if "cluster" in settings:
        settings["cluster"] = _read_cluster(settings["cluster"], f"{where}: 'cluster'")
    if isinstance(settings.get("jobs"), list):
        settings["jobs"] = [
            _name_model(job, f"{where}: 'jobs' entry {i + 1}") for i, job in enumerate(settings["jobs"])
        ]
    scenario: Scenario = build(Scenario, settings, where)
    try:
        check_scenario(scenario)
    except BadConfigError as error:
        raise BadConfigError(f"{where}: {error}") from None
    return scenario


def _read_cluster(document: Any, where: str) -> Cluster:
    """A cluster given as a preset's name or as the keys of a cluster file."""
    settings = {"preset": document} if isinstance(document, str) else document
    return read_cluster(yaml.safe_dump(settings), where)


def _name_model(document: Any, where: str) -> Any:
    """A job whose model may be a name, or a named one with changed keys."""
    if not isinstance(document, Mapping) or "model" not in document:
        return document
    model = document["model"]
    keys = dict(model) if isinstance(model, Mapping) else {"preset": model}
    preset = keys.pop("preset", None)
    if preset is not None:
        if preset not in MODELS:
            raise BadConfigError(
                f"{where}: 'model' is {preset!r}{nearest(str(preset), MODELS)}; models: {', '.join(MODELS)}"
            )
        keys = {**asdict(MODELS[preset]), **keys}
    return {**document, "model": keys}
