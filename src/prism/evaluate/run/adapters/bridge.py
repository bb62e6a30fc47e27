"""Inspect and OpenCompass as commands: they run their own tasks, and what they measured is taken in.

Their task definitions are Python that only they can run, so nothing of them is read here. One run of the tool is one
dataset that cannot be split; its samples are not seen, and its scores are the tool's own.
"""

from __future__ import annotations

import csv
import json
import math
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, PrismError
from prism.evaluate.run.adapters.adapter import Record, Survey, WorkerCache, check_known, read_directions
from prism.evaluate.run.adapters.programs import fill_command, run_program
from prism.evaluate.run.models.endpoint import ENDPOINT_FILE, read_endpoint
from prism.evaluate.schedule.trials import Dataset

_KNOWN = ("args", "command", "data", "folder", "higher_is_better", "lower_is_better", "score_timeout_s", "version")
# {model} is the checkpoint's folder, {task} the plan's task, {output} an empty folder for what the tool writes. {gpus}
# is 1 on a GPU's worker and 0 on a CPU's: without it, OpenCompass refuses to start on a CPU.
_COMMANDS = {
    "inspect": "inspect eval {task} --model hf/local -M model_path={model} --log-format json --log-dir {output}",
    "opencompass": "opencompass --datasets {task} --hf-type base --hf-path {model} --hf-num-gpus {gpus} "
    "--work-dir {output}",
}
_SERVED = {
    "inspect": "inspect eval {task} --model openai-api/served/{name} --model-base-url {url} "
    "--log-format json --log-dir {output}",
    "opencompass": "",
}


class BridgeAdapter:
    """Runs one tool for a whole dataset."""

    def __init__(self, tool: str) -> None:
        self._tool = tool

    def survey(self, dataset: Dataset) -> Survey:
        """One sample stands for all: the tool counts them itself."""
        check_known(dataset, _KNOWN)
        program = shlex.split(str(dataset.settings.get("command", _COMMANDS[self._tool])))[0]
        if shutil.which(program) is None:
            raise BadConfigError(
                f"dataset '{dataset.name}': no program '{program}' can be run here; install {self._tool}"
            )
        version = str(dataset.settings.get("version", ""))
        return Survey(
            samples=1,
            identity=f"{self._tool}/{dataset.task}",
            version=version,
            directions=read_directions(dataset),
        )

    def prepare(self, dataset: Dataset, model: Path, cache: WorkerCache, shrink: int) -> None:
        """The tool loads the model itself."""

    def infer(
        self, dataset: Dataset, model: Path, cache: WorkerCache, first: int, last: int, shrink: int
    ) -> list[Record]:
        """Run the tool and read what it wrote."""
        with tempfile.TemporaryDirectory(prefix="prism-bridge-") as folder:
            done = run_program(dataset, self._command(dataset, model, cache, folder), {})
            if done.returncode:
                last_line = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
                raise PrismError(f"dataset '{dataset.name}': {self._tool} ended with {done.returncode}: {last_line}")
            read = read_inspect if self._tool == "inspect" else read_opencompass
            found = read(Path(folder))
        if not found:
            raise PrismError(f"dataset '{dataset.name}': {self._tool} wrote no scores into {{output}}")
        return [{"metrics": found}]

    def score(self, dataset: Dataset, cache: WorkerCache, outputs: Sequence[Record], first: int) -> list[Record]:
        """The tool has scored already."""
        return list(outputs)

    def combine(self, dataset: Dataset, scores: Sequence[Record]) -> dict[str, float]:
        """As the tool says."""
        return {str(name): float(value) for name, value in scores[0]["metrics"].items()}

    def _command(self, dataset: Dataset, model: Path, cache: WorkerCache, output: str) -> list[str]:
        gpus = 0 if cache.device == "cpu" else 1
        words: dict[str, Any] = {"model": model, "task": dataset.task, "output": output, "gpus": gpus}
        chosen = str(dataset.settings.get("command", _COMMANDS[self._tool]))
        if (model / ENDPOINT_FILE).is_file():
            end = read_endpoint(model)
            words |= {"url": end.url, "name": end.model}
            chosen = str(dataset.settings.get("command", _SERVED[self._tool]))
        if not chosen:
            raise BadConfigError(f"dataset '{dataset.name}': write the 'command' that asks an endpoint")
        filled = fill_command(dataset, "command", chosen, words)
        return [*filled, *shlex.split(str(dataset.settings.get("args", "")))]


