"""Feed damaged files to every command that reads one: none may end with an internal error, a traceback or a hang.

    python proving/benchmarks/cli_fuzz.py --inputs 2000 --seed 1

Sound files are made once by Prism's own generators. Each input is one of them, damaged: bytes changed, cut, lines or
columns gone, numbers out of range, another type, another encoding. Every input has a time limit.
Allowed endings are the exit codes of the contracts (0, 1 told in one line, 2, 3). What fails is kept in --keep.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import polars as pl  # noqa: E402

EXTREMES = ("", "nan", "inf", "-1", "1e308", "99999999999999999999", "null", "\0", "ü" * 40, "2024-13-45", "{}", "[[[[")
OUT = "OUT"  # in a command line: a fresh folder


def main() -> int:
    """Run the inputs, print how they ended, exit 1 where one ended badly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=120, help="seconds for one input")
    parser.add_argument("--only", default="", help="only commands that contain this")
    parser.add_argument("--keep", type=Path, help="folder for inputs that ended badly")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        serve_commands()
        return 0
    with tempfile.TemporaryDirectory(prefix="prism-fuzz-") as folder:
        base = Path(folder)
        cases = [case for case in make_cases(base / "sound") if asked.only in " ".join(case[0])]
        worker = Worker()
        endings: Counter[str] = Counter()
        bad: Counter[str] = Counter()
        for number in range(asked.inputs):
            rng = random.Random(f"{asked.seed}-{number}")
            command, source = rng.choice(cases)
            work = base / "work"
            shutil.rmtree(work, ignore_errors=True)
            (shutil.copytree if source.is_dir() else _copy_file)(source, work / source.name)
            how = damage(work / source.name, rng)
            places = {"IN": str(work / source.name), OUT: str(work / "out")}
            code, text = worker.run([fill(word, places) for word in command], asked.limit)
            trouble = judge(code, text)
            endings[f"{code}"] += 1
            if trouble:
                bad[f"{' '.join(command[:2])}: {trouble}"] += 1
                print(f"input {number} of seed {asked.seed}: {' '.join(command)} after '{how}': {trouble}", flush=True)
                if asked.keep:
                    shutil.copytree(work, asked.keep / f"{asked.seed}-{number}", dirs_exist_ok=True)
        worker.close()
    print(f"{asked.inputs} inputs; exit codes {dict(endings)}; {sum(bad.values())} ended badly")
    for line, count in bad.most_common():
        print(f"{count:6} {line}")
    return 1 if bad else 0


