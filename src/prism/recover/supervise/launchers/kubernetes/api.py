"""The REST API of a cluster: a few verbs on JSON, streams of lines, and errors that say who is to act.

On urllib3 alone: what we need is small (some twenty requests of five verbs). Measured beside the clients at hand: the
official one (37.0) takes 126 MB and 0.5 s of CPU time to import, and its login plugins bring no client certificates;
lightkube (1.0) refuses plugins of client.authentication.k8s.io/v1 and does not renew a token before it ends. Network
trouble is an OSError, which the supervisor retries; a refusal is for the user to fix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from prism.errors import BadConfigError, MissingExtraError
from prism.recover.supervise.launchers.kubernetes.credentials import Credentials

try:
    import urllib3
except ModuleNotFoundError as error:  # pragma: no cover
    raise MissingExtraError("--launcher kubernetes", "kubernetes") from error

_CONNECT_S, _READ_S = 10.0, 30.0
_BUSY = {429, 500, 502, 503, 504}
_MAX_ERROR_BYTES = 1 << 16
JsonObject = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to the server."""

    method: str
    path: str
    query: Mapping[str, object] | None = None
    body: JsonObject | None = None
    kind: str = "application/json"
    read_s: float = _READ_S


class ApiRefused(BadConfigError):
    """The server refused a request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ApiUnreachable(OSError):
    """No usable answer; the request can be tried again."""


class Api:
    """Requests to one cluster; may be used from several threads."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._pool = self._connect()

    def get(self, path: str, query: Mapping[str, object] | None = None) -> JsonObject:
        """One object or list."""
        return self._json(Request(method="GET", path=path, query=query))

    def find(self, path: str) -> JsonObject | None:
        """One object; None where there is none."""
        try:
            return self.get(path)
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, body: JsonObject, query: Mapping[str, object] | None = None) -> JsonObject:
        """A new object."""
        return self._json(Request(method="POST", path=path, query=query, body=body))

    def patch(self, path: str, body: JsonObject, kind: str = MERGE, query: Mapping[str, object] | None = None) -> None:
        """Change some fields."""
        self._json(Request(method="PATCH", path=path, query=query, body=body, kind=kind))

    def delete(self, path: str, grace_s: int | None = None, propagation: str = "") -> None:
        """Delete an object; one that is gone already is no error."""
        options: JsonObject = {"kind": "DeleteOptions", "apiVersion": "v1"}
        options |= {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        options |= {"propagationPolicy": propagation} if propagation else {}
        try:
            self._json(Request(method="DELETE", path=path, body=options))
        except ApiRefused as error:
            if error.status != 404:
                raise

    def lines(self, path: str, query: Mapping[str, object], silence_s: float) -> Iterator[bytes]:
        """The lines of a stream as they come; ends when the server does, or after so much silence with an error."""
        response = self._send(Request(method="GET", path=path, query=query, read_s=silence_s))
        rest = b""
        try:
            for chunk in response.stream(1 << 16):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
            if rest:
                yield rest
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnreachable(f"the stream of {path} broke off ({error})") from None
        finally:
            response.close()

    def _json(self, request: Request) -> JsonObject:
        response = self._send(request)
        try:
            found = json.loads(response.read())
        except (ValueError, urllib3.exceptions.HTTPError) as error:
            raise ApiUnreachable(f"{request.method} {request.path}: no JSON in the answer ({error})") from None
        finally:
            response.release_conn()
        return found if isinstance(found, dict) else {}

    def _send(self, request: Request) -> urllib3.BaseHTTPResponse:
        """One request; repeated with a renewed token if the old one was refused."""
        for again in (False, True):
            response = self._try(request)
            if response.status == 401 and not again:
                response.close()
                self.credentials.renew()
                self._pool = self._connect()
                continue
            if response.status < 300:
                return response
            raise _error(request, response)
        raise AssertionError("two tries end in an answer or an error")

    def _try(self, request: Request) -> urllib3.BaseHTTPResponse:
        url = f"{self.credentials.server}{request.path}{'?' + urlencode(request.query) if request.query else ''}"
        headers = {"Accept": "application/json, */*", "User-Agent": "prism-supervise", **self.credentials.headers()}
        data = None
        if request.body is not None:
            headers["Content-Type"], data = request.kind, json.dumps(request.body).encode()
        timeout = urllib3.Timeout(connect=_CONNECT_S, read=request.read_s)
        try:
            return self._pool.request(
                request.method, url, body=data, headers=headers, timeout=timeout, preload_content=False, redirect=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnreachable(f"{self.credentials.server} does not answer ({error})") from None

    def _connect(self) -> urllib3.PoolManager:
        more: dict[str, Any] = {}
        if self.credentials.insecure:  # chosen by the user in the kubeconfig, so a warning each time is noise
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if self.credentials.server.startswith("https"):
            more["ssl_context"] = self.credentials.tls()
            if self.credentials.server_name:
                more |= {
                    "server_hostname": self.credentials.server_name,
                    "assert_hostname": self.credentials.server_name,
                }
        return urllib3.PoolManager(retries=False, maxsize=16, **more)


def _error(request: Request, response: urllib3.BaseHTTPResponse) -> Exception:
    """The server's answer as an error that says who must act."""
    try:
        text = response.read(_MAX_ERROR_BYTES)
    except (urllib3.exceptions.HTTPError, OSError):
        text = b""
    finally:
        response.close()
    try:
        said = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        said = text.decode(errors="replace")
    said = " ".join(said.split())[:400]
    if response.status in _BUSY:
        return ApiUnreachable(f"{request.method} {request.path}: {response.status} {said}")
    advice = {401: "; log in again", 403: "; give the account the rights of examples/recover/kubernetes/rbac.yaml"}
    return ApiRefused(
        response.status,
        f"Kubernetes refused {request.method} {request.path} ({response.status}: {said})"
        f"{advice.get(response.status, '')}",
    )
