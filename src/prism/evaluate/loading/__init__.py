"""Checkpoints from storage into shared memory: pulled once, verified, mapped by all, cleared after the last."""

from prism.evaluate.loading.shelf import Lease, Shelf, ShelfConfig
from prism.evaluate.loading.source import Source, SourceFile, identify, open_source

__all__ = ["Lease", "Shelf", "ShelfConfig", "Source", "SourceFile", "identify", "open_source"]
