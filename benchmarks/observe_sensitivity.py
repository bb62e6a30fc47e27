"""Which thresholds of observe matter: each is moved by 20 % both ways, and the captures are scored again.

A threshold is a number in capitals at the top of a module, or the default of a field of a frozen config. Each is
changed in a copy of the sources, because compiled functions take constants in when they are compiled; a process for
each change scores all captures. What moves no figure is printed as such: it may go, or be merged with another.

    python benchmarks/observe_sensitivity.py FOLDER... [--only PART] [--workers N] [--keep FILE] [--limit-seconds S]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
FACTORS = (0.8, 1.2)
SCORE = """
import json, sys
sys.path[:0] = [{source!r}, {benchmarks!r}]
from pathlib import Path
from observe_captures import run_capture
print(json.dumps({{f: run_capture(Path(f))[0].figures() for f in {folders!r}}}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number in a source file: where it is, and what it is called."""

    file: str  # below the sources
    name: str
    value: float
    line: int
    begin: int  # column
    end: int

    @property
    def key(self) -> str:
        """A name that no other one has."""
        return f"{self.file}:{self.name}"


def list_thresholds(part: str = "") -> list[Threshold]:
    """All thresholds of observe whose file or name contains a text."""
    found = []
    for file in sorted((SOURCES / "prism/observe").rglob("*.py")):
        name = str(file.relative_to(SOURCES))
        found += [t for t in _read_file(name, ast.parse(file.read_text())) if part in t.key]
    return found


def _read_file(name: str, tree: ast.Module) -> list[Threshold]:
    """Numbers in capitals, and defaults of fields of classes whose name ends in Config."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            found += _list_numbers(name, node.targets[0].id, node.value)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
                    found += _list_numbers(name, f"{node.name}.{item.target.id}", item.value)
    return found


def _list_numbers(file: str, name: str, value: ast.expr) -> list[Threshold]:
    numbers = [n for n in ast.walk(value) if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
    return [
        Threshold(
            file=file,
            name=name if len(numbers) == 1 else f"{name}[{i}]",
            value=float(n.value),  # type: ignore[arg-type]
            line=n.lineno,
            begin=n.col_offset,
            end=n.end_col_offset or n.col_offset,
        )
        for i, n in enumerate(numbers)
        if n.value
    ]


def score(folders: list[str], threshold: Threshold | None = None, factor: float = 1.0) -> dict[str, list[str]] | None:
    """The figures of each capture with a threshold moved; None where the program breaks."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "src"
        shutil.copytree(SOURCES, source, ignore=shutil.ignore_patterns("static"), copy_function=_copy_with_times)
        if threshold is not None:
            _move(source / threshold.file, threshold, factor)
        code = SCORE.format(source=str(source), benchmarks=str(Path(__file__).parent), folders=folders)
        environment = os.environ | {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else None


def _copy_with_times(src: str, dst: str) -> str:
    """A copy with the same times, so that compiled functions of files that did not change are found again."""
    return str(shutil.copy2(src, dst))


def _move(file: Path, threshold: Threshold, factor: float) -> None:
    """Write a threshold that is larger by a factor; whole numbers stay whole, and move by one at least."""
    lines = file.read_text().splitlines(keepends=True)
    row = lines[threshold.line - 1]
    text = row[threshold.begin : threshold.end]
    moved = threshold.value * factor
    whole = text.replace("_", "").isdigit()
    if whole:
        moved = max(round(moved), 1) if round(moved) != threshold.value else threshold.value + (1 if factor > 1 else -1)
    lines[threshold.line - 1] = f"{row[: threshold.begin]}{int(moved) if whole else repr(moved)}{row[threshold.end :]}"
    file.write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="only thresholds whose file or name contains this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="file of results as JSON lines; what is in it is not run again")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start nothing after this")
    arguments = parser.parse_args()
    folders = sorted(str(file.parent) for folder in arguments.folders for file in folder.glob("**/truth.json"))
    thresholds = list_thresholds(arguments.only)
    usual = score(folders)
    if usual is None:
        raise SystemExit("the captures cannot be scored with the sources as they are; run observe_captures.py first")
    kept = arguments.keep.read_text().splitlines() if arguments.keep and arguments.keep.exists() else []
    moved = {row["key"]: row for row in map(json.loads, kept)}
    deadline = time.monotonic() + arguments.limit_seconds

    def try_one(threshold: Threshold) -> dict[str, object] | None:
        if threshold.key in moved or time.monotonic() > deadline:
            return moved.get(threshold.key)
        changes = {factor: score(folders, threshold, factor) for factor in FACTORS}
        moves = {
            str(f): sorted(c for c in usual if figures is None or figures[c] != usual[c])
            for f, figures in changes.items()
        }
        row = {"key": threshold.key, "value": threshold.value, "moves": moves}
        if arguments.keep:
            with arguments.keep.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return row

    with ThreadPoolExecutor(arguments.workers) as pool:
        rows = [row for row in pool.map(try_one, thresholds) if row is not None]
    still = [row for row in rows if not any(row["moves"].values())]  # type: ignore[attr-defined]
    print(
        f"{len(thresholds)} thresholds, {len(rows)} of them moved by 20 % over {len(folders)} captures; "
        f"{len(still)} move nothing"
    )
    for row in rows:
        names = ", ".join(f"{f}: {' '.join(Path(c).name for c in cs) or '-'}" for f, cs in row["moves"].items())  # type: ignore[attr-defined]
        print(f"{row['key']:72} {row['value']:<10g} {names}")


if __name__ == "__main__":
    main()
