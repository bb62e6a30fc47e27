"""Which thresholds of observe matter: they are moved by 20 % both ways, in groups, and the captures are scored again.

A threshold is a number in capitals at the top of a module, or the default of a field of a frozen config. A group in
which nothing moves clears all its members; a group that moves a capture is halved, and its halves are scored on the
captures that moved. Each group is changed in a copy of the sources, in a process of its own. What was compiled before
is used again, except for functions that take a changed constant in.

A folder with `truth.json` is scored by the figures of observe_captures.py; one without (`prism scenario` writes flows
and topology) by its jobs, layouts and findings.

    python proving/benchmarks/observe_sensitivity.py FOLDER... [--only PART] [--workers N] [--keep FILE]
    [--limit-seconds S]
    python proving/benchmarks/observe_sensitivity.py FOLDER... --values FILE     what new values (JSON: key to text)
    would move
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
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"
FACTORS = (0.8, 1.2)
SCORE = """
import json, sys
sys.path[:0] = [{source!r}, {benchmarks!r}]
from pathlib import Path
from numba.core import caching
caching._SourceFileBackedLocatorMixin.get_source_stamp = lambda self: "kept"
from observe_captures import run_capture
from observe_sensitivity import outline
def figures(folder):
    return run_capture(folder)[0].figures() if (folder / "truth.json").exists() else outline(folder)
print(json.dumps({{f: figures(Path(f)) for f in {folders!r}}}))
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
    text: str

    @property
    def key(self) -> str:
        """A name that no other one has."""
        return f"{self.file.removeprefix('prism/observe/')}:{self.name}"

    def move(self, factor: float) -> str:
        """The text of a value that is larger by a factor; whole numbers stay whole, and move by one at least."""
        moved = self.value * factor
        if any(c in self.text for c in ".e/"):
            return repr(moved)
        whole = round(moved) if round(moved) != self.value else int(self.value) + (1 if factor > 1 else -1)
        return str(max(whole, 1))


def list_thresholds(part: str = "") -> list[Threshold]:
    """All thresholds of observe whose file or name contains a text; sizes of pictures decide nothing."""
    found = []
    for file in sorted(f for f in (SOURCES / "prism/observe").rglob("*.py") if f.parent.name != "report"):
        name = str(file.relative_to(SOURCES))
        found += [t for t in _read_file(name, file.read_text()) if part in t.key]
    return found


