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
# uv does not read pip's settings: packages come from where pip would take them.
index=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}
test -z "$index" || export UV_DEFAULT_INDEX="$index"
test -z "${PIP_FIND_LINKS:-}" || export UV_FIND_LINKS="$PIP_FIND_LINKS"
if test -x "$uv" && "$uv" pip install --quiet --python "$python" "$@" 2>/dev/null; then
    exit 0
fi
exec "$python" -m pip install --quiet --disable-pip-version-check "$@"
