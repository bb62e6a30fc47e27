"""Job tables in JSON: which system wrote them, and their rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from prism.datacenter.characterize import kubernetes, slurm
from prism.datacenter.characterize.philly import flatten_philly
from prism.errors import BadFileError

_KNOWN = "Philly's cluster_job_log, sacct --json, or kubectl get ... -o json"


def read_json_table(path: Path) -> pl.DataFrame:
    """The rows of a JSON document or of JSON Lines, all text."""
    document = load_documents(path)
    if isinstance(document, list) and document and all(kubernetes.is_kubernetes(part) for part in document):
        return kubernetes.read_objects(document, str(path))
    if isinstance(document, list) and all(isinstance(part, dict) and "attempts" in part for part in document):
        return flatten_philly(document, str(path))
    if isinstance(document, list) and document and all(isinstance(part, dict) for part in document):
        return _read_records(document, path)
    if kubernetes.is_kubernetes(document):
        return kubernetes.read_objects([document], str(path))
    if isinstance(document, dict) and isinstance(document.get("jobs"), list):
        if any(isinstance(job, dict) and "time" in job and "tres" in job for job in document["jobs"]):
            return slurm.read_json(document, str(path))
        raise BadFileError(f"{path}: 'jobs' holds none as sacct --json writes them; known are {_KNOWN}")
    raise BadFileError(f"{path}: JSON of a kind that is not known; known are {_KNOWN}, or a list of flat records")


def load_documents(path: Path) -> Any:
    """One JSON document; or a list of them if there are several, one per line or one after the other."""
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
        try:
            return json.loads(text)
        except ValueError as error:
            found = _load_each(text)
            if found is None:
                raise BadFileError(f"{path}: not JSON that can be read ({error}); known are {_KNOWN}") from None
            return found
    except (OSError, RecursionError) as error:
        raise BadFileError(f"{path}: not JSON that can be read ({error}); known are {_KNOWN}") from None


def _load_each(text: str) -> list[Any] | None:
    """Documents that follow each other; a last one that was cut off, as by a stopped watch, is left out."""
    decoder, place = json.JSONDecoder(), 0
    found: list[Any] = []
    while True:
        while place < len(text) and text[place].isspace():
            place += 1
        if place >= len(text):
            break
        try:
            document, place = decoder.raw_decode(text, place)
        except ValueError:
            cut_off = "\n" not in text[place:].rstrip("\n")
            return found if len(found) > 0 and cut_off else None
        found.append(document)
    return found or None


def _read_records(records: list[dict[str, Any]], path: Path) -> pl.DataFrame:
    """Flat records as a table; what is nested within them is left out."""
    names = list(dict.fromkeys(name for record in records for name in record))
    flat = [name for name in names if not any(isinstance(record.get(name), dict | list) for record in records)]
    if not flat:
        raise BadFileError(f"{path}: records without plain values; known are {_KNOWN}, or a list of flat records")
    rows = [[None if record.get(name) is None else str(record[name]) for name in flat] for record in records]
    return pl.DataFrame(rows, schema=dict.fromkeys(flat, pl.String), orient="row")