def read_inspect(folder: Path) -> dict[str, float]:
    """The metrics of Inspect's JSON logs, as scorer/metric; `stderr` is the error of the accuracy or mean beside it."""
    found: dict[str, float] = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            log = json.loads(path.read_text())
            status = log["status"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if status != "success":  # Inspect itself ends with 0 then, and its log has no results
            error = log.get("error") or {}
            told = error.get("message") if isinstance(error, dict) else error
            raise PrismError(f"inspect's log says '{status}': {str(told)[:200]}")
        for score in (log.get("results") or {}).get("scores") or []:
            values = {name: float(entry["value"]) for name, entry in score["metrics"].items()}
            spread = values.pop("stderr", None)
            for name, value in values.items():
                found[f"{score['name']}/{name}"] = value
            main = next((name for name in ("accuracy", "mean") if name in values), None)
            if spread is not None and main is not None:
                found[f"{score['name']}/{main}_stderr"] = spread
    return found


def read_opencompass(folder: Path) -> dict[str, float]:
    """The last summary's rows, as dataset/metric, with the digits of the result files where these say the same."""
    summaries = sorted(folder.rglob("summary_*.csv"))
    run = summaries[-1].parent.parent if summaries else folder
    results = {path.stem: _read_object(path) for path in sorted(run.glob("results/*/*.json"))}
    _refuse_failed(run, results)
    if not summaries:
        return {}
    found: dict[str, float] = {}
    with summaries[-1].open(newline="") as handle:
        rows = csv.DictReader(handle)
        columns = rows.fieldnames or []
        if columns[:4] != ["dataset", "version", "metric", "mode"] or len(columns) != 5:
            raise PrismError(f"opencompass's summary is not of one model: its columns are {', '.join(columns)[:200]}")
        for row in rows:
            value = _read_value(row[columns[4]], results.get(row["dataset"], {}).get(row["metric"]))
            if value is not None:
                found[f"{row['dataset']}/{row['metric']}"] = value
    return found


def _read_object(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _refuse_failed(run: Path, results: dict[str, dict[str, Any]]) -> None:
    """Raise where a dataset was to be scored and could not be: OpenCompass ends with 0 then and leaves its row out."""
    for name, result in results.items():
        if "error" in result:
            raise PrismError(f"opencompass could not score '{name}': {str(result['error'])[:200]}")
    for log in sorted(run.glob("logs/eval/*/*.out")):
        told = _read_exception(log)
        if told and log.stem not in results:
            earlier = map(_read_exception, sorted(run.glob("logs/infer/*/*.out")))  # of several datasets each
            raise PrismError(f"opencompass could not score '{log.stem}': {next(filter(None, earlier), told)[:200]}")


def _read_exception(log: Path) -> str:
    """The line that ends the first traceback of a log, else nothing."""
    lines = iter(log.read_text(errors="replace").splitlines())
    if not any(line.startswith("Traceback (most recent call last)") for line in lines):
        return ""
    return next((line for line in lines if line[:1].strip()), "")


def _read_value(shown: str | None, exact: Any) -> float | None:
    """The number of a summary's cell, which has two decimals; the result file's, with all, where it rounds to it."""
    try:
        number = float(shown or "")
    except ValueError:
        return None  # a dash: not measured
    if isinstance(exact, int | float) and f"{exact:.2f}" == shown:
        number = float(exact)
    return number if math.isfinite(number) else None
