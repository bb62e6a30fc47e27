"""Where a text file's columns are named, and bytes that are protobuf or not."""

from __future__ import annotations

import pytest

from prism.errors import BadFileError
from prism.records.delimited import is_delimited_protobuf, is_flow_message, read_varint
from prism.records.text_tables import find_text_table


@pytest.mark.parametrize(
    ("head", "separator"),
    [("a,b,c\n1,2,3", ","), ("a\tb\tc", "\t"), ("a;b;c,d", ";"), ("a", ","), ("", ",")],
)
def test_the_commonest_mark_of_the_first_line_separates(head: str, separator: str) -> None:
    table = find_text_table(head, "f")
    assert (table.separator, table.columns, table.first_line, table.padded) == (separator, None, 2, False)


def test_tables_of_rwcut_carry_spaces() -> None:
    table = find_text_table("   sIP|   dIP|  bytes|", "f")
    assert table.separator == "|" and table.padded and table.quote is None
    assert find_text_table("a|b|c", "f").separator != "|"


def test_flow_logs_of_amazon_name_their_columns_or_do_not() -> None:
    bare = find_text_table("2 123456789012 eni-0a1b 10.0.0.1 10.0.0.2 1 2 6 10 840 1 2 ACCEPT OK", "f")
    assert bare.columns is not None and bare.columns[3:5] == ("srcaddr", "dstaddr") and len(bare.columns) == 14
    assert (bare.separator, bare.first_line, bare.absent) == (" ", 1, ("-",))
    logged = find_text_table(
        "2026-11-18T20:25:26.000Z 2 123456789012 eni-0a1b 10.0.0.1 10.0.0.2 1 2 6 1 8 1 2 ACCEPT OK", "f"
    )
    assert logged.columns == ("logged", *bare.columns)  # CloudWatch's export writes its own time first
    named = find_text_table("version srcaddr dstaddr bytes", "f")
    assert (named.separator, named.columns, named.absent) == (" ", None, ("-",))


def test_zeek_logs_name_their_separator_and_fields() -> None:
    head = "#separator \\x09\n#set_separator\t,\n#fields\tts\tid.orig_h\n#types\ttime\taddr\n1.5\t10.0.0.1\n"
    table = find_text_table(head, "f")
    assert (table.separator, table.columns, table.first_line) == ("\t", ("ts", "id.orig_h"), 5)
    assert table.comment == "#" and table.absent == ("-", "(empty)")
    assert find_text_table("#separator ;\n#fields;a;b\n1;2", "f").columns == ("a", "b")
    assert find_text_table("#fields\ta\tb", "f").columns == ("a", "b")


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("#separator ab\n#fields", "f line 1: the separator of a Zeek log is one character"),
        ("#separator \\x09\n#path\tconn", "without its #fields line"),
        ("Date first seen          Duration Proto", "nfdump's table for the screen"),
        ("Date flow start          Duration", "nfdump's table for the screen"),
        ("FLOW,10.0.0.1,2", "sflowtool -l writes no times"),
        ("CNTR,10.0.0.1,2", "sflowtool -l writes no times"),
    ],
)
def test_what_was_meant_for_a_screen_is_refused_with_what_to_write(head: str, line: str) -> None:
    with pytest.raises(BadFileError) as caught:
        find_text_table(head, "f")
    assert line in str(caught.value)


ADDRESS = b"\x32\x04\x0a\x00\x00\x01"  # field 6, four bytes
MESSAGE = ADDRESS + b"\x3a\x04\x0a\x00\x00\x02" + b"\x48\x96\x01"  # field 7, and field 9 with the number 150


def test_numbers_of_protobuf_end_where_their_last_byte_is() -> None:
    assert read_varint(b"\x96\x01\x05", 0) == (150, 2) and read_varint(b"\x96\x01\x05", 2) == (5, 3)
    assert read_varint(b"\x7f", 0) == (127, 1) and read_varint(b"\x80\x01", 0) == (128, 2)
    assert read_varint(b"", 0)[0] == -1 and read_varint(b"\x80", 0)[0] == -1
    assert read_varint(b"\x80" * 10 + b"\x01", 0)[0] == -1
    assert read_varint(b"\xff" * 9 + b"\x01", 0) == (2**64 - 1, 10)


@pytest.mark.parametrize(
    ("message", "is_one"),
    [
        (MESSAGE, True),
        (MESSAGE + b"\x51" + bytes(8), True),  # eight bytes
        (MESSAGE + b"\x55" + bytes(4), True),  # four bytes
        (MESSAGE + b"\x51" + bytes(7), False),
        (ADDRESS, False),  # one address only
        (ADDRESS + b"\x3a\x05\x0a\x00\x00\x02\x00", False),  # five bytes are no address
        (MESSAGE + b"\x4b", False),  # a kind that is no more
        (MESSAGE + b"\x00\x01", False),  # field 0
        (MESSAGE + b"\x48", False),  # a number without its bytes
        (MESSAGE + b"\x52\x80", False),  # a length without its bytes
    ],
)
def test_a_flow_message_parses_to_its_end_and_has_two_addresses(message: bytes, is_one: bool) -> None:
    assert is_flow_message(message) is is_one


def test_a_file_of_messages_is_believed_after_three_of_them() -> None:
    framed = bytes([len(MESSAGE)]) + MESSAGE
    assert is_delimited_protobuf(framed) and is_delimited_protobuf(framed * 2)
    assert is_delimited_protobuf(framed * 3 + b"anything")
    assert not is_delimited_protobuf(framed * 2 + b"\x10abc")
    assert not is_delimited_protobuf(framed[:-1]) and not is_delimited_protobuf(b"")
    assert not is_delimited_protobuf(b"\x06" + ADDRESS)
