"""Fail on tests that cannot fail (no assertion, no expected error, no call of something with one), or have one name."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXPECTS = {"raises", "warns", "fail", "deprecated_call"}


def main() -> int:
    """Print one line per such test; exit 1 where there are any."""
    trees = {
        path: ast.parse(path.read_text())
        for folder in ("tests", "proving/drills")
        for path in (ROOT / folder).rglob("*.py")
    }
    functions = [
        (path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    checking = _find_checking([node for _, node in functions])
    idle = [
        (path, node)
        for path, node in functions
        if node.name.startswith("test_") and not _checks(node, checking) and path.name.startswith("test_")
    ]
    for path, node in idle:
        print(f"{path.relative_to(ROOT)} line {node.lineno}: {node.name} asserts nothing")
    names = Counter(path.name for path in trees if path.name.startswith("test_"))
    twice = [path for path in trees if names[path.name] > 1]
    for path in twice:
        print(f"{path.relative_to(ROOT)}: another test file has the same name, and pytest runs one of them")
    return 1 if idle or twice else 0


def _find_checking(functions: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> set[str]:
    """Names of functions that assert something, themselves or through others."""
    checking: set[str] = set()
    while True:
        found = {f.name for f in functions if _checks(f, checking)}
        if found == checking:
            return checking
        checking = found


def _checks(function: ast.AST, checking: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Raise) and "AssertionError" in ast.dump(node)):
            return True
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in EXPECTS or name in checking or name.startswith("assert_"):
                return True
            if any(k.arg == "check" and getattr(k.value, "value", False) is True for k in node.keywords):
                return True
    return False


if __name__ == "__main__":
    sys.exit(main())
