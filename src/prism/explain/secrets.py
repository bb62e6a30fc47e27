"""Mask tokens, keys and passwords, so that nothing secret leaves a log."""

from __future__ import annotations

import re

MASK = "***"

# Each pattern keeps group 1 and replaces the rest of the match.
_SECRETS = [
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s/@:'\"]{0,200}:[^\s/@'\"]{1,400}@",  # user:password@ in a URL
        r"(\bAuthorization['\"]?\s*[:=]\s*['\"]?(?:Bearer|Basic|Token)?\s*)(?!Bearer|Basic|Token)[^\s'\",]{6,}",
        r"(\bBearer\s+)[\w.~+/=-]{8,}",
        r"([?&;](?:[\w.-]{0,40}(?:token|key|secret|sig|signature|credential|password|passwd|auth)[\w.-]{0,20})=)[^&\s'\"<>]+",
        r"(\b[\w.-]{0,40}(?:password|passwd|secret|api[_-]?key|access[_-]?key(?:[_-]?id)?|auth[_-]?token|private[_-]?key"
        r"|(?<![a-z])token|credentials?)['\"]?\s*[=:]\s*['\"]?)(?![\s'\"]|None\b|null\b|True\b|False\b|\[|\{|<|\d{1,6}\b)[^\s'\",;&)}\]]{4,}",
        r"(--[\w-]{0,40}(?:token|password|passwd|secret|api-key|api_key|access-key)[\s=]+)(?!-)\S+",
    )
]
# Whole tokens known by their shape: cloud, hub, forge, chat and model-service keys, and JSON web tokens.
_TOKENS = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|sk-[A-Za-z0-9_-]{16,}|nvapi-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,})"
)
_HINTS = re.compile(
    r"://|auth|bearer|token|key|secret|sig|credential|passw|AKIA|ASIA|hf_|gh[pousr]_|github_pat|glpat|sk-|nvapi|xox|AIza|eyJ",
    re.IGNORECASE,
)


def mask(text: str) -> str:
    """Return `text` with everything that looks like a credential replaced by `***`."""
    if not _HINTS.search(text):
        return text
    for pattern in _SECRETS:
        text = pattern.sub(r"\1" + MASK, text)
    return _TOKENS.sub(MASK, text)