def make_cases(folder: Path) -> list[tuple[list[str], Path]]:
    """Command lines with IN where the damaged file goes, and the sound file."""
    folder.mkdir(parents=True)
    prism("scenario", "dense-3d-64", "--output", str(folder / "dense"), "--graph", "-q")
    flows = pl.read_parquet(folder / "dense" / "flows.parquet").sort("start_ns").head(20_000)
    topology = folder / "dense" / "topology.csv"
    flows.write_parquet(folder / "flows.parquet")
    flows.write_csv(folder / "flows.csv")
    flows.head(2000).write_ndjson(folder / "flows.jsonl")
    prism("generate-trace", "kalos", "--num-jobs", "400", "--output", str(folder / "jobs.csv"), "-q")
    jobs = pl.read_csv(folder / "jobs.csv")
    jobs.write_parquet(folder / "jobs.parquet")
    (folder / "rank.log").write_text(_LOG)
    pl.DataFrame(
        {"serial": [f"p{i % 40}" for i in range(400)], "location": [f"r{i % 40 // 8}n{i % 40}" for i in range(400)],
         "at": [f"2024-{i // 34 + 1:02}-{i % 28 + 1:02}" for i in range(400)], "event": ["xid"] * 400}
    ).write_csv(folder / "events.csv")  # fmt: skip
    pl.DataFrame(
        {"submitted": [i * 60 for i in range(300)], "seconds": [100 + i for i in range(300)],
         "gpus": [8] * 300, "cluster": ["a", "b", "b"] * 100, "user": ["u", "v", "w"] * 100}
    ).write_csv(folder / "placed.csv")  # fmt: skip
    (folder / "clusters.yaml").write_text("a: 64\nb: 32\n")
    make_run(folder / "run")
    graph = next((folder / "dense" / "graphs").iterdir())
    spans = folder / "dense" / "timeline.parquet"
    cases: list[tuple[list[str], Path]] = [
        (["diagnose", "IN", "--topology", str(topology), "--output", OUT], folder / "flows.parquet"),
        (["diagnose", "IN", "--topology", str(topology), "--json"], folder / "flows.csv"),
        (["diagnose", str(folder / "flows.parquet"), "--topology", "IN", "--json"], topology),
        (["characterize", "IN", "--output", OUT], folder / "jobs.csv"),
        (["characterize", "IN", "--json"], folder / "jobs.parquet"),
        (["explain", "IN"], folder / "rank.log"),
        (["explain", "IN", "--json"], folder / "run"),
        (["simulate", "IN", "--json"], graph),
        (["simulate", str(graph), "--cluster", "IN"], folder / "dense" / "cluster.yaml"),
        (["predict", "IN", "--at", "2024-11-01", "--json"], folder / "events.csv"),
        (["place", "simulate", "IN", "--clusters", str(folder / "clusters.yaml")], folder / "placed.csv"),
        (["place", "simulate", str(folder / "placed.csv"), "--clusters", "IN"], folder / "clusters.yaml"),
        (["goodput", "IN"], folder / "run"),
        (["supervise", "status", "IN"], folder / "run"),
        (["investigate", "IN"], folder / "run"),
        (["compare", "IN", str(spans)], spans),
    ]
    for name in ("flows.parquet", "flows.csv", "flows.jsonl"):
        cases += [
            (["flows", "info", "IN"], folder / name),
            (["flows", "check", "IN", "--skip-bad-rows"], folder / name),
            (["flows", "convert", "IN", f"{OUT}/all.parquet"], folder / name),
            (["flows", "topology", "IN", "--auto", "--output", f"{OUT}/t.csv"], folder / name),
        ]
    return [(words, path) for words, path in cases if path.exists()]


def make_run(folder: Path) -> None:
    """A supervised run: its program dies once and then finishes."""
    program = folder.parent / "train.py"
    program.write_text(_PROGRAM)
    prism("supervise", "run", "--run-dir", str(folder), "-q", "--", sys.executable, str(program), str(folder.parent))


