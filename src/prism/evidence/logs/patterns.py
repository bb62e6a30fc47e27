"""Regular expressions: ours run as written, those from outside only if their running time is bounded."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Protocol, cast

from prism.errors import say_install

MAX_OUTSIDE_CHARS = 2000
MAX_LINE_CHARS = 4200  # no line that is matched is longer, see scan.MAX_TEXT_BYTES
MAX_PATHS = 50_000_000  # ways to match one line; a backtracking engine tries each at most once
MAX_NESTING = 20
_MAX_RE2_BYTES = 8 << 20


class UnsafePatternError(ValueError):
    """A pattern that cannot be matched in bounded time, or is no pattern at all."""


class Matcher(Protocol):
    """The interface of a compiled pattern."""

    def search(self, text: str) -> object | None:
        """A match anywhere in `text`, or None."""


@cache
def compile_own(pattern: str) -> Matcher:
    """A pattern that ships with Prism."""
    return re.compile(pattern, re.IGNORECASE)


@cache
def compile_outside(pattern: str) -> Matcher:
    """A pattern from a user's file or a model: in RE2, which is linear, or proved bounded, or refused.

    Nothing is matched before this has returned.
    """
    if len(pattern) > MAX_OUTSIDE_CHARS:
        raise UnsafePatternError(f"longer than {MAX_OUTSIDE_CHARS} characters; split the rule")
    if _nesting(pattern) > MAX_NESTING:
        raise UnsafePatternError(f"groups nested deeper than {MAX_NESTING}; write it flatter")
    try:
        own = re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsafePatternError(f"not a regular expression ({error})") from error
    linear = _compile_linear(pattern)
    if linear is not None:
        return linear
    paths = count_paths(pattern) * MAX_LINE_CHARS
    if paths > MAX_PATHS:
        raise UnsafePatternError(
            "could take very long on some line; bound its repetitions ({0,80} for *), put no repetition inside "
            f"another, or {say_install('explain')}, whose engine is linear"
        )
    return own


def _compile_linear(pattern: str) -> Matcher | None:
    """The pattern in RE2; None where it is not installed or does not know a construct (look-around, say)."""
    try:
        import re2  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return None
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = _MAX_RE2_BYTES
    try:
        return cast(Matcher, re2.compile(pattern, options=options))
    except re2.error:
        return None


def count_paths(pattern: str) -> int:
    """An upper bound on the ways in which a backtracking engine can try a pattern from one position."""
    # The parser is private to the standard library, and the only one that reads a pattern as `re` does.
    parser: Any = re._parser  # type: ignore[attr-defined]
    return _paths_of_sequence(parser.parse(pattern))


def _paths_of_sequence(items: Any) -> int:
    total = 1
    for operator, argument in items:
        total *= _paths_of(str(operator), argument)
        if total > MAX_PATHS:
            return MAX_PATHS + 1
    return total


def _paths_of(operator: str, argument: Any) -> int:
    if operator in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, body = argument
        most = min(int(most), MAX_LINE_CHARS)
        inside = _paths_of_sequence(body)
        if inside == 1:
            return most - int(least) + 1
        return MAX_PATHS + 1 if most > 30 else sum(inside**n for n in range(int(least), most + 1))
    if operator == "BRANCH":
        return sum(_paths_of_sequence(branch) for branch in argument[1])
    if operator == "SUBPATTERN":
        return _paths_of_sequence(argument[-1])
    if operator in ("ASSERT", "ASSERT_NOT"):
        return _paths_of_sequence(argument[1])
    if operator == "ATOMIC_GROUP":
        return _paths_of_sequence(argument)
    if operator.startswith("GROUPREF"):
        return MAX_PATHS + 1  # the text that a reference matches has no bound
    return 1


def _nesting(pattern: str) -> int:
    deepest = depth = 0
    escaped = False
    for char in pattern:
        if not escaped:
            depth += {"(": 1, ")": -1}.get(char, 0)
            deepest = max(deepest, depth)
        escaped = char == "\\" and not escaped
    return deepest
