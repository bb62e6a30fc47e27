"""One collection of a cluster, kept up to date: a list, then a watch from its version on, repeatedly."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping

from prism.errors import PrismError
from prism.recover.supervise.launchers.kubernetes.api import Api, ApiRefused, ApiUnreachable, JsonObject

_WATCH_S = 120  # the server ends a watch after this; the next one continues there
_SILENCE_S = 135.0  # a connection that is silent for longer than a watch lasts is dead
_PAGE = 500
_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0


class VersionGone(Exception):
    """The server has forgotten the version that we would go on from (410): list again."""


class Collection:
    """The present objects, and the last state of deleted ones. Safe to read while a thread writes to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: dict[str, JsonObject] = {}
        self._gone: dict[str, JsonObject] = {}
        self.version = ""

    def replace(self, items: list[JsonObject], version: str) -> None:
        """Take a whole list: what it lacks was deleted between two watches."""
        found = {_uid(item): item for item in items}
        with self._lock:
            self._gone |= {uid: item for uid, item in self._present.items() if uid not in found}
            self._present = found
            self.version = version

    def apply(self, event: Mapping[str, object]) -> None:
        """One event of a watch."""
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, dict):
            return
        if kind == "ERROR":
            if item.get("code") == 410 or item.get("reason") in ("Expired", "Gone"):
                raise VersionGone
            raise ApiUnreachable(f"the watch ended: {str(item.get('message', ''))[:200]}")
        with self._lock:
            self.version = str(item.get("metadata", {}).get("resourceVersion", self.version))
            if kind in ("ADDED", "MODIFIED"):
                self._present[_uid(item)] = item
            elif kind == "DELETED":
                self._present.pop(_uid(item), None)
                self._gone[_uid(item)] = item

    def present(self) -> list[JsonObject]:
        """The present objects."""
        with self._lock:
            return list(self._present.values())

    def gone(self) -> list[JsonObject]:
        """The objects deleted since the first list, in their last state."""
        with self._lock:
            return list(self._gone.values())


class Watcher:
    """A thread that keeps a collection up to date until it is closed."""

    def __init__(self, api: Api, path: str, query: Mapping[str, object]) -> None:
        self.collection = Collection()
        self.trouble = ""  # the last refusal, for people; empty while all is well
        self._api, self._path, self._query = api, path, dict(query)
        self._listed, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="prism-watch", daemon=True)
        self._thread.start()

    def wait_listed(self, limit_s: float) -> bool:
        """Whether the first list has arrived by then."""
        return self._listed.wait(limit_s)

    def close(self) -> None:
        """Let the thread end at its next event from the server."""
        self._closed.set()

    def _run(self) -> None:
        pause_s, known = _PAUSE_S, False
        while not self._closed.is_set():
            try:
                if not known:
                    self._list()
                    known = True
                self._watch()
                pause_s, self.trouble = _PAUSE_S, ""
                continue
            except VersionGone:
                known = False
                continue
            except ApiRefused as refused:
                known, self.trouble = known and refused.status != 410, str(refused)
                if refused.status == 410:
                    continue
            except (OSError, PrismError) as error:  # the second: a login command that gives no token now
                self.trouble = str(error)
            self._closed.wait(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    def _list(self) -> None:
        items: list[JsonObject] = []
        query: dict[str, object] = {**self._query, "limit": _PAGE}
        while True:
            page = self._api.get(self._path, query)
            items += page.get("items") or []
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                break
            query["continue"] = meta["continue"]
        self.collection.replace(items, str(meta.get("resourceVersion", "")))
        self._listed.set()

    def _watch(self) -> None:
        more = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": _WATCH_S}
        query = {**self._query, **more, "resourceVersion": self.collection.version}
        for line in self._api.lines(self._path, query, _SILENCE_S):
            if self._closed.is_set():
                return
            try:
                event = json.loads(line)
            except ValueError:
                raise ApiUnreachable("the watch broke off within an event") from None
            self.collection.apply(event)


def _uid(item: JsonObject) -> str:
    meta = item.get("metadata") or {}
    return str(meta.get("uid") or meta.get("name", ""))
