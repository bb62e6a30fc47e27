"""Any program as a dataset, by a contract of two files: it writes outputs, then it writes metrics.

The `infer` command gets {model} {first} {last} {output} {data} {device} {shrink} and writes {output}: JSON Lines, one
object per sample from `first` to `last` (not included). The `score` command gets {outputs} {metrics} {first} {data}: it
reads the same lines and writes {metrics}: JSON, either {"samples": [{"acc": 1.0}, ...]} with one object per line, of
which means are taken, or, for a dataset with `splittable: false`, {"metrics": {"acc": 0.5}}. Both end with 0.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, BadFileError, PrismError
from prism.evaluate.run.adapters.adapter import Record, SampleError, Survey, WorkerCache, check_known, read_directions
from prism.evaluate.run.adapters.programs import fill_command, run_program
from prism.evaluate.run.fingerprint import identify_file
from prism.evaluate.schedule.trials import Dataset

_KNOWN = ("infer", "score", "data", "folder", "lower_is_better", "higher_is_better", "score_timeout_s", "version")
_OUT_OF_MEMORY = ("out of memory", "OutOfMemory", "MemoryError")


class CommandAdapter:
    """Runs the commands that a dataset's settings name, in the folder of the plan."""

    def survey(self, dataset: Dataset) -> Survey:
        """Samples are the lines of the `data` file unless the plan counts them."""
        for key in ("infer", "score"):
            if not isinstance(dataset.settings.get(key), str):
                raise BadConfigError(f"dataset '{dataset.name}': 'settings.{key}' is missing; write the command to run")
        check_known(dataset, _KNOWN)
        path = self._data_path(dataset)
        if path is None and not dataset.samples:
            raise BadConfigError(f"dataset '{dataset.name}': give 'samples', or 'settings.data' with a line per sample")
        directions = read_directions(dataset)
        version = str(dataset.settings.get("version", ""))
        if path is None:
            identity = "no data file"
            return Survey(samples=dataset.samples, identity=identity, version=version, directions=directions)
        if not path.is_file():
            raise BadFileError(f"dataset '{dataset.name}': {path}: no such data file; check 'settings.data'")
        with path.open("rb") as handle:
            lines = sum(1 for line in handle if line.strip())
        samples = dataset.samples or lines
        return Survey(samples=samples, identity=identify_file(path), version=version, directions=directions)

    def prepare(self, dataset: Dataset, model: Path, cache: WorkerCache, shrink: int) -> None:
        """Nothing stays between commands: each loads for itself, from shared memory."""

    def infer(
        self, dataset: Dataset, model: Path, cache: WorkerCache, first: int, last: int, shrink: int
    ) -> list[Record]:
        """Run the `infer` command and read its outputs."""
        with tempfile.TemporaryDirectory(prefix="prism-outputs-") as folder:
            output = Path(folder) / "outputs.jsonl"
            words = {"model": model, "first": first, "last": last, "output": output, "device": cache.device}
            self._run(dataset, "infer", words | {"shrink": shrink})
            records = _read_lines(output)
        if len(records) != last - first:
            raise PrismError(
                f"dataset '{dataset.name}': the infer command wrote {len(records)} lines for samples {first} to {last}"
            )
        return records

    def score(self, dataset: Dataset, cache: WorkerCache, outputs: Sequence[Record], first: int) -> list[Record]:
        """Run the `score` command on kept outputs."""
        with tempfile.TemporaryDirectory(prefix="prism-metrics-") as folder:
            lines, metrics = Path(folder) / "outputs.jsonl", Path(folder) / "metrics.json"
            lines.write_text("".join(json.dumps(output) + "\n" for output in outputs))
            self._run(dataset, "score", {"outputs": lines, "metrics": metrics, "first": first})
            document = _read_metrics(metrics, dataset)
        if "samples" in document:
            scores = document["samples"]
            if not isinstance(scores, list) or len(scores) != len(outputs):
                raise PrismError(f"dataset '{dataset.name}': metrics.json must have one of 'samples' per output line")
            return [_numbers(score, first + i) for i, score in enumerate(scores)]
        if dataset.splittable:
            raise PrismError(
                f"dataset '{dataset.name}': metrics.json has no 'samples'; write them, or set 'splittable: false'"
            )
        whole = _numbers(document.get("metrics"), first)
        return [{"whole": whole}, *({} for _ in outputs[1:])]

    def combine(self, dataset: Dataset, scores: Sequence[Record]) -> dict[str, float]:
        """Means over samples, or what the command said of the whole."""
        if "whole" in scores[0]:
            return dict(scores[0]["whole"])
        names = sorted({name for score in scores for name in score})
        kept = {name: [float(score[name]) for score in scores if name in score] for name in names}
        return {name: math.fsum(values) / len(values) for name, values in kept.items()}

    def _data_path(self, dataset: Dataset) -> Path | None:
        data = dataset.settings.get("data")
        return None if data is None else Path(dataset.settings.get("folder", ".")) / str(data)

    def _run(self, dataset: Dataset, key: str, words: Mapping[str, Any]) -> None:
        """Run one of the commands; a failure is reported with its last line on stderr."""
        data = self._data_path(dataset)
        filled = dict(words) | {"data": data.resolve() if data else "", "task": dataset.task}
        command = fill_command(dataset, key, dataset.settings[key], filled)
        folder = Path(dataset.settings.get("folder", "."))
        if shutil.which(folder / command[0] if "/" in command[0] else command[0]) is None:
            raise BadConfigError(
                f"dataset '{dataset.name}': 'settings.{key}': no program '{command[0]}' can be run here"
            )
        done = run_program(dataset, command, {"PRISM_SHRINK": str(words.get("shrink", 0))})
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            if done.returncode == -9 or any(word in done.stderr for word in _OUT_OF_MEMORY):
                raise MemoryError(last)
            raise PrismError(f"dataset '{dataset.name}': the {key} command ended with {done.returncode}: {last}")


def _read_lines(path: Path) -> list[Record]:
    try:
        records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise PrismError(f"{path.name}: the infer command wrote no JSON Lines there ({error})") from None
    return [record if isinstance(record, dict) else {"output": record} for record in records]


def _read_metrics(path: Path, dataset: Dataset) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PrismError(f"dataset '{dataset.name}': the score command wrote no JSON there ({error})") from None
    if not isinstance(document, dict):
        raise PrismError(f"dataset '{dataset.name}': metrics.json must be an object with 'samples' or 'metrics'")
    return document


def _numbers(score: Any, sample: int) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in score.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise SampleError(sample, error) from None
