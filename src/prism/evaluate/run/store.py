"""The folder of one evaluation: outputs, scores and metrics that were finished, each with its fingerprint.

    run.lock                                   held by the one coordinator that works here
    outputs/CHECKPOINT/DATASET/FIRST-LAST.jsonl  a head line, then one line per sample
    scores/CHECKPOINT/DATASET/FIRST-LAST.jsonl   the same for what each sample scored
    metrics/CHECKPOINT/DATASET.json             the dataset's metrics, made of its scores

A file has its name only when it is whole. What carries another fingerprint is not of this evaluation and is made anew.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Literal

from prism.errors import BadFileError, PrismError
from prism.evaluate.schedule.trials import Dataset, Part
from prism.machine.files import write_durably

Kind = Literal["outputs", "scores"]
Record = dict[str, Any]

_SCHEMA = "prism.evaluation-part/1"


class Store:
    """Reads and writes the files of an evaluation; safe to use from many processes on many nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lock(self) -> IO[str]:
        """Own the folder until the handle is closed or this process ends; a second run is refused."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = (self.folder / "run.lock").open("a+")
        except OSError as error:
            raise BadFileError(f"{self.folder}: cannot be written ({error.strerror}); name another --output") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            handle.close()
            raise BadFileError(
                f"{self.folder}: another evaluation writes here (process {owner}); wait for it or name another --output"
            ) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        return handle

    def write(self, kind: Kind, part: Part, fingerprint: str, records: Iterable[Record]) -> None:
        """Keep what a part gave, one record per sample."""
        lines = [json.dumps({"schema": _SCHEMA, "fingerprint": fingerprint, "first": part.first, "last": part.last})]
        lines += [json.dumps(record) for record in records]
        if len(lines) != part.samples + 1:
            raise PrismError(f"{part}: {len(lines) - 1} records for {part.samples} samples; fix the adapter's command")
        write_durably(self._path(kind, part), "\n".join(lines) + "\n")

    def read(self, kind: Kind, part: Part) -> list[Record]:
        """What was kept of a part, in the order of its samples."""
        path = self._path(kind, part)
        try:
            with path.open() as handle:
                next(handle)
                return [json.loads(line) for line in handle]
        except (OSError, ValueError, StopIteration) as error:
            raise BadFileError(f"{path}: cannot be read ({error}); remove it, and it is made anew") from None

    def kept(self, kind: Kind, checkpoint: str, dataset: Dataset, fingerprint: str) -> list[Part]:
        """Parts of a dataset that are finished and still valid, none of them overlapping."""
        found = []
        for path in self._folder(kind, checkpoint, dataset.name).glob("*.jsonl"):
            head = _read_head(path)
            if head is not None and head.get("fingerprint") == fingerprint:
                found.append(Part(checkpoint=checkpoint, dataset=dataset.name, first=head["first"], last=head["last"]))
        chosen: list[Part] = []
        for part in sorted(found, key=lambda p: (p.first, -p.last)):
            if part.last <= dataset.samples and (not chosen or part.first >= chosen[-1].last):
                chosen.append(part)
        return chosen

    def write_metrics(self, checkpoint: str, dataset: str, fingerprint: str, metrics: dict[str, float]) -> None:
        """Keep a dataset's metrics."""
        document = {"fingerprint": fingerprint, "checkpoint": checkpoint, "dataset": dataset, "metrics": metrics}
        write_durably(self._metrics_path(checkpoint, dataset), json.dumps(document) + "\n")

    def read_metrics(self, checkpoint: str, dataset: str, fingerprint: str) -> dict[str, float] | None:
        """A dataset's metrics if they were made of the same model, data, prompt, settings and code."""
        try:
            document = json.loads(self._metrics_path(checkpoint, dataset).read_text())
            found = {str(k): float(v) for k, v in document["metrics"].items()}
            valid = document["fingerprint"] == fingerprint and all(map(math.isfinite, found.values()))
            return found if valid else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _folder(self, kind: Kind, checkpoint: str, dataset: str) -> Path:
        return self.folder / kind / as_name(checkpoint) / as_name(dataset)

    def _path(self, kind: Kind, part: Part) -> Path:
        return self._folder(kind, part.checkpoint, part.dataset) / f"{part.first}-{part.last}.jsonl"

    def _metrics_path(self, checkpoint: str, dataset: str) -> Path:
        return self.folder / "metrics" / as_name(checkpoint) / f"{as_name(dataset)}.json"


def as_name(text: str) -> str:
    """A name that is safe as a file's."""
    quoted = urllib.parse.quote(text, safe=" +=,@")
    return quoted.replace(".", "%2E", 1) if quoted.startswith(".") else quoted


def _read_head(path: Path) -> Record | None:
    try:
        with path.open() as handle:
            head = json.loads(handle.readline())
        return head if head.get("schema") == _SCHEMA else None
    except (OSError, ValueError, AttributeError):
        return None
