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
        # a flag that ends in such a word, unless a number or a name in brackets follows (--pad-token "<pad>")
        r"(--?[\w-]{0,40}(?:token|password|passwd|secret|pwd|[-_]?pass|api[-_]?key|access[-_]?key|[-_]key)(?:\s+|=)['\"]?)"
        r"(?!-|['\"]?<|\d{1,6}\b|\*\*\*)[^\s'\"]{6,}",
        r"(\bapi[ _-]?keys?\b(?: (?:is|was|of|for|set to)\b)?['\"]?\s*[:=]?\s*['\"]?)[A-Za-z0-9_-]{16,}\b",
        # environment variables in a shell or a dump: NAME=value, environ['NAME'] = 'value', 'NAME': 'value'
        r"(\b[A-Z0-9_]{0,60}(?:_KEY|_TOKEN|_SECRET|_PASSWORD|_PASSWD|_PASS|_PWD|_CREDENTIALS?|_PAT|_SAS)\b['\"]?\]?\s*[=:]\s*['\"]?)"
        r"(?!None\b|null\b|True\b|False\b|\d{1,6}\b|\*\*\*|\s)[^\s'\",;]{4,}",
        r"(\b(?:AccountKey|SharedAccessKey|SharedAccessSignature|PGPASSWORD|MYSQL_PWD|sig)=)[^\s;&'\"]{4,}",
        r"(\b(?:curl|wget|http)\b[^\n]{0,200}? (?:-u|--user|--proxy-user)[ =]?['\"]?[^\s:'\"]{1,80}:)[^\s'\"]{2,}",
        r"(\bsshpass (?:-[a-oq-z] ?\S* )?-p ?['\"]?)[^\s'\"]{2,}",
        r"(\b(?:docker|podman|helm|nerdctl|skopeo|az|oc) login\b[^\n]{0,200}? (?:-p|--password)[ "
        r"=]?['\"]?)[^\s'\"]{2,}",
        r"(\bmachine \S{1,200} login \S{1,200} password )\S+",
        r"(hooks\.slack\.com/services/)[\w/]{10,}",
        r"(\b(?:Set-)?Cookie: ?)[^\n]{8,}",
    )
]
# The body of a key is on separate lines, after the line that names it.
_KEY_BODY = re.compile(
    r"(?<![\w+/=])(?=[\w+/]{0,55}[0-9+/])(?=[\w+/]{0,55}[A-Z])(?=[\w+/]{0,55}[a-z])[A-Za-z0-9+/]{56,}={0,2}(?![\w+/=])"
)
_BODY_FRAME = re.compile(r"^[\s>|'\"\[\]:,.\d\\n-]*$")
# Tokens recognised by their form: cloud, hub, forge, chat and model-service keys, and JSON web tokens.
_TOKENS = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|dckr_pat_[\w-]{20,}|wandb_v\d_\w{20,}"
    r"|sk-[A-Za-z0-9_-]{16,}|nvapi-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,})"
)
_HINTS = re.compile(
    r"://|auth|bearer|token|key|secret|sig|credential|pass|AKIA|ASIA|hf_|gh[pousr]_|github_pat|glpat|sk-|nvapi|xox|AIza|eyJ"
    r"|_pat|_sas|_pwd|npm_|pypi-|cookie|curl|wget|login|slack|http",
    re.IGNORECASE,
)


def mask(text: str) -> str:
    """Return `text` with everything that looks like a credential replaced by `***`."""
    text = _mask_bodies(text)
    if not _HINTS.search(text):
        return text
    for pattern in _SECRETS:
        text = pattern.sub(r"\1" + MASK, text)
    return _TOKENS.sub(MASK, text)


def _mask_bodies(text: str) -> str:
    """Mask lines of nothing but base64: they are bodies of keys or certificates."""
    if len(text) < 56 or not _KEY_BODY.search(text):
        return text
    return "\n".join(
        _KEY_BODY.sub(MASK, line) if _BODY_FRAME.match(_KEY_BODY.sub("", line)) else line for line in text.split("\n")
    )
