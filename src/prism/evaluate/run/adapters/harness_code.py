"""Harness tasks that run code of models (`unsafe_code: true`): every document is scored in the sandbox.

A process of its own opens the task; for each document a copy of it goes in the sandbox and calls the task's
`process_results` there. Programs that a task hands to the `code_eval` metric run apart from the metric too, so that
they cannot forge its result; a task that calls `exec` itself has the program beside its metric, in the sandbox.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prism.errors import PrismError
from prism.evaluate.run.adapters.adapter import Record, SampleError
from prism.evaluate.run.scoring import inside, walls
from prism.evaluate.run.scoring.sandbox import SandboxConfig, make_task, run_sandboxed, view_of, why_not
from prism.evaluate.schedule.trials import Dataset

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "HF_HOME", "TQDM_DISABLE", "OMP_NUM_THREADS")
_KEPT_STARTS = ("HF_HUB_", "HF_DATASETS_", "TRANSFORMERS_")
_DOCUMENT_S = 120.0  # for one document; a metric's own limits are shorter
_PROGRAM_S = 3.0  # what code_eval gives a program
_behind_walls = False


def score_behind_walls(dataset: Dataset, outputs: Sequence[Record], first: int) -> list[Record]:
    """Score documents in a process without our environment variables, each in the sandbox."""
    if (reason := why_not("own")) is not None:
        raise PrismError(f"dataset '{dataset.name}': code of a model is not run here ({reason}); allow user namespaces")
    known = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_STARTS)}
    given = {"dataset": asdict(dataset), "outputs": list(outputs), "first": first}
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", f"from {__name__} import main; main()"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        errors="replace",
        env=known | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_ALLOW_CODE_EVAL": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SCORED")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PrismError(f"dataset '{dataset.name}': its scorer ended with {done.returncode}: {last[:500]}")
    found = json.loads(lines[-1].removeprefix("SCORED"))
    if "problem" in found:
        raise SampleError(found["sample"], RuntimeError(found["problem"]))
    scores: list[Record] = found["scores"]
    return scores


def main() -> None:
    """The process that opens the task and sends copies of itself into the sandbox."""
    from prism.evaluate.run.adapters.harness import score_documents

    given = json.loads(sys.stdin.read())
    dataset = Dataset(**given["dataset"])
    include = Path(dataset.settings.get("folder", ".")) / str(dataset.settings.get("include_path", ""))
    paths = [path for path in (*sys.path, str(include)) if path and Path(path).is_dir()]
    try:
        scores = score_documents(dataset, given["outputs"], given["first"], lambda work: _judge(work, paths))
        said: dict[str, Any] = {"scores": scores}
    except SampleError as error:
        said = {"sample": error.sample, "problem": error.reason}
    sys.stdout.write("SCORED" + json.dumps(said) + "\n")


def _judge(work: Any, paths: list[str]) -> Any:
    """What `work` returns in a copy of this process in the sandbox."""
    config = SandboxConfig(wall_s=_DOCUMENT_S, cpu_s=int(_DOCUMENT_S), memory_bytes=2 << 30, file_bytes=16 << 20)
    with tempfile.TemporaryDirectory(prefix="prism-sandbox-", ignore_cleanup_errors=True) as root:
        answer, told = os.pipe()
        child = os.fork()
        if child == 0:
            _work_behind_walls(work, config, view_of(config, *paths), root, told)
        os.close(told)
        text, end = b"", time.monotonic() + _DOCUMENT_S
        while (left := end - time.monotonic()) > 0 and select.select([answer], [], [], left)[0]:
            chunk = os.read(answer, 1 << 16)
            if not chunk:
                break
            text += chunk
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(answer)
    try:
        found = json.loads(text)
    except ValueError:
        raise RuntimeError("its metric was ended in the sandbox, by its limits or by the program") from None
    if "problem" in found:
        raise RuntimeError(found["problem"])
    return found["value"]


def _work_behind_walls(work: Any, config: SandboxConfig, view: dict[str, Any], root: str, told: int) -> None:
    global _behind_walls
    said: dict[str, Any] = {"problem": "the sandbox could not be set up"}
    try:
        with Path("/proc/self/statm").open() as handle:
            mapped = int(handle.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        walls.enter(view, root)
        nothing = os.open(os.devnull, os.O_RDWR)
        for i in range(3):
            os.dup2(nothing, i)
        os.dup2(told, 3)
        os.closerange(4, 4096)
        limits = asdict(config) | {"memory_bytes": mapped + config.memory_bytes}
        walls.limit(limits)
        os.environ.clear()
        os.environ.update({"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "HF_ALLOW_CODE_EVAL": "1"})
        tempfile.tempdir = "/tmp"
        _behind_walls = True
        said = {"value": work()}
    except BaseException as error:
        said = {"problem": f"{type(error).__name__}: {error}"[:500]}
    finally:
        text = json.dumps(said).encode()
        while text:
            text = text[os.write(3 if _behind_walls else told, text) :]
        os._exit(0)


class CodeMetric:
    """What `evaluate.load("code_eval")` gives, with programs in the sandbox and no download."""

    def compute(
        self,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1, 10, 100),
        timeout: float = _PROGRAM_S,
        **kwargs: Any,
    ) -> tuple[dict[str, float], dict[int, list[Any]]]:
        """pass@k of the candidates for each test, and how each ended."""
        endings = {
            i: [(n, _run_program(candidate, test, timeout)) for n, candidate in enumerate(candidates)]
            for i, (candidates, test) in enumerate(zip(predictions, references, strict=True))
        }
        counts = [(len(found), sum(done["passed"] for _, done in found)) for found in endings.values()]
        rates = {
            f"pass@{n}": math.fsum(_estimate(total, right, n) for total, right in counts) / len(counts)
            for n in k
            if all(total >= n for total, _ in counts)
        }
        return rates, endings


def install_code_metric() -> None:
    """Let tasks that load `code_eval` get ours; everything else is loaded as before."""
    if importlib.util.find_spec("evaluate") is None:
        return
    import evaluate

    original = getattr(evaluate, "load", None)  # a folder of that name beside the program is no library
    if original is None or getattr(original, "is_ours", False):
        return

    def load(path: str, *args: Any, **kwargs: Any) -> Any:
        return CodeMetric() if path == "code_eval" else original(path, *args, **kwargs)

    load.is_ours = True  # type: ignore[attr-defined]
    evaluate.load = load


def _run_program(program: str, test: str, timeout_s: float) -> dict[str, Any]:
    config = SandboxConfig(wall_s=timeout_s, cpu_s=math.ceil(timeout_s))
    if _behind_walls:
        ending, text = inside.judge(make_task(program, test, config, sys.executable), walls.limit)
    else:
        done = run_sandboxed(program, config, test)
        ending, text = done.ending, done.text
    return {"passed": ending == "passed", "result": "passed" if ending == "passed" else f"failed: {text}"}


def _estimate(total: int, right: int, k: int) -> float:
    """The chance that one of k candidates drawn of all is right (Chen et al. 2021, equation 1)."""
    if total - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(total - right + 1, total + 1))
