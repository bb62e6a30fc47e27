"""What a tenant's own tools recorded: readers that turn it into evidence."""

from prism.traces.flight_recorder import Call, Dump, read_dump, read_dumps
from prism.traces.hang import Hang, find_hang

__all__ = ["Call", "Dump", "Hang", "find_hang", "read_dump", "read_dumps"]
