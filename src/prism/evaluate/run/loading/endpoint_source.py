"""A served model as a checkpoint: one small file that says where to ask."""

from __future__ import annotations

import json
from dataclasses import asdict

from prism.evaluate.run.loading.source import SourceFile
from prism.evaluate.run.models.endpoint import ENDPOINT_FILE, Endpoint

SCHEME = "endpoint:"


def make_address(endpoint: Endpoint) -> str:
    """The address of an endpoint; it holds no key."""
    return SCHEME + json.dumps(asdict(endpoint), sort_keys=True)


class EndpointSource:
    """Gives the file that workers read the endpoint from."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._text = address.removeprefix(SCHEME).encode()

    def files(self) -> tuple[SourceFile, ...]:
        """The one file; its version is what results depend on."""
        key = Endpoint(**json.loads(self._text)).key
        return (SourceFile(name=ENDPOINT_FILE, num_bytes=len(self._text), version=key),)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Read a range of it."""
        buffer[:] = self._text[start : start + len(buffer)]