def damage(path: Path, rng: random.Random) -> str:
    """Change a file, or one file of a folder; returns what was done."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        victim = rng.choice(files)
        return f"{victim.relative_to(path)}: {damage(victim, rng)}"
    ways: list[Callable[[Path, random.Random], None]] = [_flip, _cut, _empty, _noise, _encode, _to_folder]
    if path.suffix == ".parquet":
        ways += [_change_column] * 6
    else:
        ways += [_change_lines, _change_words, _change_words, _drop_words]
    way = rng.choice(ways)
    way(path, rng)
    return way.__name__.strip("_")


def _flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 3, 30))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data))


def _cut(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def _empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.choice((b"", b"\n", b"\0" * 100, b"{}", b"[]", b"\xef\xbb\xbf")))


def _noise(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.choice((1, 100, 10_000))))


def _encode(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes().decode("latin-1").encode(rng.choice(("utf-16", "utf-32", "utf-8"))))


def _to_folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _change_lines(path: Path, rng: random.Random) -> None:
    lines = path.read_text(errors="replace").splitlines()
    at = rng.randrange(len(lines))
    lines[at : at + rng.choice((1, 1, 5))] = rng.choice(
        ([], [lines[at]] * 3, [lines[0]], ["{", '"', "'"], [rng.choice(EXTREMES)])
    )
    if rng.random() < 0.2:
        rng.shuffle(lines)
    path.write_text("\n".join(lines))


def _change_words(path: Path, rng: random.Random) -> None:
    _edit_words(path, rng, lambda: rng.choice(EXTREMES))


def _drop_words(path: Path, rng: random.Random) -> None:
    _edit_words(path, rng, lambda: "")


def _edit_words(path: Path, rng: random.Random, word: Callable[[], str]) -> None:
    text = path.read_text(errors="replace")
    for mark in (",", ":", " ", "\n"):
        if mark in text and rng.random() < 0.7:
            parts = text.split(mark)
            for _ in range(rng.choice((1, 5, len(parts) // 3 + 1))):
                parts[rng.randrange(len(parts))] = word()
            path.write_text(mark.join(parts))
            return


def _change_column(path: Path, rng: random.Random) -> None:
    frame = pl.read_parquet(path)
    name = rng.choice(frame.columns)
    column = pl.col(name)
    types = [pl.String, pl.Float64, pl.Int8, pl.UInt64, pl.Boolean, pl.Date, pl.List(pl.Int64), pl.Binary]
    change = rng.choice(
        [
            lambda: frame.drop(name),
            lambda: frame.with_columns(pl.lit(None, rng.choice(types)).alias(name)),
            lambda: frame.with_columns(column.cast(rng.choice(types), strict=False)),
            lambda: frame.with_columns(column.shuffle(rng.randrange(99))),
            lambda: frame.with_columns(pl.when(pl.int_range(pl.len()) % 3 > 0).then(column).alias(name)),
            lambda: frame.with_columns((column * -1).alias(name)),
            lambda: frame.with_columns(pl.lit(rng.choice((0, -1, 2**62, float("nan"), float("inf")))).alias(name)),
            lambda: frame.rename({name: rng.choice(("x", "START", "", "src\0"))}),
            lambda: frame.head(rng.choice((0, 1, 2))),
            lambda: pl.concat([frame] * 2),
        ]
    )
    with contextlib.suppress(Exception):  # not every column can be changed in every way
        change().write_parquet(path)


def fill(word: str, places: dict[str, str]) -> str:
    """A word of a command line with the paths of this input."""
    for name, path in places.items():
        if word == name or word.startswith(f"{name}/"):
            return path + word[len(name) :]
    return word


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def prism(*words: str) -> None:
    """Run a command here; a wrong one ends the benchmark."""
    from prism.cli.main import main as run

    with contextlib.suppress(SystemExit):
        run(list(words))


class Worker:
    """A process that runs one command after the other; a new one follows where one hangs or dies.

    Polars' threads do not survive a fork, and a process per input would spend its time importing.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, words: list[str], limit_s: int) -> tuple[int, str]:
        """The exit code of a command (-9 where it took too long) and what it said on stderr."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], limit_s)[0]:
            self.close()
            return -9, "took too long"
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.close()
            return code, f"escaped: the process ended with {code}"
        code, text = json.loads(line)
        return code, text

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self) -> subprocess.Popen[str]:
        words = [sys.executable, __file__, "--worker"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        return self._process


def serve_commands() -> None:
    """Run commands from stdin, one JSON list a line, and answer with the code and the words of each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from prism.cli.main import main as run

    for line in sys.stdin:
        said = io.StringIO()
        code = 0
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            try:
                run(json.loads(line))
            except SystemExit as done:
                code = done.code if isinstance(done.code, int) else 1
            except BaseException as error:  # what the command line let through
                said.write(f"escaped: {type(error).__name__}: {error}")
                code = 70
        answers.write(json.dumps([code, said.getvalue()]) + "\n")
        answers.flush()


def judge(code: int, text: str) -> str:
    """What is wrong with an ending; empty where nothing is."""
    for sign in ("internal error", "Traceback (most recent call last)", "escaped:", "took too long"):
        if sign in text:
            line = next(line for line in text.splitlines() if sign in line)
            return line[:160]
    if code not in {0, 1, 2, 3}:
        return f"ended with {code}"
    if code == 2 and len([line for line in text.splitlines() if line.strip()]) == 0:
        return "exit 2 without a word"
    return ""


_PROGRAM = """import os, pathlib, sys, time
mark = pathlib.Path(sys.argv[1], "died-once")
for step in range(1, 30):
    print("step", step, "loss", 9.0 / step, flush=True)
    time.sleep(0.05)
    if step == 15 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
"""

_LOG = """step 1 loss 9.1
step 2 loss 8.7
Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""

if __name__ == "__main__":
    sys.exit(main())
