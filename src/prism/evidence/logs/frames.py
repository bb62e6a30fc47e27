"""What the frames of a traceback show: which kind of file failed, whether a peer is lost, where a cut traceback was."""

from __future__ import annotations

import re

_LOADS_MODEL = re.compile(
    r", in \w*(?:load_(?:checkpoint|model|state|weights?|pretrained|ckpt)|from_pretrained)", re.IGNORECASE
)
_LOADS_DATA = re.compile(r"[/\\]data[/\\][^/\\]+\.py|dataset\w*\.py|[/\\]datasets[/\\]|, in \w*dataset", re.IGNORECASE)
# If a file cannot be fetched or decoded, the frames show whether it belongs to a model or to a dataset.
_UNREADABLE = frozenset(
    {"JSONDecodeError", "UnicodeDecodeError", "UnpicklingError", "EOFError", "BadZipFile", "ReadError"}
    | {"OfflineModeIsEnabled", "LocalEntryNotFoundError"}
)
# Data loader workers pass tensors through sockets, so a dead worker appears as a broken connection.
_READS_WORKERS = re.compile(r"torch[/\\]utils[/\\]data[/\\]_utils|torch[/\\]multiprocessing[/\\]reductions")
# An exception raised inside a collective means that a peer is lost or late, not that this rank is faulty.
_IN_COLLECTIVE = re.compile(
    r"torch[/\\]distributed[/\\](?:distributed_c10d|c10d_logger|_functional_collectives|algorithms[/\\]join)\.py"
)
_VICTIMS = frozenset({"RuntimeError", "DistBackendError", "DistNetworkError", "DistError", "TimeoutError", "EOFError"})
# If the log was cut before the line of the exception, the package of the innermost frames shows what failed.
_FRAME_REASONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r"[/\\](?:botocore|boto3|s3fs|s3transfer|aiobotocore|minio|oss2|gcsfs)[/\\]", "S3StorageError"),
        (r"[/\\]wandb[/\\]|[/\\](?:urllib3|requests|httpx|aiohttp|huggingface_hub)[/\\]", "ConnectionError"),
        (r"[/\\]torch[/\\]distributed[/\\](?:rendezvous|elastic[/\\]rendezvous)", "ConnectionError"),
        (r"[/\\]datasets[/\\](?:load|builder|arrow_\w+|packaged_modules)", "DatasetLoadingError"),
        (
            r"[/\\]safetensors[/\\]|[/\\]torch[/\\]serialization\.py|, in (?:load_checkpoint|load_state_dict"
            r"|from_pretrained)\b",
            "ModelLoadingError",
        ),
        (r"[/\\]argparse\.py", "ArgumentError"),
        (r"[/\\]subprocess\.py|torch[/\\]utils[/\\]cpp_extension\.py", "CalledProcessError"),
        (r"[/\\]importlib[/\\]|<frozen importlib", "ImportError"),
    )
)
_HUNG_UP = frozenset({"BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError"})
_TELLS_OF_PEERS = re.compile(
    r"peer|remote|connection|socket|time[sd]?[- ]?out|abort|closed|reset by|broken pipe|\brecv|\bsend|unreachable",
    re.IGNORECASE,
)


def is_victim(exception: str | None, text: str, frames: list[str]) -> bool:
    """Whether an exception was raised inside a collective and therefore concerns a peer."""
    in_collective = any(_IN_COLLECTIVE.search(frame) for frame in frames[-2:])
    return in_collective and exception in _VICTIMS and _TELLS_OF_PEERS.search(text) is not None


def place_reason(exception: str | None, frames: list[str], *, bare: bool) -> str | None:
    """The reason from the frames, if the message gives none; `bare` is an assertion without a message."""
    if bare and frames and _LOADS_MODEL.search(frames[-1]):
        return "ModelLoadingError"
    if exception in _HUNG_UP and any(_READS_WORKERS.search(frame) for frame in frames[-6:]):
        return "DataloaderKilled"
    if exception not in _UNREADABLE:
        return None
    for frame in reversed(frames):
        if _LOADS_MODEL.search(frame):
            return "ModelLoadingError"
        if _LOADS_DATA.search(frame):
            return "DatasetLoadingError"
    return None


def reason_of_frames(frames: list[str]) -> str | None:
    """What failed, by the package of the innermost frames."""
    for frame in reversed(frames[-8:]):
        for pattern, reason in _FRAME_REASONS:
            if pattern.search(frame):
                return reason
    return None
