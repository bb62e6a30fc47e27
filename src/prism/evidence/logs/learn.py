"""A proposed rule is tested on all resolved cases before it may be used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from prism.evidence.logs.cases import Case, is_held_back
from prism.evidence.logs.diagnose import Knowledge, diagnose
from prism.evidence.logs.joblog import read_text
from prism.evidence.logs.rules import Rule, RuleBook
from prism.machine.files import write_durably

HEALTHY_LINES = (
    "iteration 100/ 500 | elapsed time per iteration (ms): 812.4 | lm loss: 2.31E+00 | grad norm: 1.2",
    "saving checkpoint at iteration 100 to /checkpoints",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "Epoch 1: 100%|##########| 500/500 [01:22<00:00, 6.1it/s, loss=2.31]",
    "[INFO] loading dataset from /data/train",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a proposed rule changes the known answers; it may be used only if `is_safe`."""

    rule: Rule
    changed: tuple[str, ...]
    num_cases: int
    num_held_back: int = 0  # of them, cases that the author of the rule did not see

    @property
    def is_safe(self) -> bool:
        """Whether every known answer stayed as it was."""
        return not self.changed


def known_cases(book: RuleBook, resolved: Iterable[Case] = ()) -> list[Case]:
    """All cases with a known answer: the examples of the rules and the resolved cases."""
    shipped = [Case(text=r.example, reason=r.reason, note=f"example of rule {r.id}") for r in book.rules]
    return [*shipped, *resolved]


def try_rule(rule: Rule, book: RuleBook, cases: Sequence[Case]) -> Trial:
    """Diagnose every known case with and without the rule; list each known answer that it would change.

    The rule must also match its own example after every number in it was changed: pids and steps are no evidence.
    """
    changed = [f"matches the healthy line: {line[:80]}" for line in HEALTHY_LINES if rule.matches(line)]
    if not rule.matches(_with_other_numbers(rule.example)):
        changed.append("matches only the numbers of its own example (a pid, a step, a time)")
    if not changed:
        before, after = Knowledge(rules=book), Knowledge(rules=book.with_rules([rule]))
        for case in cases:
            old = diagnose(read_text(case.text), before).verdict.reason
            new = diagnose(read_text(case.text), after).verdict.reason
            if new != old and (new != case.reason or old == case.reason):
                half = "held back: " if is_held_back(case) else ""
                changed.append(f"{half}{case.note or case.text[:60]}: {old} would become {new}")
            elif is_held_back(case) and new != case.reason and rule.matches(case.text):
                changed.append(f"held back: {case.note or case.text[:60]} is {case.reason}, and the rule matches it")
    held_back = sum(is_held_back(case) for case in cases)
    return Trial(rule=rule, changed=tuple(changed), num_cases=len(cases), num_held_back=held_back)


def _with_other_numbers(text: str) -> str:
    """The text with every long number changed; short ones may be codes that mean something."""
    return re.sub(r"(?<![\w.])\d{4,}(?![\w.])", lambda m: "".join(str((int(d) * 7 + 3) % 10) for d in m.group(0)), text)


def admit(trial: Trial, folder: Path) -> Path:
    """Add a safe rule to the folder of learned rules."""
    assert trial.is_safe, "only a rule that changes no known answer may be admitted"
    folder.mkdir(parents=True, exist_ok=True)
    keys = ("id", "reason", "layer", "pattern", "unless", "action", "mitigation", "example", "counter_example")
    fields = {key: getattr(trial.rule, key) for key in keys}
    fields["explains"] = list(trial.rule.explains) or None
    row = {k: v for k, v in fields.items() if v is not None}
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", trial.rule.id)
    text = yaml.safe_dump([row], sort_keys=False, allow_unicode=True)
    path = folder / f"{name}.yaml"
    number = 2
    while path.exists() and path.read_text(encoding="utf-8") != text:  # Never overwrite another rule.
        path, number = folder / f"{name}-{number}.yaml", number + 1
    write_durably(path, text)
    return path
