"""Harness tasks that run code of models (`unsafe_code: true`): every document is scored in the sandbox.

A process of its own opens the task; for each document a copy of it goes in the sandbox and calls the task's
`process_results` there. Programs that a task hands to the `code_eval` metric run in sandboxes of their own, apart from
their tests, so that they cannot forge its result. A task that calls `exec` itself has the program in the process of its
metric: it cannot reach anything else, but what it says of itself is believed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
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
from prism.evaluate.run.scoring import walls
from prism.evaluate.run.scoring.sandbox import SandboxConfig, run_sandboxed, view_of, why_not
from prism.evaluate.schedule.trials import Dataset

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "HF_HOME", "TQDM_DISABLE", "OMP_NUM_THREADS")
_KEPT_STARTS = ("HF_HUB_", "HF_DATASETS_", "TRANSFORMERS_")
_DOCUMENT_S = 120.0  # for one document; a metric's own limits are shorter
_PROGRAM_S = 3.0  # what code_eval gives a program
_outside: io.TextIOBase | None = None  # in the sandbox: answers of the process that opened the task


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
    """What `work`, a call for one document, returns in a copy of this process in the sandbox."""
    prompt = work.args[1].get("prompt") if isinstance(work.args[1], dict) else None
    CodeMetric.given = prompt if isinstance(prompt, str) else ""
    config = SandboxConfig(wall_s=_DOCUMENT_S, cpu_s=int(_DOCUMENT_S), memory_bytes=2 << 30, file_bytes=16 << 20)
    with tempfile.TemporaryDirectory(prefix="prism-sandbox-", ignore_cleanup_errors=True) as root:
        told_in, told_out = os.pipe()
        reply_in, reply_out = os.pipe()
        child = os.fork()
        if child == 0:
            _work_behind_walls(work, config, view_of(config, *paths), root, told_out, reply_in)
        os.close(told_out)
        os.close(reply_in)
        try:
            found = _attend(told_in, reply_out)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(told_in)
            os.close(reply_out)
    if "problem" in found:
        raise RuntimeError(found["problem"])
    return found["value"]


def _attend(told: int, reply: int) -> Any:
    """Run the programs that a metric in the sandbox asks for, each in a sandbox of its own, until it is through."""
    text, end_s = b"", time.monotonic() + _DOCUMENT_S
    while (left_s := end_s - time.monotonic()) > 0 and select.select([told], [], [], left_s)[0]:
        chunk = os.read(told, 1 << 16)
        text += chunk
        if not chunk or not text.endswith(b"\n"):
            if not chunk:
                break
            continue
        asked, text = json.loads(text), b""
        if "run" not in asked:
            return asked
        begun_s = time.monotonic()
        os.write(reply, json.dumps(_run_program(*asked["run"])).encode() + b"\n")
        end_s += time.monotonic() - begun_s
    raise RuntimeError("its metric was ended in the sandbox, by its limits or by the program")


def _work_behind_walls(
    work: Any, config: SandboxConfig, view: dict[str, Any], root: str, told: int, reply: int
) -> None:
    global _outside
    said: dict[str, Any] = {"problem": "the sandbox could not be set up"}
    try:
        with Path("/proc/self/statm").open() as handle:
            mapped = int(handle.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        walls.enter(view, root)
        nothing = os.open(os.devnull, os.O_RDWR)
        kept = [os.dup2(fd, 200 + i) for i, fd in enumerate((told, reply))]
        for i, fd in enumerate((nothing, nothing, nothing, *kept)):
            os.dup2(fd, i)
        os.closerange(5, 4096)
        limits = asdict(config) | {"memory_bytes": mapped + config.memory_bytes}
        walls.limit(limits)
        os.environ.clear()
        os.environ.update({"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "HF_ALLOW_CODE_EVAL": "1"})
        tempfile.tempdir = "/tmp"
        _outside, told = os.fdopen(4, "r"), 3
        said = {"value": work()}
    except BaseException as error:
        said = {"problem": f"{type(error).__name__}: {error}"[:500]}
    finally:
        _write_line(told, said)
        os._exit(0)


def _write_line(fd: int, value: Any) -> None:
    text = json.dumps(value).encode() + b"\n"
    while text:
        text = text[os.write(fd, text) :]


class CodeMetric:
    """What `evaluate.load("code_eval")` gives, with programs in the sandbox and no download."""

    given = ""  # the prompt of the document that is scored: its helpers are the task's, not the program's

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
            i: [(n, _run_program(candidate, test, timeout, self.given)) for n, candidate in enumerate(candidates)]
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


def _run_program(program: str, test: str, timeout_s: float, given: str = "") -> dict[str, Any]:
    if _outside is not None:
        _write_line(3, {"run": [program, test, timeout_s, given]})
        return json.loads(_outside.readline())  # type: ignore[no-any-return]
    config = SandboxConfig(wall_s=timeout_s, cpu_s=math.ceil(timeout_s))
    done = run_sandboxed(program, test, config, given)
    return {"passed": done.passed, "result": "passed" if done.passed else f"failed: {done.text}"}


def _estimate(total: int, right: int, k: int) -> float:
    """The chance that one of k candidates drawn of all is right (Chen et al. 2021, equation 1)."""
    if total - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(total - right + 1, total + 1))
