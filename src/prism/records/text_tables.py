"""Tables in text files: where the column names are, what separates values, and how absent values are written."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from prism.errors import BadFileError
from prism.records.addresses import is_ip

# Amazon's documentation of flow log records, version 2: the columns where a file does not name them.
_VPC_COLUMNS = (
    "version", "account-id", "interface-id", "srcaddr", "dstaddr", "srcport", "dstport",
    "protocol", "packets", "bytes", "start", "end", "action", "log-status",
)  # fmt: skip
# CloudWatch writes the time of its own record before each line.
_VPC_ROW = re.compile(r"^(\d{4}-\d{2}-\d{2}T\S+Z )?\d+ (\d{12}|unknown) eni-[0-9a-f]+ ")
_VALUE = re.compile(r"^(\d{4}[-/]\d{2}[-/]\d{2}[ T]\d{2}:|\d+(\.\d+)?$)")  # a date or a number
_ZEEK_ABSENT = ("-", "(empty)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """How one text file holds its table."""

    separator: str = ","
    columns: tuple[str, ...] | None = None  # None: the first line names them
    comment: str | None = None
    absent: tuple[str, ...] = ()
    padded: bool = False  # names and values carry spaces
    first_line: int = 2  # line number of the first row
    quote: str | None = '"'

    def count_columns(self, head: str) -> int:
        """How many columns the table has, given the first lines of its file."""
        return len(self.columns) if self.columns else self.count_values(head.lstrip("\r\n").partition("\n")[0])

    def count_values(self, line: str) -> int:
        """How many values a line holds."""
        if self.quote is None:
            return line.count(self.separator) + 1
        return len(next(csv.reader([line], delimiter=self.separator, quotechar=self.quote), ()))


def find_text_table(head: str, path: str) -> TextTable:
    """Find the layout from the first lines of a file; refuses output that tools print for people."""
    lines = head.splitlines()
    first = lines[0] if lines else ""
    if first.startswith(("#separator", "#fields")):
        return _zeek_table(lines, path)
    if vpc := _VPC_ROW.match(first):
        columns: tuple[str, ...] = ("logged", *_VPC_COLUMNS) if vpc[1] else _VPC_COLUMNS
        # A custom format may have further fields.
        columns += tuple(f"field-{k + 1}" for k in range(len(columns), first.count(" ") + 1))
        return TextTable(separator=" ", columns=columns, absent=("-",), first_line=1, quote=None)
    words = first.split(" ")
    if {"srcaddr", "dstaddr"} <= set(words):
        return TextTable(separator=" ", absent=("-",), quote=None)
    if first.startswith(("Date first seen", "Date flow start")):
        raise BadFileError(
            f"{path}: nfdump's table for the screen; write it with nfdump -o json, or give the nfcapd file"
        )
    if re.match(r"^(FLOW|CNTR),", first):
        raise BadFileError(
            f"{path}: sflowtool -l writes no times; write it with sflowtool -J, or give a capture of its datagrams"
        )
    if first.count("|") >= 3:
        return TextTable(separator="|", padded=True, quote=None)
    counts = {separator: first.count(separator) for separator in ("\t", ",", ";")}
    best = max(counts, key=lambda s: counts[s])
    padded = any(name != name.strip() for name in first.split(best))
    return TextTable(separator=best if counts[best] else ",", padded=padded)


def find_value(names: list[str]) -> str | None:
    """The first of a table's column names that is a value: then no line of the file names them."""
    return next((name for name in names if _VALUE.match(name) or is_ip(name.strip())), None)


def _zeek_table(lines: list[str], path: str) -> TextTable:
    separator = "\t"
    for number, line in enumerate(lines, start=1):
        if line.startswith("#separator"):
            named = line.partition(" ")[2].strip()
            separator = chr(int(named[2:], 16)) if re.fullmatch(r"\\x[0-9a-fA-F]{2}", named) else named or "\t"
            if len(separator.encode()) != 1 or separator in "\r\n":
                raise BadFileError(f"{path} line {number}: the separator of a Zeek log is one character; copy it whole")
        elif line.startswith("#fields"):
            columns = tuple(line.split(separator)[1:])
            rows = next(
                (n for n, row in enumerate(lines[number:], start=number + 1) if not row.startswith("#")), number
            )
            return TextTable(
                separator=separator, columns=columns, comment="#", absent=_ZEEK_ABSENT, first_line=rows, quote=None
            )
    raise BadFileError(f"{path}: a Zeek log without its #fields line; copy it whole")
