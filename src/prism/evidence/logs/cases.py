"""Resolved failures and the search among them: words and character n-grams, weighted by rarity, no model needed."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.errors import BadRowError
from prism.evidence.logs.rules import RuleBook
from prism.evidence.logs.secrets import mask
from prism.records.verdict import FAILURE_REASONS

NUM_BUCKETS = 1 << 13
CLOSE = 0.45  # cosine above which a neighbour answers; chosen on the examples used to write the rules
MAX_QUERY_CHARS = 20_000
_WORD = re.compile(r"[a-z_]{3,}|[a-z]+(?:[A-Z][a-z]+)+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A resolved failure: lines of its log, and its cause."""

    text: str
    reason: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A resolved case and its similarity (cosine, 0 to 1)."""

    case: Case
    similarity: float

    @property
    def is_close(self) -> bool:
        """Whether it is similar enough to give the answer."""
        return self.similarity >= CLOSE


@dataclass(frozen=True, slots=True)
class CaseStore:
    """Resolved cases, searchable."""

    cases: tuple[Case, ...] = ()
    _index: dict[str, NDArray[np.float32]] = field(default_factory=dict, compare=False, repr=False)

    def vectors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """One unit row per case, and the weight of each bucket."""
        if "rows" not in self._index:
            counts = [_features(case.text) for case in self.cases]
            spread = np.zeros(NUM_BUCKETS, np.float32)
            for row in counts:
                spread[list(row)] += 1
            weights = np.log((1 + len(counts)) / (1 + spread)).astype(np.float32) + 1
            self._index["weights"] = weights
            self._index["rows"] = (
                np.stack([_unit(row, weights) for row in counts]) if counts else np.zeros((0, NUM_BUCKETS), np.float32)
            )
        return self._index["rows"], self._index["weights"]


def nearest(store: CaseStore, texts: Iterable[str], count: int = 3) -> list[Neighbour]:
    """The cases most similar to these lines, best first; one similar line is enough."""
    lines = [t for t in texts if t.strip()][-200:]
    if not store.cases or not lines:
        return []
    rows, weights = store.vectors()
    queries = np.stack([_unit(_features(t), weights) for t in (*lines, "\n".join(lines)[:MAX_QUERY_CHARS])])
    likeness = (queries @ rows.T).max(axis=0)
    order = np.argsort(-likeness, kind="stable")[:count]
    return [
        Neighbour(case=store.cases[int(i)], similarity=round(float(likeness[i]), 3))
        for i in order
        if likeness[i] > 0.05
    ]


def _features(text: str) -> Mapping[int, float]:
    """Hashed counts of words, word pairs and 4-grams of characters, damped."""
    words = [w.lower() for w in _WORD.findall(text[:MAX_QUERY_CHARS])]
    grams = Counter(words)
    grams.update(f"{a} {b}" for a, b in pairwise(words))
    grams.update(f"#{w[i : i + 4]}" for w in words for i in range(max(0, len(w) - 3)))
    out: Counter[int] = Counter()
    for gram, number in grams.items():
        out[_bucket(gram)] += 1 + np.log(number)
    return out


@lru_cache(maxsize=200_000)
def _bucket(gram: str) -> int:
    return zlib.crc32(gram.encode()) % NUM_BUCKETS


def _unit(counts: Mapping[int, float], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    row = np.zeros(NUM_BUCKETS, np.float32)
    if counts:
        index = np.fromiter(counts.keys(), np.int64, len(counts))
        row[index] = np.fromiter(counts.values(), np.float32, len(counts)) * weights[index]
        row /= max(float(np.linalg.norm(row)), 1e-9)
    return row


def is_held_back(case: Case) -> bool:
    """Whether a case is in the half that rule authors never see; a hash decides, so it stays there."""
    return hashlib.sha256(case.text.encode("utf-8", "replace")).digest()[0] % 2 == 1


def shipped_cases(book: RuleBook) -> tuple[Case, ...]:
    """The examples in the rule files, as resolved cases."""
    return tuple(
        Case(text=r.example, reason=r.reason, note=f"example of rule {r.id}")
        for r in book.rules
        if r.reason != "Unknown"
    )


def load_cases(path: Path) -> tuple[Case, ...]:
    """Read cases from JSON Lines with `text` (or `snippet`) and `reason` (or `label`)."""
    cases = []
    for number, row in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if row.strip():
            cases.append(_case_of(row, f"{path} line {number}"))
    return tuple(cases)


def _case_of(row: str, where: str) -> Case:
    try:
        fields: Any = json.loads(row)
    except ValueError as error:
        raise BadRowError(f"{where}: not JSON ({error}); one case per line") from error
    fields = fields if isinstance(fields, dict) else {}
    text, reason = fields.get("text", fields.get("snippet")), fields.get("reason", fields.get("label"))
    if not isinstance(text, str) or reason not in FAILURE_REASONS:
        raise BadRowError(f"{where}: needs 'text' and a 'reason' that is one of the 29; got reason {reason!r}")
    return Case(text=text, reason=reason, note=str(fields.get("note", fields.get("source_url", ""))))


def append_case(path: Path, case: Case) -> None:
    """Store a resolved failure with its secrets masked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"text": mask(case.text), "reason": case.reason, "note": mask(case.note)}) + "\n")
