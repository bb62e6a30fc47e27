"""Credentials for the API server: from a kubeconfig's context, or the service account of this pod."""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError
from prism.records.settings import parse_mapping, read_text

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLUGIN_S = 60.0
_EARLY_S = 60.0  # a token is renewed so long before it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a request is signed with, and until when."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    until_s: float = float("inf")  # Unix time


class Credentials:
    """One cluster and one user of it. Tokens from files and plugins are fetched again before and when they expire."""

    def __init__(self, cluster: Mapping[str, Any], user: Mapping[str, Any], namespace: str, where: str) -> None:
        self.server = str(cluster.get("server", "")).rstrip("/")
        self.namespace = namespace or "default"
        self.server_name = str(cluster.get("tls-server-name", "")) or None
        self.insecure = bool(cluster.get("insecure-skip-tls-verify"))
        self._cluster, self._user, self._where = cluster, user, where
        self._ticket: Ticket | None = None
        if not self.server.startswith(("https://", "http://")):
            raise BadConfigError(f"{where}: the cluster's 'server' is {self.server!r}, expected https://HOST:PORT")

    def ticket(self) -> Ticket:
        """The ticket that is valid now."""
        if self._ticket is None or time.time() > self._ticket.until_s - _EARLY_S:
            self._ticket = self._fetch()
        return self._ticket

    def renew(self) -> None:
        """Forget a ticket that the server refused."""
        self._ticket = None

    def headers(self) -> dict[str, str]:
        """The headers that carry a token or a password."""
        token = self.ticket().token
        if token:
            return {"Authorization": f"Bearer {token}"}
        if "username" in self._user:
            pair = f"{self._user['username']}:{self._user.get('password', '')}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}

    def tls(self) -> ssl.SSLContext:
        """The TLS settings: how to verify the server, and our certificate if there is one."""
        try:
            return self._context(self._bytes(self._cluster, "certificate-authority"), self.ticket())
        except (ssl.SSLError, ValueError) as error:
            raise BadConfigError(f"{self._where}: a certificate or key is damaged ({error})") from None

    def _context(self, authority: bytes, ticket: Ticket) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if authority:
            context = ssl.create_default_context(cadata=authority.decode("ascii", "replace"))
            # Clusters sign their own authority; many leave out extensions that Python 3.13 insists on.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if ticket.certificate and ticket.key:
            with tempfile.NamedTemporaryFile() as pair:  # OpenSSL reads certificates from files only; this one is 0600
                pair.write(ticket.certificate + b"\n" + ticket.key)
                pair.flush()
                context.load_cert_chain(pair.name)
        return context

    def _fetch(self) -> Ticket:
        if isinstance(self._user.get("exec"), Mapping):
            return self._run_plugin(self._user["exec"])
        token = str(self._user.get("token", ""))
        until_s = float("inf")
        if self._user.get("tokenFile"):
            token = self._path(str(self._user["tokenFile"])).read_text().strip()
            until_s = time.time() + 2 * _EARLY_S  # the kubelet replaces the file before the token ends
        certificate, key = self._bytes(self._user, "client-certificate"), self._bytes(self._user, "client-key")
        return Ticket(token=token, certificate=certificate, key=key, until_s=until_s)

    def _run_plugin(self, plugin: Mapping[str, Any]) -> Ticket:
        """The login of a cloud: its own command prints a token, as it does for kubectl."""
        words = [str(plugin.get("command", "")), *map(str, plugin.get("args") or ())]
        version = str(plugin.get("apiVersion", "client.authentication.k8s.io/v1"))
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        more = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or ()}
        environment = {**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=_PLUGIN_S)
            status = json.loads(done.stdout)["status"]
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            raise BadConfigError(f"{self._where}: the login command '{words[0]}' gave no token ({error})") from None
        expires = status.get("expirationTimestamp")
        return Ticket(
            token=str(status.get("token", "")),
            certificate=str(status.get("clientCertificateData", "")).encode(),
            key=str(status.get("clientKeyData", "")).encode(),
            until_s=parse_time(expires) if expires else float("inf"),
        )

    def _bytes(self, section: Mapping[str, Any], name: str) -> bytes:
        """A value that is either in the file, encoded, or in a file of its own."""
        try:
            if section.get(f"{name}-data"):
                return base64.b64decode("".join(str(section[f"{name}-data"]).split()), validate=True)
            return self._path(str(section[name])).read_bytes() if section.get(name) else b""
        except (OSError, binascii.Error) as error:
            raise BadConfigError(f"{self._where}: '{name}' cannot be read ({error})") from None

    def _path(self, text: str) -> Path:
        return Path(self._where).parent / text  # relative to the kubeconfig, as for kubectl


def find_credentials(context: str = "", account: Path = _ACCOUNT) -> Credentials:
    """A kubeconfig where one is named or there; inside a pod its service account."""
    named = os.environ.get("KUBECONFIG", "")
    inside = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if not named and not context and inside and (account / "token").exists():
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        host = f"[{inside}]" if ":" in inside else inside
        cluster = {"server": f"https://{host}:{port}", "certificate-authority": str(account / "ca.crt")}
        namespace = (account / "namespace").read_text().strip() if (account / "namespace").exists() else ""
        return Credentials(cluster, {"tokenFile": str(account / "token")}, namespace, str(account / "token"))
    files = [Path(part) for part in named.split(os.pathsep) if part] or [Path.home() / ".kube" / "config"]
    path = next((file for file in files if file.exists()), None)
    if path is None:
        raise BadConfigError(f"no kubeconfig at {files[0]}; set KUBECONFIG, or run inside a pod with a service account")
    return read_kubeconfig(path, context)


def read_kubeconfig(path: Path, context: str = "") -> Credentials:
    """The cluster and user of a context."""
    document = parse_mapping(read_text(path), str(path), "'clusters', 'users' and 'contexts'")
    name = context or str(document.get("current-context", ""))
    chosen = _named(document, "contexts", "context", name, path)
    cluster = _named(document, "clusters", "cluster", str(chosen.get("cluster", "")), path)
    user = _named(document, "users", "user", str(chosen.get("user", "")), path)
    return Credentials(cluster, user, str(chosen.get("namespace", "")), str(path))


def _named(document: Mapping[str, Any], section: str, key: str, name: str, path: Path) -> Mapping[str, Any]:
    entries = [entry for entry in document.get(section) or () if isinstance(entry, Mapping)]
    for entry in entries:
        if entry.get("name") == name:
            return entry.get(key) or {}
    known = ", ".join(str(entry.get("name")) for entry in entries) or "none"
    raise BadConfigError(
        f"{path}: no entry '{name}' under '{section}' (there: {known}); see kubectl config get-contexts"
    )


def parse_time(text: str) -> float:
    """Unix seconds of an RFC 3339 time; 0 for what is none."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
