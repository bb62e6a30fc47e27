#!/bin/sh
# Install packages into a virtual environment: install.sh PYTHON PIP-ARGUMENTS...
# uv resolves and unpacks several times faster than pip; pip is used where uv is missing or cannot reach the packages.
set -eu
python=$1
shift
if command -v uv >/dev/null 2>&1 && uv pip install --quiet --python "$python" "$@" 2>/dev/null; then
    exit 0
fi
exec "$python" -m pip install --quiet --disable-pip-version-check "$@"