def _read_file(name: str, text: str) -> list[Threshold]:
    """Numbers in capitals, and defaults of fields of classes whose name ends in Config."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            found += _list_numbers(name, node.targets[0].id, node.value, text)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
                    found += _list_numbers(name, f"{node.name}.{item.target.id}", item.value, text)
    return found


def _list_numbers(file: str, name: str, value: ast.expr, text: str) -> list[Threshold]:
    """The number, or the numbers of a tuple; tables and objects hold no thresholds."""
    parts = [n for item in value.elts for n in _flatten(item)] if isinstance(value, ast.Tuple) else _flatten(value)
    return [
        Threshold(
            file=file,
            name=name if len(parts) == 1 else f"{name}[{i}]",
            value=float(number),
            line=node.lineno,
            begin=node.col_offset,
            end=node.end_col_offset or node.col_offset,
            text=ast.get_source_segment(text, node) or "",
        )
        for i, node in enumerate(parts)
        if (number := _evaluate(node))
    ]


def _flatten(node: ast.expr) -> list[ast.expr]:
    return [n for item in node.elts for n in _flatten(item)] if isinstance(node, ast.Tuple) else [node]


def _evaluate(node: ast.expr) -> float:
    """The value of a number or of arithmetic on numbers such as 1 << 20; 0 for anything else."""
    if any(
        not isinstance(n, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop) for n in ast.walk(node)
    ):
        return 0.0
    value = eval(compile(ast.Expression(node), "threshold", "eval"))  # of our own sources, numbers alone
    return float(value) if type(value) in (int, float) else 0.0


def outline(folder: Path) -> str:
    """Jobs with their layouts and steps, and findings with their culprits, of a capture without truth."""
    import polars as pl

    from prism.observe import diagnose
    from prism.records import TOPOLOGY, read_table

    topology = read_table(folder / "topology.csv", TOPOLOGY)
    document = diagnose(pl.read_parquet(folder / "flows.parquet"), topology).to_json()
    jobs = [
        [len(j["endpoints"]), *(j["layout"][d] for d in ("dp", "pp", "tp", "cp", "ep")), j["state"], len(j["steps"])]
        for j in document["jobs"]
    ]
    return json.dumps([jobs, [[f["kind"], f["culprit"]["id"]] for f in document["findings"]]])


@dataclass(frozen=True, slots=True)
class Change:
    """A threshold and the text of its new value."""

    threshold: Threshold
    text: str


class Copies:
    """Copies of the sources with changed thresholds, which share what was compiled."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.master = place / "master"
        shutil.copytree(SOURCES, self.master, ignore=shutil.ignore_patterns("static", "__pycache__"))
        self.compiled = _list_compiled(self.master)
        self.aliases = _list_aliases(self.master)

    def score(self, folders: list[str], changes: list[Change]) -> dict[str, object]:
        """The figures of each folder with these changes; None for all where the program breaks."""
        if not changes:
            return _score(self.master, folders)
        with tempfile.TemporaryDirectory(dir=self.place) as place:
            return _score(self._write(Path(place), changes), folders)

    def _write(self, place: Path, changes: list[Change]) -> Path:
        """A folder that holds observe with the changes, and links to the other packages."""
        (place / "prism").mkdir()
        for item in (self.master / "prism").iterdir():
            if item.name != "observe":
                (place / "prism" / item.name).symlink_to(item)
        shutil.copytree(self.master / "prism/observe", place / "prism/observe")
        for change in sorted(changes, key=lambda c: (c.threshold.line, c.threshold.begin), reverse=True):
            _write_change(place / change.threshold.file, change)
        for module in {m for change in changes for m in self._list_stale(change.threshold)}:
            for index in (place / module).parent.glob(f"__pycache__/{Path(module).stem}.*.nb*"):
                index.unlink()
        return place

    def _list_stale(self, threshold: Threshold) -> set[str]:
        """Files whose compiled functions hold a threshold; a level goes by the names that it has there."""
        name = threshold.name.split("[")[0].split(".")[-1]
        aliases = self.aliases.get(name, set()) if threshold.file.endswith("levels.py") else {name}
        return set().union(*(self.compiled.get(alias, set()) for alias in aliases))


def _list_aliases(source: Path) -> dict[str, set[str]]:
    """By name of a level: the constants that take their value from it."""
    aliases: dict[str, set[str]] = {}
    for file in (source / "prism/observe").rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                for part in ast.walk(node.value):
                    if (
                        isinstance(part, ast.Attribute)
                        and isinstance(part.value, ast.Name)
                        and part.value.id == "levels"
                    ):
                        aliases.setdefault(part.attr, set()).add(node.targets[0].id)
    return aliases


def _list_compiled(source: Path) -> dict[str, set[str]]:
    """By name of a constant: files whose compiled functions hold it, themselves or by what they import."""
    files = {str(f.relative_to(source)): ast.parse(f.read_text()) for f in (source / "prism/observe").rglob("*.py")}
    holds: dict[str, set[str]] = {}
    for file, tree in files.items():
        jitted = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and "njit" in str(list(map(ast.dump, n.decorator_list)))]  # fmt: skip  # noqa: E501
        for name in {n.id for f in jitted for n in ast.walk(f) if isinstance(n, ast.Name) and n.id.isupper()}:
            holds.setdefault(name, set()).add(file)
    for name, own in holds.items():
        modules = {f.removesuffix(".py").replace("/", ".") for f in own}
        users = (
            f
            for f, tree in files.items()
            if any(isinstance(n, ast.ImportFrom) and n.module in modules for n in ast.walk(tree))
        )
        holds[name] = own | set(users)
    return holds


