"""Checks of a model's answer: it must give a known reason and quote lines that can prove it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prism.evidence.logs.joblog import LogLine
from prism.evidence.logs.secrets import mask
from prism.evidence.logs.triggers import has_trouble, is_progress
from prism.records.verdict import FAILURE_REASONS

MIN_QUOTE_CHARS = 8
REASONS = tuple(r for r in FAILURE_REASONS if r != "Unknown")
# A line with these words gives advice instead of reporting a fault: it may be shown, but proves nothing.
_ADDRESSES_READER = re.compile(
    r"\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:rules?|instructions?|above|previous|prior|everything|all)\b"
    r"|\b(?:you (?:are|must|should|will)|your (?:answer|task|instructions?|reply)|answer (?:with|is|only)|respond "
    r"with|reply with"
    r"|output (?:only|the|json)|assistant|language model|as an ai|system prompt|the (?:correct|right|true) "
    r"(?:reason|answer|cause) is)\b"
    r"|[\"']?reason[\"']?\s*[:=]\s*[\"']?(?:"
    + "|".join(REASONS)
    + r")\b|(?:root cause|diagnosis|verdict)\s*(?:is|[:=])\s*(?:"
    + "|".join(REASONS)
    + r")\b",
    re.IGNORECASE,
)
# A line must contain one of these words to prove the reason; for a reason that is not listed, any trouble word counts.
_PROOF: Mapping[str, re.Pattern[str]] = {
    reason: re.compile(words, re.IGNORECASE)
    for reason, words in {
        "NVLinkError": r"nv-?link|nvswitch|xgmi|fabric|\bici\b|hccs|xid|sxid",
        "ECCError": r"\becc\b|double.bit|dbe|uncorrect|remap|page retire|memory error|xid",
        "NodeFailure": r"node|host|machine|kernel|reboot|evict|preempt|heartbeat|daemon|vanish|unreachable|power",
        "NetworkError": r"net|link|nic|mlx|\bib\b|infiniband|roce|rdma|socket|port|route|packet|switch",
        "CUDAError": r"cuda|gpu|hip|rocm|device|xid|cublas|cudnn|npu|tpu|kernel|driver|nvml",
        "NCCLTimeoutError": r"time.?out|timed out|watchdog|hang|hung|stuck|collective|barrier|deadline",
        "NCCLRemoteError": r"peer|remote|nccl|rccl|hccl|closed|reset|collective|rank",
        "ConnectionError": r"connect|socket|http|time.?out|refused|resolve|unreach|unavail|proxy|ssl|offline|server",
        "S3StorageError": r"s3|bucket|object|boto|storage|blob|\bgcs\b|oss|minio|upload|download",
        "OutOfMemoryError": r"memory|oom|alloc|exhaust|kill",
        "DataloaderKilled": r"worker|loader|shm|shared memory|bus error|kill",
    }.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One vote that passed every check."""

    reason: str
    numbers: tuple[int, ...]
    pattern: str | None = None


def neutralise(text: str) -> str:
    """A line that cannot close the fence around it."""
    return text.replace("<<<", "< < <").replace(">>>", "> > >").replace("\n", " ")


def find_answer(text: str) -> dict[str, Any] | None:
    """The last JSON object in a reply that names a reason; the model's reasoning before it is ignored."""
    text = text.rsplit("</think>", 1)[-1]
    decoder = json.JSONDecoder()
    found: dict[str, Any] | None = None
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            found = value if isinstance(value, dict) and "reason" in value else found
        at = text.find("{", max(end, at + 1))
    return found


def can_prove(line: LogLine, reason: str) -> bool:
    """Whether a line can prove a reason: it reports a problem of that kind, and is not advice."""
    text = line.text
    if _ADDRESSES_READER.search(text) or is_progress(text):
        return False
    words = _PROOF.get(reason)
    return has_trouble(text) if words is None else words.search(text) is not None


def check_answer(text: str, shown: Sequence[LogLine]) -> tuple[Answer | None, str]:
    """The answer if the log proves it, otherwise why it does not."""
    fields = find_answer(text)
    if fields is None:
        return None, "not JSON"
    reason = fields.get("reason")
    if not isinstance(reason, str) or reason not in FAILURE_REASONS:
        return None, "unknown reason"
    if reason == "Unknown":
        return Answer(reason=reason, numbers=()), ""
    numbers = []
    for cited in evidence if isinstance(evidence := fields.get("evidence"), list) else ():
        if not isinstance(cited, dict) or not isinstance(cited.get("number"), int):
            return None, "evidence has no line number"
        number, quote = cited["number"], cited.get("quote")
        if not 1 <= number <= len(shown):
            return None, "cites a line that does not exist"
        line = neutralise(mask(shown[number - 1].text))
        if not isinstance(quote, str) or len(quote.strip()) < MIN_QUOTE_CHARS or quote.strip() not in line:
            return None, "quotes words that the line does not hold"
        numbers.append(number)
    if not numbers:
        return None, "cites nothing"
    numbers = [n for n in numbers if can_prove(shown[n - 1], reason)]
    if not numbers:
        return None, "quotes words that do not prove its reason"
    rule = fields.get("rule")
    pattern = rule.get("pattern") if isinstance(rule, dict) else None
    return Answer(reason=reason, numbers=tuple(numbers), pattern=pattern if isinstance(pattern, str) else None), ""
