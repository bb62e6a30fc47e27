"""Rules: data files that map words to a reason, with the depth of the cause and the action."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, cast, get_args

import polars as pl
import yaml

from prism.errors import BadConfigError
from prism.evidence.logs.literals import required_words, split_alternatives
from prism.evidence.logs.patterns import MAX_LINE_CHARS, Matcher, UnsafePatternError, compile_outside, compile_own
from prism.evidence.logs.triggers import has_trouble
from prism.records.causes import cause_of
from prism.records.verdict import FAILURE_REASONS, Action

# From causes that explain nothing to causes that explain everything after them.
LAYERS = ("wrapper", "exit", "symptom", "message", "exception", "cause", "hardware")
_SHIPPED = ("accelerators", "clusters", "hardware", "storage", "memory", "cuda", "loading", "network", "script")
_SHIPPED_LAST = ("messages", "endings")  # messages without a class, and messages that only report an end
_REQUIRED = ("id", "reason", "layer", "pattern", "example", "counter_example")
_OPTIONAL = ("unless", "action", "mitigation", "explains", "cause")
MIN_WORD_CHARS, MIN_CODE_CHARS = 11, 6  # plain words, and words with a digit or a sign in them


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; `layer` orders causes, `explains` lists the reasons for which an earlier hit accounts.

    `cause` names one of `records/causes.py`. `ours` means that the rule ships with Prism; other patterns must run in
    bounded time.
    """

    id: str
    reason: str
    layer: str
    pattern: str
    example: str
    counter_example: str
    unless: str | None = None
    action: Action | None = None
    mitigation: str | None = None
    explains: tuple[str, ...] = ()
    cause: str | None = None  # what ended the run, if none of the reasons says it
    ours: bool = False

    @property
    def depth(self) -> int:
        """The depth of the cause: a higher one explains a lower one."""
        return LAYERS.index(self.layer)

    def matches(self, text: str) -> bool:
        """Whether the rule matches this line."""
        lowered = text.lower()
        for words, alternative in _alternatives(self.pattern):
            if (not words or any(w in lowered for w in words)) and self.finds(alternative, text):
                return self.unless is None or not self.finds(self.unless, text)
        return False

    def finds(self, pattern: str, text: str) -> bool:
        """Whether one of the rule's own patterns is in this line."""
        return self.compile(pattern).search(text[:MAX_LINE_CHARS]) is not None

    def compile(self, pattern: str) -> Matcher:
        """A pattern in the engine that the rule's origin allows."""
        return compile_own(pattern) if self.ours else compile_outside(pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonAdvice:
    """The default action for a reason, and its description."""

    action: Action
    mitigation: str


@dataclass(frozen=True, slots=True)
class RuleBook:
    """Rules in order of priority, the routine patterns, and the advice per reason."""

    rules: tuple[Rule, ...]
    routine: tuple[str, ...]
    advice: Mapping[str, ReasonAdvice]
    _claims: dict[str, Rule | None] = field(default_factory=dict, compare=False, repr=False)
    _healthy: set[str] = field(default_factory=set, compare=False, repr=False)

    def claim(self, text: str) -> Rule | None:
        """The first rule that matches this line; a line is evidence for one reason only."""
        self.prepare([text])
        return self._claims[text]

    def is_routine(self, text: str) -> bool:
        """Whether healthy runs print the line as well."""
        self.prepare([text])
        return text in self._healthy

    def prepare(self, texts: Iterable[str]) -> None:
        """Match many lines at once: one search finds the words in all of them, so few patterns must be tried."""
        new = [text for text in dict.fromkeys(texts) if text not in self._claims]
        if not new:
            return
        index = _index(self.rules, self.routine)
        found = pl.Series(new, dtype=pl.String).str.extract_many(
            list(index.words), ascii_case_insensitive=True, overlapping=True
        )
        for text, words in zip(new, found.to_list(), strict=True):
            places = sorted({p for w in dict.fromkeys(words) for p in index.places[w.lower()]} | index.always)
            self._claims[text] = self._first_of(text, places)
            if any(n < 0 and compile_own(alternative).search(text) for n, alternative in places):
                self._healthy.add(text)

    def _first_of(self, text: str, places: list[tuple[int, str]]) -> Rule | None:
        for number, alternative in places:
            if number >= 0 and self.rules[number].finds(alternative, text):
                rule = self.rules[number]
                if rule.unless is None or not rule.finds(rule.unless, text):
                    return rule
        return None

    def with_rules(self, added: Iterable[Rule]) -> RuleBook:
        """A copy with more rules, which take priority over the shipped ones."""
        return RuleBook((*added, *self.rules), self.routine, self.advice)


@dataclass(frozen=True, slots=True)
class _Index:
    """From a word to the (rule, alternative) pairs that need it; routine patterns count from -1 down."""

    words: tuple[str, ...]
    places: Mapping[str, tuple[tuple[int, str], ...]]
    always: frozenset[tuple[int, str]]


@lru_cache(maxsize=8)
def _index(rules: tuple[Rule, ...], routine: tuple[str, ...]) -> _Index:
    places: dict[str, list[tuple[int, str]]] = {}
    always: set[tuple[int, str]] = set()
    numbered = [(n, rule.pattern) for n, rule in enumerate(rules)] + [(-1 - n, p) for n, p in enumerate(routine)]
    for number, pattern in numbered:
        for words, alternative in _alternatives(pattern):
            if not words:
                always.add((number, alternative))
            for word in words:
                places.setdefault(word, []).append((number, alternative))
    return _Index(tuple(places), {w: tuple(p) for w, p in places.items()}, frozenset(always))


@lru_cache(maxsize=8)
def literals_of(rules: tuple[Rule, ...]) -> tuple[str, ...]:
    """The plain words that rules look for, so that a scan of a large log stops at them; common words are left out."""
    found = {w.strip() for rule in rules for words, _ in _alternatives(rule.pattern) for w in words}
    return tuple(sorted(w for w in found if _is_telling(w) and not has_trouble(w)))


def _is_telling(word: str) -> bool:
    return len(word) >= MIN_WORD_CHARS or (len(word) >= MIN_CODE_CHARS and not word.replace(" ", "").isalpha())


@cache
def _alternatives(pattern: str) -> tuple[tuple[frozenset[str], str], ...]:
    """The pattern cut at its outermost bars, each part with the words of which a match must hold one."""
    return tuple((required_words(part), part) for part in split_alternatives(pattern))


@cache
def shipped_rules() -> RuleBook:
    """The rules that come with Prism."""
    folder = resources.files("prism.evidence.logs") / "rules"
    rules: list[Rule] = []
    for name in (*_SHIPPED, *_SHIPPED_LAST):
        rules += parse_rules((folder / f"{name}.yaml").read_text(), f"{name}.yaml", ours=True)
    routine = cast(list[str], _load((folder / "routine.yaml").read_text()))
    advice = cast(dict[str, dict[str, Any]], _load((folder / "reasons.yaml").read_text()))
    return RuleBook(tuple(rules), tuple(routine), {reason: ReasonAdvice(**row) for reason, row in advice.items()})


def read_rules(path: Path) -> list[Rule]:
    """Rules of a file, or of every .yaml in a folder."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    rules: list[Rule] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfigError(f"{file}: cannot be read as rules ({error}); give a YAML file of rules") from error
        rules += parse_rules(text, str(file))
    return rules


def parse_rules(text: str, where: str, *, ours: bool = False) -> list[Rule]:
    """Read rules from YAML text; an error names the first problem."""
    try:
        rows = _load(text)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        line = f" line {place.line + 1}" if place is not None else ""
        raise BadConfigError(
            f"{where}{line}: not YAML ({getattr(error, 'problem', error)}); quote patterns with ' '"
        ) from error
    if not isinstance(rows, list):
        raise BadConfigError(f"{where}: expected a list of rules, each with {', '.join(_REQUIRED)}")
    return [parse_rule(row, f"{where} rule {index}", ours=ours) for index, row in enumerate(rows, start=1)]


def parse_rule(row: Any, where: str, *, ours: bool = False) -> Rule:
    """Check one rule: fields, reason, layer, action, patterns, and only then that its examples hold."""
    if not isinstance(row, dict):
        raise BadConfigError(f"{where}: expected a mapping with {', '.join(_REQUIRED)}")
    where = f"{where} ({row.get('id', 'no id')})"
    for key in _REQUIRED:
        if not isinstance(row.get(key), str) or not row[key]:
            raise BadConfigError(f"{where}: '{key}' is missing or not text; every rule needs {', '.join(_REQUIRED)}")
    unknown = sorted(str(key) for key in set(row) - {*_REQUIRED, *_OPTIONAL})
    if unknown:
        raise BadConfigError(
            f"{where}: unknown field '{unknown[0]}'; allowed are {', '.join((*_REQUIRED, *_OPTIONAL))}"
        )
    actions = tuple(action for action in get_args(Action) if action != "none")
    for key, allowed in (("reason", FAILURE_REASONS), ("layer", LAYERS), ("action", actions)):
        if key in row and row[key] not in allowed:
            raise BadConfigError(f"{where}: '{key}' is {row[key]!r}, expected one of {', '.join(allowed)}")
    if not isinstance(row.get("unless") or "", str) or not set(row.get("explains") or ()) <= {*FAILURE_REASONS}:
        raise BadConfigError(f"{where}: 'unless' is a pattern and 'explains' a list of reasons; correct them")
    if "cause" in row and cause_of(str(row["cause"])).kind == "unknown":
        raise BadConfigError(
            f"{where}: 'cause' is {row['cause']!r}, which is none of Prism's causes; see docs/explain.md"
        )
    rule = Rule(**{**row, "explains": tuple(row.get("explains") or ()), "ours": ours})
    _check_patterns(rule, where)
    if not rule.matches(rule.example):
        raise BadConfigError(f"{where}: the pattern does not match its own example; fix one of them")
    if rule.matches(rule.counter_example):
        raise BadConfigError(f"{where}: the pattern matches its counter-example; narrow it or use 'unless'")
    return rule


def _check_patterns(rule: Rule, where: str) -> None:
    """Compile every pattern of a rule; none runs before all are known to be bounded."""
    for key, pattern in (("pattern", rule.pattern), ("unless", rule.unless)):
        if pattern is None:
            continue
        try:
            rule.compile(pattern)
            for _, alternative in _alternatives(pattern) if key == "pattern" else ():
                rule.compile(alternative)
        except (UnsafePatternError, re.error) as error:
            raise BadConfigError(f"{where}: '{key}' is refused: {error}") from error


def _load(text: str) -> Any:
    # The C loader is ten times faster and reads the same; not every build of PyYAML has it.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