def _score(source: Path, folders: list[str]) -> dict[str, object]:
    code = SCORE.format(source=str(source), benchmarks=str(Path(__file__).parent), folders=folders)
    environment = os.environ | {
        "POLARS_MAX_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return dict.fromkeys(folders, f"broken: {done.stderr[-300:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _write_change(file: Path, change: Change) -> None:
    lines = file.read_text().splitlines(keepends=True)
    at = change.threshold
    row = lines[at.line - 1]
    lines[at.line - 1] = f"{row[: at.begin]}{change.text}{row[at.end :]}"
    file.write_text("".join(lines))


@dataclass(slots=True)
class Search:
    """Group tests under way, what they showed so far, and where it is kept."""

    copies: Copies
    usual: dict[str, object]
    keep: Path | None
    deadline: float
    known: dict[str, list[str]] = field(default_factory=dict)  # by group: folders that it moves
    moves: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # by label and key of a threshold
    clear: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def test(self, label: str, group: list[Change], folders: list[str]) -> list[tuple[list[Change], list[str]]]:
        """Score one group; what is left to test, as groups with their folders."""
        name = json.dumps([label, [c.threshold.key for c in group], sorted(folders)])
        if name not in self.known and time.monotonic() > self.deadline:
            return []
        if name not in self.known:
            figures = self.copies.score(folders, group)
            self.known[name] = sorted(f for f in folders if figures[f] != self.usual[f])
            self._note({"test": name, "moved": self.known[name]})
        moved = self.known[name]
        with self.lock:
            for change in group:
                self.clear.setdefault((label, change.threshold.key), set()).update(set(folders) - set(moved))
                if len(group) == 1:
                    self.moves.setdefault((label, change.threshold.key), set()).update(moved)
        half = len(group) // 2
        return [(group[:half], moved), (group[half:], moved)] if half and moved else []

    def _note(self, row: dict[str, object]) -> None:
        if self.keep:
            with self.lock, self.keep.open("a") as file:
                file.write(json.dumps(row) + "\n")


def search(state: Search, groups: dict[str, list[list[Change]]], workers: int) -> None:
    """Test all groups of all labels, and the halves of those that move something."""
    folders = sorted(state.usual)
    with ThreadPoolExecutor(workers) as pool:
        first = [(label, group) for label, own in groups.items() for group in own]
        running: dict[Future[list[tuple[list[Change], list[str]]]], str] = {
            pool.submit(state.test, label, group, folders): label for label, group in first
        }
        while running:
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                label = running.pop(done)
                for group, left in done.result():
                    running[pool.submit(state.test, label, group, left)] = label


def _form_groups(changes: list[Change], size: int) -> list[list[Change]]:
    """Groups in the order of files; levels have many users, so each is a group of its own."""
    shared = [c for c in changes if c.threshold.file.endswith("levels.py")]
    others = [c for c in changes if c not in shared]
    return [[c] for c in shared] + [others[i : i + size] for i in range(0, len(others), size)]


def measure_usual(copies: Copies, folders: list[str], workers: int) -> dict[str, object]:
    """Figures of the sources as they are; a first round fills the cache of compiled functions."""
    for _ in range(2):
        with ThreadPoolExecutor(workers) as pool:
            parts = pool.map(lambda folder: copies.score([folder], []), folders)
        usual = {folder: figures for part in parts for folder, figures in part.items()}
    broken = [figures for figures in usual.values() if str(figures).startswith("broken")]
    if broken:
        raise SystemExit(f"the captures cannot be scored with the sources as they are: {broken[0]}")
    return usual


def tabulate(state: Search, groups: dict[str, list[list[Change]]]) -> list[dict[str, object]]:
    """Each threshold with the captures it moves, by label; None where the time was up before it was known."""
    thresholds = {c.threshold.key: c.threshold for own in groups.values() for group in own for c in group}
    rows: list[dict[str, object]] = []
    for key, threshold in thresholds.items():
        moves: dict[str, list[str] | None] = {}
        for label in groups:
            moved = state.moves.get((label, key), set())
            unknown = set(state.usual) - state.clear.get((label, key), set()) - moved
            moves[label] = None if unknown and not moved else sorted(Path(f).name for f in moved)
        rows.append({"key": key, "value": threshold.value, "moves": moves})
    return rows


def write_page(rows: list[dict[str, object]], page: Path, captures: list[str]) -> None:
    """The table as a page: thresholds that move a capture first, then those that move none."""
    head = (
        "# Observe: thresholds and what moves with them\n\n"
        "Each number was moved by 20 % down and up and these captures were scored again: "
        f"{', '.join(captures)} (`proving/benchmarks/observe_sensitivity.py`). A capture is named where a "
        "figure, layout or finding differs; `-` is none, `?` was not measured.\n\n"
    )
    moving = sorted(rows, key=lambda row: (not any(row["moves"].values()), row["key"]))  # type: ignore[attr-defined]
    lines = ["| threshold | value | 20 % less | 20 % more |", "|---|---|---|---|"]
    for row in moving:
        cells = ("?" if m is None else " ".join(m) or "-" for m in row["moves"].values())  # type: ignore[attr-defined]
        lines.append(f"| `{row['key']}` | {row['value']:g} | {' | '.join(cells)} |")
    page.write_text(head + "\n".join(lines) + "\n")


def print_table(rows: list[dict[str, object]], num_captures: int) -> None:
    """'-' where nothing moves, '?' where it is not known."""
    still = sum(all(m == [] for m in row["moves"].values()) for row in rows)  # type: ignore[attr-defined]
    print(f"{len(rows)} thresholds over {num_captures} captures; {still} move nothing")
    for row in rows:
        moves = row["moves"].items()  # type: ignore[attr-defined]
        shown = "  ".join(f"{label}: {'?' if m is None else ' '.join(m) or '-'}" for label, m in moves)
        print(f"{row['key']:64} {row['value']:<10g} {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="only thresholds whose file or name contains this")
    parser.add_argument("--values", type=Path, help="JSON file of new values, instead of 20 %% both ways")
    parser.add_argument("--group", type=int, default=12, help="thresholds that are moved together at first")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--table", type=Path, help="write the table as JSON, too")
    parser.add_argument("--page", type=Path, help="write the table as Markdown, too")
    parser.add_argument("--keep", type=Path, help="file of results as JSON lines; what is in it is not run again")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start nothing after this")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.limit_seconds
    folders = sorted({str(f.parent) for folder in arguments.folders for f in folder.glob("**/flows.parquet")})
    thresholds = list_thresholds(arguments.only)
    if arguments.values:
        new = json.loads(arguments.values.read_text())
        moved = {"new value": [Change(t, new[t.key]) for t in thresholds if t.key in new]}
    else:
        moved = {str(f): [Change(t, t.move(f)) for t in thresholds] for f in FACTORS}
    groups = {label: _form_groups(own, arguments.group) for label, own in moved.items()}
    with tempfile.TemporaryDirectory() as place:
        copies = Copies(Path(place))
        usual = measure_usual(copies, folders, arguments.workers)
        state = Search(copies, usual, arguments.keep, deadline)
        if arguments.keep and arguments.keep.exists():
            rows = map(json.loads, arguments.keep.read_text().splitlines())
            state.known |= {row["test"]: row["moved"] for row in rows}
        search(state, groups, arguments.workers)
    rows = tabulate(state, groups)
    if arguments.table:
        arguments.table.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.page:
        write_page(rows, arguments.page, [Path(f).name for f in sorted(usual)])
    print_table(rows, len(usual))


if __name__ == "__main__":
    main()
