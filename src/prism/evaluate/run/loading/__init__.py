"""Checkpoints from storage into shared memory: pulled once, verified, mapped by all, cleared after the last."""

from prism.evaluate.run.loading.opening import open_source
from prism.evaluate.run.loading.shelf import Lease, Shelf, ShelfConfig
from prism.evaluate.run.loading.source import Source, SourceFile, identify

__all__ = ["Lease", "Shelf", "ShelfConfig", "Source", "SourceFile", "identify", "open_source"]
