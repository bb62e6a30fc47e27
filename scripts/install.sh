#!/bin/sh
# Install packages into a virtual environment: install.sh PYTHON PIP-ARGUMENTS...
# uv resolves and unpacks several times faster than pip; where there is none, the environment gets one. pip is used
# where uv cannot be had or cannot reach the packages.
set -eu
python=$1
shift
bin=$(dirname "$python")
uv=$(command -v uv || echo "$bin/uv")
test -x "$uv" || "$python" -m pip install --quiet --disable-pip-version-check uv 2>/dev/null || true
# uv does not read pip's settings.
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"
if test -x "$uv" && "$uv" pip install --quiet --python "$python" "$@" 2>/dev/null; then
    exit 0
fi
exec "$python" -m pip install --quiet --disable-pip-version-check "$@"
