"""Training that survives its cluster: checkpoint/ inside the trainer, supervise/ outside it, isolate/ between runs."""

from prism.recover.catalog import Catalog, Entry, Retention
from prism.recover.manifest import Health, Manifest
from prism.recover.progress import Progress, RunOrders

__all__ = ["Catalog", "Entry", "Health", "Manifest", "Progress", "Retention", "RunOrders"]
