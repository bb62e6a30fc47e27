"""A checkpoint behind a web server, read in ranges over connections that are kept and made anew when they break."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.folder import INDEX_NAME
from prism.evaluate.run.checkpoints.kinds import MANIFEST_NAME, read_manifest
from prism.evaluate.run.connections import Connections
from prism.evaluate.run.loading.source import SIDE_FILES, SINGLE_NAME, SourceFile, add_sums, read_small

LISTING_NAME = "prism-files.json"  # what a node that passes a checkpoint on answers with
_TIMEOUT_S = 60.0
_ATTEMPTS = 5


class HttpSource:
    """Files below a web address; a listing, a manifest, an index, or the usual names say which there are."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._url = urllib.parse.urlsplit(self.address)
        self._connections = Connections(self._url, _TIMEOUT_S)

    def files(self) -> tuple[SourceFile, ...]:
        """All files that the server is known to have."""
        if self.address.endswith(".safetensors"):
            return (self._need(""),)
        if (listing := self._probe(LISTING_NAME)) is not None:
            return tuple(SourceFile(**entry) for entry in json.loads(read_small(self, listing)))
        found = {name: file for name in SIDE_FILES if (file := self._probe(name)) is not None}
        manifest = None
        if (file := self._probe(MANIFEST_NAME)) is not None:
            manifest = read_manifest(read_small(self, file), f"{self.address}/{MANIFEST_NAME}")
        if manifest is not None:
            found |= {name: self._need(name) for name in (MANIFEST_NAME, *manifest.files)}
            add_sums(found, manifest)
        for name in self._weight_names():
            found.setdefault(name, self._need(name))
        if manifest is None and not any(name.endswith(".safetensors") for name in found):
            raise BadFileError(f"{self.address}: neither {SINGLE_NAME} nor {INDEX_NAME} is there; check the address")
        return tuple(found[name] for name in sorted(found))

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Read a range; what a broken connection leaves out is asked for again."""
        for attempt in range(1, _ATTEMPTS + 1):
            done = 0
            try:
                done = self._read_once(name, start, buffer)
            except (http.client.HTTPException, OSError) as error:
                if attempt == _ATTEMPTS:
                    raise OSError(f"{self.address}/{name}: {error or type(error).__name__}") from None
                time.sleep(0.1 * 2**attempt)
            start, buffer = start + done, buffer[done:]
            if not buffer:
                return
        raise OSError(f"{self.address}/{name}: ends {len(buffer)} bytes early; is the checkpoint being written?")

    def _read_once(self, name: str, start: int, buffer: memoryview) -> int:
        """Read as much as comes on one connection; the number of bytes that came."""
        with self._connections.take() as line:
            response = self._ask(line, "GET", name, {"Range": f"bytes={start}-{start + len(buffer) - 1}"})
            if response.status not in (200, 206):
                response.read()
                raise OSError(f"the server answers {response.status} {response.reason}")
            if response.status == 200:
                _skip(response, start)  # a server that does not know ranges sends the file from its start
            done = 0
            while done < len(buffer) and (count := response.readinto(buffer[done:])):
                done += count
            if response.status == 200 or done < len(buffer):
                line.close()  # what is left of the answer would be taken for the next one
            return done

    def _weight_names(self) -> list[str]:
        if (index := self._probe(INDEX_NAME)) is None:
            return [SINGLE_NAME] if self._probe(SINGLE_NAME) is not None else []
        try:
            return [INDEX_NAME, *sorted(set(json.loads(read_small(self, index))["weight_map"].values()))]
        except (ValueError, KeyError, AttributeError):
            raise BadFileError(f"{self.address}/{INDEX_NAME}: not a safetensors index; upload it again") from None

    def _need(self, name: str) -> SourceFile:
        if (file := self._probe(name)) is None:
            raise BadFileError(f"{self.address}/{name}: the server does not have it; is the upload complete?")
        return file

    def _probe(self, name: str) -> SourceFile | None:
        try:
            with self._connections.take() as line:
                response = self._ask(line, "HEAD", name, {})
                response.read()
        except (http.client.HTTPException, OSError) as error:
            raise BadFileError(f"{self.address}: cannot be reached ({error}); check the address") from None
        if response.status != 200:
            return None
        version = response.getheader("ETag") or response.getheader("Last-Modified") or ""
        shown = name or self.address.rsplit("/", 1)[-1]
        return SourceFile(name=shown, num_bytes=int(response.getheader("Content-Length") or 0), version=version)

    def _ask(
        self, line: http.client.HTTPConnection, method: str, name: str, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        plain = self.address.endswith(".safetensors")
        path = self._url.path if plain else f"{self._url.path}/{urllib.parse.quote(name)}"
        line.request(method, f"{path}?{self._url.query}" if self._url.query else path, headers=headers)
        return line.getresponse()


def _skip(response: http.client.HTTPResponse, count: int) -> None:
    while count > 0 and (chunk := response.read(min(count, 1 << 20))):
        count -= len(chunk)
