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
    records = find_records(document)
    if any("time" in job and "tres" in job for job in records):
        return slurm.read_json(document, str(path))
    if records:
        return _read_records(records, path)
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


def find_records(document: Any) -> list[dict[str, Any]]:
    """The longest list of objects, or object of objects, at the top of a document."""
    if not isinstance(document, dict):
        return []
    lists: list[list[Any]] = [value for value in document.values() if isinstance(value, list)]
    # `qstat -F json` and others key their jobs by id.
    lists += [[{"job_id": k, **v} for k, v in value.items() if isinstance(v, dict)]
              for value in document.values() if isinstance(value, dict)]  # fmt: skip
    found = [part for part in lists if part and all(isinstance(record, dict) for record in part)]
    return max(found, key=len, default=[])


def _read_records(records: list[dict[str, Any]], path: Path) -> pl.DataFrame:
    """Records as a table, all text; what is nested within them is named by its path."""
    flat = [flatten(record) for record in records]
    names = list(dict.fromkeys(name for row in flat for name in row))
    if not names:
        raise BadFileError(f"{path}: records without plain values; known are {_KNOWN}, or a list of flat records")
    rows = [[row.get(name) for name in names] for row in flat]
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")


def flatten(record: dict[str, Any], within: str = "", depth: int = 0) -> dict[str, str | None]:
    """The plain values of a record by path; a number that says whether it is set is that number or nothing."""
    found: dict[str, str | None] = {}
    for key, value in record.items():
        name = f"{within}.{key}" if within else str(key)
        if isinstance(value, dict) and {"set", "number"} <= value.keys():
            is_known = value["set"] and not value.get("infinite") and value["number"]
            found[name] = str(value["number"]) if is_known else None
        elif isinstance(value, dict) and depth < 4:
            found |= flatten(value, name, depth + 1)
        elif isinstance(value, list) and all(isinstance(part, str) for part in value):
            found[name] = ",".join(value[:1]) if "state" in key.lower() else ",".join(value)
        elif not isinstance(value, dict | list):
            found[name] = None if value is None else str(value)
    return found
