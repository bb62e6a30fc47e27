"""Learning safely: a proposed rule is tried on everything already known before it may be used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from prism.explain.cases import Case
from prism.explain.diagnose import Knowledge, diagnose
from prism.explain.joblog import read_text
from prism.explain.rules import Rule, RuleBook

HEALTHY_LINES = (
    "iteration 100/ 500 | elapsed time per iteration (ms): 812.4 | lm loss: 2.31E+00 | grad norm: 1.2",
    "saving checkpoint at iteration 100 to /checkpoints",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "Epoch 1: 100%|##########| 500/500 [01:22<00:00, 6.1it/s, loss=2.31]",
    "[INFO] loading dataset from /data/train",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a proposed rule did to the known answers; it may be used only if `is_safe`."""

    rule: Rule
    changed: tuple[str, ...]
    num_cases: int

    @property
    def is_safe(self) -> bool:
        """Whether every known answer stayed as it was."""
        return not self.changed


def known_cases(book: RuleBook, resolved: Iterable[Case] = ()) -> list[Case]:
    """Everything whose answer is known: the rules' own examples and the resolved cases."""
    shipped = [Case(text=r.example, reason=r.reason, note=f"example of rule {r.id}") for r in book.rules]
    return [*shipped, *resolved]


def try_rule(rule: Rule, book: RuleBook, cases: Sequence[Case]) -> Trial:
    """Diagnose every known case with and without the rule; list each answer that it would change for the worse."""
    changed = [f"matches the healthy line: {line[:80]}" for line in HEALTHY_LINES if rule.matches(line)]
    if not changed:
        before, after = Knowledge(rules=book), Knowledge(rules=book.with_rules([rule]))
        for case in cases:
            old = diagnose(read_text(case.text), before).verdict.reason
            new = diagnose(read_text(case.text), after).verdict.reason
            if new != old and new != case.reason:
                changed.append(f"{case.note or case.text[:60]}: {old} would become {new}")
    return Trial(rule=rule, changed=tuple(changed), num_cases=len(cases))


def admit(trial: Trial, folder: Path) -> Path:
    """Add a safe rule to the folder of learned rules."""
    assert trial.is_safe, "only a rule that changes no known answer may be admitted"
    folder.mkdir(parents=True, exist_ok=True)
    fields = {k: getattr(trial.rule, k) for k in ("id", "reason", "layer", "pattern", "unless", "action", "mitigation",
                                                  "example", "counter_example")}  # fmt: skip
    fields["explains"] = list(trial.rule.explains) or None
    row = {k: v for k, v in fields.items() if v is not None}
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', trial.rule.id)}.yaml"
    draft = path.with_suffix(".draft")
    draft.write_text(yaml.safe_dump([row], sort_keys=False, allow_unicode=True), encoding="utf-8")
    draft.replace(path)
    return path
