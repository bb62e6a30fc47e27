"""Files of nfcapd, read through nfdump itself: its format has changed between versions, its JSON has not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from prism.collect.tables.files import FlowOptions, FlowsRead, ReadReport, make_flows
from prism.errors import BadFileError, InputError
from prism.records.flows import FLOWS
from prism.records.json_tables import read_json

_TIMEOUT_S = 3600
_NO_FLOWS = b"No matching flows"  # what nfdump prints instead of JSON
_EMPTY_NOTE = "some nfcapd files hold no flows: nfcapd received none in their time"


def read_nfcapd(path: Path, options: FlowOptions) -> FlowsRead:
    """FLOWS of one nfcapd file, which may hold none; needs the command `nfdump`."""
    text = _run_nfdump(path)
    if text == _NO_FLOWS:
        return FlowsRead(flows=FLOWS.empty(), report=ReadReport(files=1, rows=0, notes=(_EMPTY_NOTE,)))
    table = read_json(path, text)
    try:
        return make_flows(table, str(path), options)
    except InputError as error:
        raise BadFileError(f"{path}: {error}") from None


def _run_nfdump(path: Path) -> bytes:
    """What nfdump prints of a file as JSON."""
    command = shutil.which("nfdump")
    if command is None:
        raise BadFileError(
            f"{path}: a binary file of nfcapd, read by the command nfdump, which is not installed here; "
            "install nfdump, or write the file as nfdump -o json"
        )
    # Without a zone of its own nfdump writes the local time, and does not say so.
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [command, "-q", "-r", str(path), "-o", "json"],
            capture_output=True,
            timeout=_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadFileError(f"{path}: nfdump did not read it ({error}); try nfdump -r {path}") from None
    text, complaint = done.stdout.strip(), done.stderr.strip()
    # For a damaged file too nfdump prints that it has no flows and exits with 0; only stderr shows the difference.
    if done.returncode or not text or (text == _NO_FLOWS and complaint):
        said = (complaint or text).decode(errors="replace").splitlines()
        raise BadFileError(f"{path}: nfdump did not read it ({said[0] if said else 'no flows'}); copy it again")
    return text
