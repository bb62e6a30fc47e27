"""Tokens: who may read, write or scrape, and until when. Files hold digests, so a copied file gives no access."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from prism.errors import BadFileError

SCOPES = frozenset({"read", "write", "metrics"})
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token, by its SHA-256; without scopes given it reads and writes."""

    name: str
    digest: str
    scopes: frozenset[str] = field(default=SCOPES)
    expires_s: float | None = None  # since 1970; None: never

    @property
    def session(self) -> str:
        """The cookie of a browser that logged in with it: it proves the token and does not contain it."""
        return hmac.new(self.digest.encode(), b"prism serve session", "sha256").hexdigest()

    def has_ended(self, now_s: float) -> bool:
        """Whether the token has expired."""
        return self.expires_s is not None and now_s >= self.expires_s


def digest_of(token: str) -> str:
    """The digest under which a token is stored."""
    return sha256(token.encode(errors="surrogatepass")).hexdigest()


def read_tokens(path: Path) -> tuple[Token, ...]:
    """A YAML or JSON list of {name, sha256, scopes, expires}."""
    try:
        rows = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadFileError(f"{path}: cannot be read as a list of tokens ({error}); check the file") from None
    if not isinstance(rows, list):
        raise BadFileError(f"{path}: expected a list of tokens, each with name and sha256")
    return tuple(_read_token(row, f"{path} token {number}") for number, row in enumerate(rows, start=1))


def _read_token(row: Any, where: str) -> Token:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise BadFileError(f"{where}: a name is missing; write name, sha256, scopes and expires")
    digest = str(row.get("sha256", ""))
    if not _DIGEST.fullmatch(digest):
        raise BadFileError(f"{where}: sha256 is not 64 hexadecimal digits; make it with: printf %s TOKEN | sha256sum")
    scopes = frozenset(map(str, row.get("scopes") or ["read"]))
    if not scopes <= SCOPES:
        raise BadFileError(f"{where}: unknown scope {min(scopes - SCOPES)}; choose of {', '.join(sorted(SCOPES))}")
    return Token(name=row["name"], digest=digest, scopes=scopes, expires_s=_moment(row.get("expires"), where))


def _moment(value: Any, where: str) -> float | None:
    if value is None:
        return None
    try:
        moment = value if isinstance(value, (datetime, date)) else datetime.fromisoformat(str(value))
    except ValueError:
        raise BadFileError(f"{where}: expires is {value!r}, expected a date as 2026-12-31") from None
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
