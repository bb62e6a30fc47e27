"""How errors of other libraries are described and distinguished."""

from __future__ import annotations

import errno


def first_line(error: BaseException) -> str:
    """What an error says in one line; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_disk_full(error: OSError) -> bool:
    """Whether there is no room to write, or writing is not allowed any more."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
