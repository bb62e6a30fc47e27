"""A checkpoint in an S3 bucket, or in any store with an S3 API (set AWS_ENDPOINT_URL)."""

from __future__ import annotations

from typing import Any

from prism.errors import BadFileError, MissingExtraError
from prism.evaluate.run.checkpoints.kinds import MANIFEST_NAME, read_manifest
from prism.evaluate.run.failures import first_line
from prism.evaluate.run.loading.source import SourceFile, add_sums, read_small

_READ_BYTES = 1 << 20


class S3Source:
    """Objects right below a prefix."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._bucket, _, self._prefix = self.address.removeprefix("s3://").partition("/")
        self._client = _connect()

    def files(self) -> tuple[SourceFile, ...]:
        """All objects below the prefix that a further slash does not set apart."""
        start = f"{self._prefix}/" if self._prefix else ""
        found: dict[str, SourceFile] = {}
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=start, Delimiter="/"
            )
            for entry in (entry for page in pages for entry in page.get("Contents", ())):
                name = entry["Key"].removeprefix(start)
                if name:
                    found[name] = SourceFile(name=name, num_bytes=entry["Size"], version=entry["ETag"])
        except Exception as error:  # botocore makes its error classes on the fly
            raise BadFileError(f"{self.address}: {first_line(error)}; check bucket, prefix and credentials") from None
        if not found:
            raise BadFileError(f"{self.address}: no objects below this prefix; check the address")
        if MANIFEST_NAME in found:
            text = read_small(self, found[MANIFEST_NAME])
            add_sums(found, read_manifest(text, f"{self.address}/{MANIFEST_NAME}"))
        return tuple(found[name] for name in sorted(found))

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Read a range of one object; the client retries by itself."""
        if not buffer:
            return
        key = f"{self._prefix}/{name}" if self._prefix else name
        try:
            answer = self._client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes={start}-{start + len(buffer) - 1}"
            )
            for chunk in answer["Body"].iter_chunks(_READ_BYTES):
                buffer[: len(chunk)] = chunk
                buffer = buffer[len(chunk) :]
        except Exception as error:
            raise OSError(f"{self.address}/{name}: {first_line(error)}") from None
        if buffer:
            raise OSError(f"{self.address}/{name}: ends {len(buffer)} bytes early; is the checkpoint being written?")


def _connect() -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise MissingExtraError("a checkpoint at s3://", "s3") from None
    return boto3.client("s3", config=Config(retries={"max_attempts": 5, "mode": "standard"}, max_pool_connections=16))
