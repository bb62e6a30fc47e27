"""A cluster in memory: the API's verbs over HTTP, and a test's hands as its controllers and kubelets."""

from __future__ import annotations

import copy
import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

INDEX = "batch.kubernetes.io/job-completion-index"
_WATCH_S = 5.0


class MemoryCluster:
    """Objects by collection and name. Pods are made from the workload's template and end as the test says."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []  # version, collection, kind of event, object
        self.logs: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str]] = []
        self.version = 100
        self.changed = threading.Condition()
        handler = type("Handler", (_Handler,), {"cluster": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def write_kubeconfig(self, path: Path) -> None:
        cluster = {"server": f"http://127.0.0.1:{self._server.server_address[1]}"}
        document = {
            "current-context": "m",
            "clusters": [{"name": "m", "cluster": cluster}],
            "users": [{"name": "m", "user": {}}],
            "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m", "namespace": "default"}}],
        }
        path.write_text(yaml.safe_dump(document))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, collection: str, item: dict[str, Any], kind: str = "MODIFIED") -> dict[str, Any]:
        with self.changed:
            self.version += 1
            item = copy.deepcopy(item)
            item["metadata"]["resourceVersion"] = str(self.version)
            self.objects.setdefault(collection, {})
            if kind == "DELETED":
                self.objects[collection].pop(item["metadata"]["name"], None)
            else:
                self.objects[collection][item["metadata"]["name"]] = item
            self.history.append((self.version, collection, kind, item))
            self.changed.notify_all()
        return item

    # -- the test's hands

    def workload(self) -> dict[str, Any]:
        (found,) = self.objects["/apis/batch/v1/namespaces/default/jobs"].values()
        return found

    def pods(self) -> list[dict[str, Any]]:
        return list(self.objects.get(PODS, {}).values())

    def place(self, *nodes: str) -> list[dict[str, Any]]:
        """What controller, scheduler and kubelets do: one running pod per index, on these nodes."""
        job, made = self.workload(), []
        for index, node in enumerate(nodes):
            template = copy.deepcopy(job["spec"]["template"])
            meta = {**template["metadata"], "name": f"{job['metadata']['name']}-{index}-{uuid.uuid4().hex[:5]}"}
            meta |= {"uid": str(uuid.uuid4()), "annotations": {INDEX: str(index)}, "owner": job["metadata"]["uid"]}
            status = {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": {"running": {}}}]}
            spec = {**template["spec"], "nodeName": node}
            made.append(self.put(PODS, {"metadata": meta, "spec": spec, "status": status}, "ADDED"))
        return made

    def end(self, pod: dict[str, Any], code: int, **status: Any) -> None:
        """Let a pod's container end."""
        item = copy.deepcopy(self.objects[PODS][pod["metadata"]["name"]])
        ended = {"exitCode": code, "finishedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        phase = "Succeeded" if code == 0 else "Failed"
        item["status"] = {
            "phase": phase,
            "containerStatuses": [{"name": "trainer", "state": {"terminated": ended}}],
            **status,
        }
        self.put(PODS, item)

    def delete(self, collection: str, name: str) -> bool:
        """With all it owns, at once."""
        item = self.objects.get(collection, {}).get(name)
        if item is None:
            return False
        for pod in self.pods():
            if pod["metadata"].get("owner") == item["metadata"]["uid"]:
                self.put(PODS, pod, "DELETED")
        self.put(collection, item, "DELETED")
        return True


PODS = "/api/v1/namespaces/default/pods"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: MemoryCluster

    def do_GET(self) -> None:
        path, query = self._parse()
        if path.endswith("/log"):
            lines = self.cluster.logs.get(path.split("/")[-2], [])
            self._stream(f"2026-03-01T10:00:{n:02d}.1Z {line}\n".encode() for n, line in enumerate(lines))
        elif "watch" in query:
            self._watch(path, query)
        elif (item := self._item(path)) is not None:
            self._say(200, item)
        elif path.rsplit("/", 1)[-1] in ("pods", "jobs", "nodes", "configmaps"):
            items = [i for i in self.cluster.objects.get(path, {}).values() if _matches(i, query)]
            self._say(200, {"metadata": {"resourceVersion": str(self.cluster.version)}, "items": items})
        else:
            self._say(404, {"message": "not found"})

    def do_POST(self) -> None:
        path, _ = self._parse()
        item = self._body()
        if item["metadata"]["name"] in self.cluster.objects.get(path, {}):
            self._say(409, {"message": "already exists"})
            return
        item["metadata"]["uid"] = str(uuid.uuid4())
        self._say(201, self.cluster.put(path, item, "ADDED"))

    def do_PATCH(self) -> None:
        path, _ = self._parse()
        change = self._body()
        item = self._item(path.removesuffix("/status"))
        if item is None:
            self._say(404, {"message": "not found"})
            return
        merged = {**item, **{k: {**item.get(k, {}), **v} for k, v in change.items()}}
        self._say(200, self.cluster.put(path.removesuffix("/status").rsplit("/", 1)[0], merged))

    def do_DELETE(self) -> None:
        path, _ = self._parse()
        self._body()
        found = self.cluster.delete(*path.rsplit("/", 1))
        self._say(200 if found else 404, {"message": "" if found else "not found"})

    def _parse(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        self.cluster.asked.append((self.command, url.path))
        return url.path, {name: values[0] for name, values in parse_qs(url.query).items()}

    def _body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return found

    def _item(self, path: str) -> dict[str, Any] | None:
        collection, name = path.rsplit("/", 1)
        return self.cluster.objects.get(collection, {}).get(name)

    def _say(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _watch(self, path: str, query: dict[str, str]) -> None:
        def events():
            since, deadline = int(query["resourceVersion"]), time.monotonic() + _WATCH_S
            while time.monotonic() < deadline:
                with self.cluster.changed:
                    new = [e for e in self.cluster.history if e[0] > since and e[1] == path and _matches(e[3], query)]
                    if not new:
                        self.cluster.changed.wait(0.2)
                for version, _, kind, item in new:
                    since = version
                    yield json.dumps({"type": kind, "object": item}).encode() + b"\n"

        self._stream(events())

    def _stream(self, chunks) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for chunk in chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def _matches(item: dict[str, Any], query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels") or {}
    wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
    name = query.get("fieldSelector", "").partition("metadata.name=")[2]
    return all(labels.get(k) == v for k, v in wanted.items()) and (not name or item["metadata"]["name"] == name)
