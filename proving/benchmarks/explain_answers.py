"""Other ways to name a failure's reason, for comparison: each takes a log's text and answers with a reason."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable
from pathlib import Path

from prism.evidence.logs import diagnose, read_text
from prism.evidence.logs.exceptions import exception_on, reason_of
from prism.evidence.logs.origins import parse_line

Answer = Callable[[str], tuple[str, str]]  # text -> (reason, action)


def _named(lines: list[str]) -> list[str]:
    names = (exception_on(parse_line(line).text) for line in lines)
    return [reason for name in names if name and (reason := reason_of(name))]


def _with_action(reason: str) -> tuple[str, str]:
    from prism.evidence.logs.rules import shipped_rules

    return reason, shipped_rules().advice[reason].action


def prism_rules(text: str) -> tuple[str, str]:
    """Prism itself."""
    verdict = diagnose(read_text(text)).verdict
    return verdict.reason, verdict.action


def last_exception(text: str) -> tuple[str, str]:
    """The exception class named last."""
    return _with_action((_named(text.splitlines()) or ["Unknown"])[-1])


def first_exception(text: str) -> tuple[str, str]:
    """The exception class named first."""
    return _with_action((_named(text.splitlines()) or ["Unknown"])[0])


def drain_and_rules(text: str) -> tuple[str, str]:
    """Drain3's templates in place of the lines, under Prism's own rules."""
    from drain3 import TemplateMiner
    from drain3.template_miner_config import TemplateMinerConfig

    logging.getLogger("drain3").setLevel(logging.ERROR)
    miner = TemplateMiner(config=TemplateMinerConfig())
    templates = [miner.add_log_message(line)["template_mined"] for line in text.splitlines()]
    return prism_rules("\n".join(templates))


def logsage_words() -> Answer | None:
    """logsage's word lists choose the lines (its language model is left out); the last exception on them answers."""
    spec = importlib.util.find_spec("logsage")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "auto_resume_policy" / "consts.py"
    module_spec = importlib.util.spec_from_file_location("logsage_consts", path)
    if module_spec is None or module_spec.loader is None:
        return None
    consts = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(consts)
    wanted = re.compile("|".join(re.escape(w.lower()) for w in (*consts.ERROR_WORDS, *consts.HIGH_PRIO_WORDS)))
    benign = re.compile("|".join(re.escape(w.lower()) for w in consts.BENIGN_WORDS))

    def answer(text: str) -> tuple[str, str]:
        lines = [ln for ln in text.splitlines() if wanted.search(ln.lower()) and not benign.search(ln.lower())]
        if any(w.lower() in ln.lower() for ln in lines for w in consts.HARDWARE_WORDS):
            return _with_action("ECCError" if any("ecc" in ln.lower() for ln in lines) else "CUDAError")
        return _with_action((_named(lines) or ["Unknown"])[-1])

    return answer
