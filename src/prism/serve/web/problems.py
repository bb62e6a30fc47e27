"""One shape for every error that the service answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

_CODES = {
    400: "bad_request",
    401: "token_needed",
    403: "forbidden",
    404: "not_found",
    405: "read_only",
    413: "too_large",
    414: "too_long",
    422: "bad_parameter",
    429: "too_many_tries",
    500: "internal",
    503: "busy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    """What went wrong: a word for programs, a line for people."""

    code: str
    message: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The body of every answer that is not a success."""

    error: ErrorDetail


# Answers that any route may give, beside its own.
EVERYWHERE: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorBody, "description": "A token is needed"},
    422: {"model": ErrorBody, "description": "A parameter is wrong"},
    429: {"model": ErrorBody, "description": "Too many tries from this address"},
    503: {"model": ErrorBody, "description": "Not ready in time; ask for less"},
}


def answer_error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error as a response."""
    code = _CODES.get(status, "error")
    body = ErrorBody(error=ErrorDetail(code=code, message=message, status=status))
    return Response(to_json(body), status_code=status, media_type="application/json", headers=headers)
