"""The process of a test: it never runs the program, and knows of it what crossed. Sent as text, after that of `wire`.

A name that the test uses is the test's own, or one that the task itself gave (`given`: the prompt's finished helpers),
or Python's, or, if it is none of these, the program's.
"""

import ast
import builtins
import ctypes
import importlib
import math
import os
import symtable
import sys
import types
from typing import Any

from prism.evaluate.run.scoring.remote import Remote  # cut out when sent
from prism.evaluate.run.scoring.wire import Peer  # cut out when sent

PASSED, FAILED, GONE = 0, 1, 4  # the last: the program ended before its test
# Modules whose names a program may leave for its test, as `from math import isclose`, under those names alone.
_LENT: tuple[str, ...] = (
    "math",
    "cmath",
    "collections",
    "itertools",
    "functools",
    "typing",
    "string",
    "re",
    "random",
    "datetime",
)
_LENT += ("decimal", "fractions", "statistics", "copy", "json", "heapq", "bisect", "operator")
_MEASURES = {"isclose", "fabs", "isnan", "isinf", "inf", "nan", "pi"}  # of math; a task may ask to write any other
_SHORT = {"np": "numpy", "pd": "pandas"}


def take() -> str:
    """The next text on stdin."""
    left, parts = int(os.read(0, 12)), []
    while left:
        parts.append(os.read(0, min(left, 65536)))
        left -= len(parts[-1])
    return b"".join(parts).decode(errors="surrogatepass")


def find_free_names(test: str) -> set[str]:
    """Names that a test uses and does not define."""
    top = symtable.symtable(test, "test", "exec")
    own = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    found, tables = set(), [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                found.add(symbol.get_name())
            if symbol.is_declared_global() and symbol.is_assigned():
                own.add(symbol.get_name())
    return found - own


def build_given(given: str) -> dict[str, Any]:
    """What the task itself defines, whole: imports, values and functions that have a body."""
    try:
        tree = ast.parse(given)
    except (SyntaxError, ValueError):
        return {}
    whole = [node for node in tree.body if not any(_is_stub(inner) for inner in ast.walk(node))]
    space: dict[str, Any] = {"__name__": "given"}
    exec(compile(ast.Module(whole, []), "given", "exec"), space)
    return {name: value for name, value in space.items() if not name.startswith("__")}


def _is_stub(node: ast.AST) -> bool:
    """A function that says nothing but what it is for."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return all(isinstance(part, (ast.Pass, ast.Raise)) or (isinstance(getattr(part, "value", None), ast.Constant)
               and isinstance(part, ast.Expr)) for part in node.body)  # fmt: skip


def find_imports(program: str) -> dict[str, str]:
    """Names that a program's text takes from a module of Python's and leaves as they are: name to module."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in _LENT and not node.level:
            found |= {part.name: str(node.module) for part in node.names if part.asname in (None, part.name)}
    return found


def choose_names(test: str, given: dict[str, Any], program: str) -> tuple[dict[str, Any], set[str]]:
    """What a test is given without asking the program, and the names that only the program has."""
    free = {name for name in find_free_names(test) if not (name.startswith("__") or hasattr(builtins, name))}
    space = {name: given[name] for name in free & set(given)}
    if set(space) == free:
        space = {}  # what was given is what is to be mended, and no helper
    lent = find_imports(program)
    for name in (free - set(space)) & set(lent):
        space[name] = getattr(importlib.import_module(lent[name]), name, None)
    for name in find_modules(test) & (free - set(space)):
        space[name] = importlib.import_module(_SHORT.get(name, name))
    left = free - set(space)
    numeric = left & _MEASURES
    if numeric != left:  # the test is about something else, and measures with these
        space |= {name: getattr(math, name) for name in numeric}
    return space, left - set(space)


def find_modules(test: str) -> set[str]:
    """Names that a test uses as modules of Python's, and as nothing else: the program's need not be these."""
    nodes = list(ast.walk(ast.parse(test)))
    owners = [node.value for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    others = {node.id for node in nodes if isinstance(node, ast.Name) and node not in owners}
    named = {node.id for node in owners if isinstance(node, ast.Name)} - others
    return {name for name in named if name in _SHORT or name in sys.stdlib_module_names}


def find_subjects(test: str) -> list[str]:
    """What a test may be about that uses no name but Python's: the calls in its first assertion, inner ones first."""
    first = next((node for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Assert)), None)
    calls = [node.func for node in ast.walk(first or ast.Module([], [])) if isinstance(node, ast.Call)]
    return [call.id for call in reversed(calls) if isinstance(call, ast.Name) and hasattr(builtins, call.id)]


def meet(peer: Peer, space: dict[str, Any], names: set[str]) -> bool:
    """Bind the program's names; whether one was there."""
    found = peer.ask({"op": "names", "names": peer.encode(sorted(names))})
    for name in names:
        kind, held = found[name]
        if kind == "value":
            space[name] = held
            if name[0].isupper() and isinstance(held, Remote):
                peer.classes.add(held._number)
    return any(found[name][0] == "value" for name in names)


def run_test(peer: Peer, test: str, given: str, program: str) -> None:
    """Run a test; raises what it raises, and AssertionError where it tests nothing of the program."""
    space, names = choose_names(test, build_given(given), program)
    is_met = bool(names) and meet(peer, space, names)
    if not names:
        is_met = any(meet(peer, space, {name}) for name in find_subjects(test))
    before = peer.num_asked
    own = types.ModuleType("__main__")
    sys.modules["__main__"] = own
    own.__dict__.update(space)
    exec(compile(test, "test", "exec"), own.__dict__)
    if peer.num_asked == before:
        run_defined(own.__dict__)
    if peer.num_asked == before and not is_met:
        raise AssertionError("the test uses nothing of the program")


def run_defined(space: dict[str, Any]) -> None:
    """Tests that were defined and not called: those of unittest's classes, and functions named so."""
    import unittest

    for name, value in list(space.items()):
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and value is not unittest.TestCase:
            done = unittest.defaultTestLoader.loadTestsFromTestCase(value).run(unittest.TestResult())
            if not done.wasSuccessful() or done.skipped:
                said = [text for _, text in (*done.failures, *done.errors)] or ["skipped"]
                raise AssertionError(said[0].strip().split("\n")[-1])
        elif name.startswith("test") and callable(value) and hasattr(value, "__code__"):
            value()


def check() -> None:
    """Run the test on stdin against the program at the other end of the pipes."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the program cannot look into this process
    test, given, program = take(), take(), take()
    sys.argv = ["test"]
    sys.stdin, sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY)), os.fdopen(1, "w")
    peer = Peer(os.fdopen(3, "r"), os.fdopen(4, "w"), trusts=False)
    try:
        peer.reader.readline()  # the interpreter of the program is up; the program has not begun
        os.write(5, b".")
        print("closed", file=peer.writer, flush=True)
        run_test(peer, test, given, program)
    except EOFError:
        os._exit(GONE)
    except SystemExit as left:  # of unittest.main; that of a program ends the program
        os._exit(PASSED if left.code in (0, None, False) and peer.num_asked > 1 else FAILED)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".strip()
        os.write(2, text.encode(errors="replace")[:2000] + b"\n")
        os._exit(FAILED)
    os._exit(PASSED)


if __name__ == "__main__":
    check()
