"""What the folder has ever held, in an embedded database: rebuilt from the files, queried by job, host and time."""

from prism.serve.history.entries import Entry, EntryKind
from prism.serve.history.index import HistoryConfig, HistoryIndex
from prism.serve.history.queries import Asked, Page, StoredEntry

__all__ = ["Asked", "Entry", "EntryKind", "HistoryConfig", "HistoryIndex", "Page", "StoredEntry"]
