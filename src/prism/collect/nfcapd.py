"""Files of nfcapd, read through nfdump itself: its format has changed between versions, its JSON has not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from prism.errors import BadFileError, InputError
from prism.records.flow_files import FlowOptions, FlowsRead, make_flows
from prism.records.json_tables import read_json

_TIMEOUT_S = 3600


def read_nfcapd(path: Path, options: FlowOptions) -> FlowsRead:
    """FLOWS of one nfcapd file; needs the command `nfdump`."""
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
    if done.returncode or not done.stdout.strip():
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise BadFileError(f"{path}: nfdump did not read it ({said[-1] if said else 'no flows'}); copy it again")
    table = read_json(path, done.stdout)
    try:
        return make_flows(table, str(path), options)
    except InputError as error:
        raise BadFileError(f"{path}: {error}") from None
