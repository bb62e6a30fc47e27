"""The vectorised encoder writes the same bytes as protobuf's own."""

from __future__ import annotations

import numpy as np
from google.protobuf.internal import encoder
from hypothesis import given
from hypothesis import strategies as st

from prism.records.varints import (
    encode_fixed64,
    encode_integer,
    encode_message,
    encode_text,
    encode_varint,
    keep_where,
    pack_delimited,
    pack_rows,
)

INT64 = st.one_of(
    st.integers(0, 300),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([2**k + d for k in range(7, 63, 7) for d in (-1, 0)]),
)


def official_varint(value: int) -> bytes:
    return encoder._VarintBytes(value % 2**64)


@given(st.lists(INT64, min_size=1))
def test_varints_are_those_of_protobuf(values: list[int]) -> None:
    packed = pack_rows(encode_varint(np.array(values, dtype=np.int64)), len(values))
    assert packed == b"".join(official_varint(v) for v in values)


@given(st.integers(0, 2**63 - 1))
def test_a_constant_is_encoded_as_a_column_of_it_would_be(value: int) -> None:
    assert pack_rows(encode_varint(value), 1) == official_varint(value)


@given(st.lists(st.tuples(INT64, INT64, st.booleans(), st.binary(max_size=300)), min_size=1))
def test_messages_know_their_length_with_left_out_fields_and_tails(
    rows: list[tuple[int, int, bool, bytes]],
) -> None:
    number, other, kept, tail = zip(*rows, strict=True)
    tail_bytes = np.array([len(t) for t in tail], dtype=np.int64)
    body = keep_where(np.array(kept), encode_integer(4, np.array(number, dtype=np.int64)))
    body += encode_fixed64(300, np.array(other, dtype=np.int64)) + encode_text(5, tail_bytes)
    packed = pack_rows(encode_message(60, body, tail_bytes), len(rows), b"".join(tail), tail_bytes)

    expected = b""
    for n, o, k, t in rows:
        inner = b"\x20" + official_varint(n) if k else b""
        inner += official_varint(300 << 3 | 1) + o.to_bytes(8, "little", signed=True)
        inner += b"\x2a" + official_varint(len(t)) + t
        expected += official_varint(60 << 3 | 2) + official_varint(len(inner)) + inner
    assert packed == expected


def test_no_rows_are_no_bytes() -> None:
    none = np.array([], dtype=np.int64)
    assert pack_rows(encode_message(1, encode_integer(1, none) + encode_text(2, none), none), 0, b"", none) == b""


@given(st.binary(max_size=300))
def test_content_already_encoded_is_wrapped_as_it_is(content: bytes) -> None:
    assert pack_delimited(12, content) == b"\x62" + official_varint(len(content)) + content
