# mypy: disable-error-code="override,assignment,call-arg"
"""What c10d and frameworks ask a process group about itself, answered alike under every torch from 2.11 on."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist


class NamedGroup(dist.ProcessGroup):
    """A group with a name, a backend's name and a timeout; there is no communicator behind it."""

    supports_splitting = False
    supports_coalescing = True
    supports_time_estimate = False

    def __init__(self, position: int, size: int, name: str, backend: str, timeout: timedelta) -> None:
        super().__init__(position, size)
        self._position = position
        self._size = size
        self._name = name
        self._desc = "undefined"
        self._backend_name = backend
        self._timeout = timeout
        self._calls = 0

    def rank(self) -> int:
        """Own position."""
        return self._position

    def size(self) -> int:
        """Number of members."""
        return self._size

    def name(self) -> str:
        """The backend's name."""
        return self._backend_name

    _get_backend_name = name

    def getBackendName(self) -> str:
        """The name C++ asks for; under a name it knows, DDP's logger would look for that backend's C++ object."""
        return "prism"

    @property
    def group_name(self) -> str:
        """c10d's name of the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """What the group is for."""
        return self._desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    def getGroupName(self) -> str:
        """The name C++ asks for."""
        return self._name

    def getGroupDesc(self) -> str:
        """The name C++ asks for."""
        return self._desc

    def _get_backend(self, device: torch.device) -> NamedGroup:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda")] if torch.cuda.is_available() else [torch.device("cpu")]

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        """Numbers start at zero on every rank."""

    def set_timeout(self, timeout: timedelta) -> None:
        """How long a rehearsed hang lasts."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Buffers come from the ordinary allocator."""
        return False

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Nothing to connect."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Nothing to split."""

    def abort(self) -> None:
        """Nothing is pending."""

    def shutdown(self) -> None:
        """Nothing is pending."""

    def _wait_for_pending_works(self) -> None:
        """Nothing is pending."""

    def _has_hooks(self) -> bool:
        return False
