"""Tests run in forked processes: once to see which lines each of them executes, then once per mutant.

pytest starts and collects once. A forked process puts the functions and constants of the changed module in the place of
the real ones and runs the tests that execute the changed line, so that a mutant costs no more than these tests.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from mutation.mutants import NOTE, Mutant, build_mutant, build_traced

ROOT = Path(__file__).parents[2]
_WARNINGS = ("-W", "ignore:overflow encountered:RuntimeWarning")  # of hashes in kernels that run as plain Python
_OPTIONS = (
    "-q",
    "-s",
    "-o",
    "addopts=--strict-markers",
    "-p",
    "no:cacheprovider",
    "-m",
    "not slow and not gpu",
    *_WARNINGS,
)
_PLUGINS = ("pytest_timeout", "_hypothesis_pytestplugin")
_WALL_LIMIT_S = 120.0
_EXAMPLES = (
    20  # per test; fewer than the suite tries, so that a mutant that only luck finds counts as one that survived
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What became of the mutants of a target."""

    killed: list[Mutant]
    survived: list[Mutant]
    unreached: list[Mutant]  # no test executes the line
    tests: int
    cpu_s: float

    @property
    def num_mutants(self) -> int:
        """All that were tried."""
        return len(self.killed) + len(self.survived) + len(self.unreached)

    @property
    def share(self) -> float:
        """Killed mutants, of all."""
        return len(self.killed) / max(1, self.num_mutants)


def score_mutants(mutants: Sequence[Mutant], tests: Sequence[str], leave_out: Sequence[str], limit_s: float) -> Score:
    """Run the tests on every mutant, in their order, or on as many as there is time for."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    server = _Server(mutants, time.monotonic() + limit_s)
    only = ["-k", " and ".join(f"not {name}" for name in leave_out)] if leave_out else []
    plugins = [part for name in _PLUGINS for part in ("-p", name)]
    folder = tempfile.mkdtemp(prefix="mutants-")
    try:
        code = pytest.main([*_OPTIONS, *plugins, f"--basetemp={folder}/tests", *only, *tests], plugins=[server])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if server.score is None:
        raise SystemExit(f"pytest ended with {int(code)}\n{server.trouble}")
    return server.score


class _Server:
    """A plugin of pytest that runs the collected tests once per mutant instead of once."""

    def __init__(self, mutants: Sequence[Mutant], until_s: float) -> None:
        self.mutants = mutants
        self.until_s = until_s  # of the monotonic clock
        self.score: Score | None = None
        self.trouble = "no test was collected; run pytest on the same files"

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Print why a test failed; it is read where tests fail before anything is changed."""
        if report.failed:
            print(report.nodeid, report.longreprtext, flush=True)

    def pytest_runtestloop(self, session: Any) -> bool:
        """Trace all tests, then run those that reach each mutant."""
        if session.testsfailed:
            return True
        if _has_pool():
            self.trouble = "collecting the tests has started Polars' threads, which a forked process would wait for"
            return True
        with tempfile.TemporaryDirectory() as folder:
            told, output = Path(folder) / "lines.json", Path(folder) / "output"
            tracer = _Tracer({mutant.file for mutant in self.mutants})
            ended = _fork(lambda: tracer.run(session, told), cpu_limit_s=3600, output=output)
            if ended != 0:
                # Else every mutant would seem killed.
                self.trouble = f"tests fail with unchanged modules put in place\n{output.read_text()[-6000:]}"
                return True
            reach = _read_reach(told)
        print(f"  {len(reach.seconds)} tests of {sum(reach.seconds.values()):.0f} CPU-s", flush=True)
        items = {item.nodeid: item for item in session.items}
        killed, survived, unreached = [], [], []
        for mutant in self.mutants:
            if time.monotonic() > self.until_s:
                break
            chosen = reach.tests_of(mutant)
            if not chosen:
                unreached.append(mutant)
                _print_fate(mutant, "reached by no test")
                continue
            act = functools.partial(_run_changed, session, [items[name] for name in chosen], mutant)
            limit = 20 + 5 * sum(reach.seconds[name] for name in chosen)
            if _fork(act, cpu_limit_s=limit) == 0:
                survived.append(mutant)
                _print_fate(mutant, "survived")
            else:
                killed.append(mutant)
        self.score = Score(
            killed=killed,
            survived=survived,
            unreached=unreached,
            tests=len(items),
            cpu_s=sum(reach.seconds.values()),
        )
        return True


def _has_pool() -> bool:
    """Whether Polars has started its threads: a forked process has none of them and would wait for ever."""
    return any((task / "comm").read_text().strip() == "polars-0" for task in Path("/proc/self/task").iterdir())


