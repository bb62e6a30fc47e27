"""Checkpoints from storage into shared memory: pulled once, verified, mapped by all, cleared after the last."""

from __future__ import annotations

from pathlib import Path

from prism.evaluate.run.loading.shelf import Lease, Shelf, ShelfConfig
from prism.evaluate.run.loading.source import Source, SourceFile, identify

__all__ = ["Lease", "Shelf", "ShelfConfig", "Source", "SourceFile", "identify", "open_source"]


def open_source(address: str) -> Source:
    """The source an address means: `endpoint:{...}`, `s3://bucket/prefix`, `http(s)://host/folder`, else a folder."""
    if address.startswith("endpoint:"):
        from prism.evaluate.run.loading.endpoint_source import EndpointSource

        return EndpointSource(address)
    if address.startswith("s3://"):
        from prism.evaluate.run.loading.s3_source import S3Source

        return S3Source(address)
    if address.startswith(("http://", "https://")):
        from prism.evaluate.run.loading.http_source import HttpSource

        return HttpSource(address)
    from prism.evaluate.run.loading.folder_source import FolderSource

    return FolderSource(Path(address.removeprefix("file://")))
