"""The plain words that a text must contain before a regular expression can match it, found without running it."""

from __future__ import annotations

from collections.abc import Iterator

_QUANTIFIERS = "*+?{"


def split_alternatives(pattern: str) -> Iterator[str]:
    """Split a regular expression at the bars that are outside groups and character classes."""
    start = i = 0
    while i < len(pattern):
        if pattern[i] == "|":
            yield pattern[start:i]
            start = i + 1
        i += _width(pattern, i)
    yield pattern[start:]


def required_words(pattern: str) -> frozenset[str]:
    """Words in lower case of which every match contains at least one; empty if none is certain."""
    needs = [_required_of_branch(branch) for branch in split_alternatives(pattern)]
    return frozenset().union(*needs) if all(needs) else frozenset()


def _required_of_branch(branch: str) -> frozenset[str]:
    """The most selective requirement among the parts of a sequence: the one whose shortest word is longest."""
    best: frozenset[str] = frozenset()
    run, i = "", 0
    while i < len(branch):
        width = _width(branch, i)
        part, following = branch[i : i + width], branch[i + width : i + width + 1]
        optional = (bool(following) and following in "*?") or branch[i + width : i + width + 2] == "{0"
        plain = "" if optional else _plain(part)
        if plain:
            run += plain
        else:
            best, run = _better(best, frozenset({run})), ""
            if not optional and part.startswith("(") and not part.startswith(("(?!", "(?<", "(?=")):
                best = _better(best, required_words(_inside(part)))
        i += width
        if following and following in _QUANTIFIERS:
            if plain:
                best, run = _better(best, frozenset({run})), ""
            i += branch[i:].index("}") + 1 if following == "{" else 1
            i += 1 if branch[i : i + 1] == "?" else 0
    return _better(best, frozenset({run}))


def _better(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """The more selective of two requirements."""
    return max(one, other, key=lambda words: min((len(w.strip()) for w in words), default=0))


def _plain(part: str) -> str:
    if part[0] == "\\":
        return part[1].lower() if not part[1].isalnum() else ""
    return part.lower() if len(part) == 1 and part not in ".^$" else ""


def _inside(group: str) -> str:
    body = group[1:-1]
    return body[2:] if body.startswith("?:") else body


def _width(pattern: str, start: int) -> int:
    """How many characters the element at `start` takes: an escape, a class, a group or one character."""
    char = pattern[start]
    if char == "\\":
        return 2
    if char == "[":
        return _class_width(pattern, start)
    if char != "(":
        return 1
    depth, i = 0, start
    while i < len(pattern):
        if pattern[i] in "\\[":
            i += _width(pattern, i)
            continue
        depth += {"(": 1, ")": -1}.get(pattern[i], 0)
        i += 1
        if depth == 0:
            break
    return i - start


def _class_width(pattern: str, start: int) -> int:
    i = start + 1
    i += 1 if pattern[i : i + 1] == "^" else 0
    i += 1 if pattern[i : i + 1] == "]" else 0
    while i < len(pattern) and pattern[i] != "]":
        i += 2 if pattern[i] == "\\" else 1
    return i + 1 - start