def _print_fate(mutant: Mutant, fate: str) -> None:
    """At once, so that a run that is stopped has told what it found."""
    print(f"  {mutant.file.relative_to(ROOT)} line {mutant.line}: {mutant.change} ({fate})", flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """Which tests execute each line of the files, and the CPU seconds of each test."""

    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that execute a mutant's lines, quickest first.

        For lines that run at import they are those of its module, or all where a module has constants alone.
        """
        lines = self.lines.get(str(mutant.file), {})
        if mutant.at_import:
            found = {test for tests in lines.values() for test in tests} or set(self.seconds)
        else:
            found = {test for line in mutant.lines for test in lines.get(line, [])}
        return sorted(found, key=lambda test: self.seconds.get(test, 0.0))


def _read_reach(told: Path) -> _Reach:
    read = json.loads(told.read_text())
    lines = {file: {int(n): ids for n, ids in by_line.items()} for file, by_line in read["lines"].items()}
    return _Reach(lines=lines, seconds=read["seconds"])


def _run_changed(session: Any, items: list[Any], mutant: Mutant) -> int:
    """Put a mutant in place and run tests until one fails."""
    _put_in_place(mutant.file, build_mutant(mutant))
    return _run_items(session, items)


def _load_profile() -> None:
    """A failing example is enough: no time is spent on a smaller one, and few are tried on each mutant."""
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate)
    settings.register_profile(
        "mutants",
        settings.get_profile("prism"),
        phases=phases,
        database=None,
        derandomize=True,
        max_examples=_EXAMPLES,
    )
    settings.load_profile("mutants")


def _run_items(session: Any, items: list[Any]) -> int:
    _load_profile()
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def _put_in_place(file: Path, tree: ast.Module, **names: object) -> None:
    """Execute a changed module beside the real one, and give the real functions and constants what it defines."""
    name = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
    real = importlib.import_module(name)
    changed = ModuleType(name)
    changed.__dict__.update(__file__=str(file), __package__=name.rpartition(".")[0], __name__=name)
    for module in (real, changed):
        module.__dict__.update(names)
    exec(compile(tree, str(file), "exec"), changed.__dict__)
    for key, value in vars(changed).items():
        old = vars(real).get(key)
        if key.startswith("__") or old is None or getattr(value, "__module__", name) != name:
            continue
        if isinstance(value, type):
            _change_class(old, value)
        elif (function := _function_of(value)) is not None:
            _change_function(_function_of(old), function)
        elif repr(old) != repr(value):
            _change_constant(key, old, value)


def _change_class(old: type, new: type) -> None:
    for key, value in vars(new).items():
        function = _function_of(value)
        if function is not None:
            _change_function(_function_of(vars(old).get(key)), function)
        elif not key.startswith("__") and repr(vars(old).get(key)) != repr(value):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(old, key, value)


def _function_of(value: Any) -> FunctionType | None:
    """The function inside a property, a cached function, a class method; None for what is no function."""
    for name in ("fget", "func", "__func__", "__wrapped__"):
        inner = getattr(value, name, None)
        if isinstance(inner, FunctionType):
            return inner
    return value if isinstance(value, FunctionType) else None


def _change_function(old: FunctionType | None, new: FunctionType) -> None:
    if old is None:
        return
    old.__code__ = new.__code__
    # Defaults that read the same stay: the changed module has classes and enumerations of its own.
    if repr(old.__defaults__) != repr(new.__defaults__):
        old.__defaults__ = new.__defaults__
    for name, value in (new.__kwdefaults__ or {}).items():
        if repr(value) != repr((old.__kwdefaults__ or {}).get(name)):
            old.__kwdefaults__ = {**(old.__kwdefaults__ or {}), name: value}


def _change_constant(key: str, old: object, value: object) -> None:
    """Change a constant wherever it was imported to, under its own name."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("prism.") and vars(module).get(key) is old:
            setattr(module, key, value)


def _fork(act: Callable[[], int], cpu_limit_s: float, output: Path | None = None) -> int:
    """Run something in a process of its own with a limit of CPU time, which a busy machine does not change."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            sink = os.open(output or os.devnull, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            limit = int(cpu_limit_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 2))
            code = act()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + max(_WALL_LIMIT_S, 10 * cpu_limit_s)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


class _Tracer:
    """Notes which lines of the files each test executes.

    The modules themselves make the notes: a trace function of Python would be called for every frame of every
    library, which makes tests on generated examples ten times slower.
    """

    def __init__(self, files: set[Path]) -> None:
        self.files = files
        self.lines: dict[str, dict[int, list[str]]] = {str(file): {} for file in files}
        self.seconds: dict[str, float] = {}
        self.test = ""

    def run(self, session: Any, told: Path) -> int:
        """Run all tests one by one and write down what they executed."""
        for file in self.files:
            note = functools.partial(self.note, self.lines[str(file)])
            _put_in_place(file, build_traced(file), **{NOTE: note})
        _load_profile()
        items = session.items
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.test, begin = item.nodeid, time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self.seconds[item.nodeid] = time.process_time() - begin
            if session.testsfailed:
                return 1
        told.write_text(json.dumps({"lines": self.lines, "seconds": self.seconds}))
        return 0

    def note(self, lines: dict[int, list[str]], line: int) -> None:
        """Remember that the present test executes a line; what runs at import is of no test."""
        tests = lines.setdefault(line, [])
        if self.test and (not tests or tests[-1] != self.test):
            tests.append(self.test)
