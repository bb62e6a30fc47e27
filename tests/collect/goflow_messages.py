"""goflow2's flow messages built by Google's protobuf library from the field numbers of its schema."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELDS = {
    "type": (1, "uint32"), "sampling_rate": (3, "uint64"), "src_addr": (6, "bytes"), "dst_addr": (7, "bytes"), "bytes": (9, "uint64"),
    "packets": (10, "uint64"), "sampler_address": (11, "bytes"), "in_if": (18, "uint32"), "src_port": (21, "uint32"), "dst_port": (22, "uint32"),
    "time_received_ns": (110, "uint64"), "time_flow_start_ns": (111, "uint64"), "time_flow_end_ns": (112, "uint64"),
    "time_received": (2, "uint64"), "time_flow_start_ms": (63, "uint64"), "time_flow_end_ms": (64, "uint64"),
}  # fmt: skip
_RAW = {
    "time_received": (1, "uint64"),
    "payload": (2, "bytes"),
    "source_address": (3, "bytes"),
    "decoder": (5, "uint32"),
}


def _make(name: str, fields: dict[str, tuple[int, str]]) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="made", syntax="proto3")
    message = file.message_type.add(name=name)
    kinds = {"uint32": 13, "uint64": 4, "bytes": 12}
    for field, (number, kind) in fields.items():
        message.field.add(name=field, number=number, type=kinds[kind], label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"made.{name}"))


FlowMessage = _make("FlowMessage", _FIELDS)
RawFlow = _make("RawFlow", _RAW)


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def delimited(message: Any) -> bytes:
    data = message.SerializeToString()
    return varint(len(data)) + data
