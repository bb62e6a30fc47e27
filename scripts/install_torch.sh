#!/bin/sh
# Install torch's CPU build: install_torch.sh PYTHON torch==VERSION
# PyTorch's index of CPU builds is added where it can be reached, since the plain package on Linux brings gigabytes of
# CUDA libraries that a machine without a GPU does not need.
set -eu
python=$1
torch=$2
cpu_index=https://download.pytorch.org/whl/cpu
if "$python" -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '${torch#torch==}')" 2>/dev/null; then
    exit 0
fi
reach="import urllib.request as r; r.urlopen('$cpu_index/', timeout=4)"
if "$python" -c "$reach" 2>/dev/null; then
    exec sh "$(dirname "$0")/install.sh" "$python" --extra-index-url "$cpu_index" "$torch"
fi
exec sh "$(dirname "$0")/install.sh" "$python" "$torch"
