#!/usr/bin/env bash
# Tests that use a CUDA device. A machine with a GPU often has its own torch: without a .venv the python3 on PATH is
# used as it is, and the packages are found through PYTHONPATH.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${OCTAVO_PYTHON:-}
if [ -z "$python" ]; then
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
export PYTHONPATH="kernels:server_image:operator${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "test-gpu: $python has no torch that sees a CUDA device; set OCTAVO_PYTHON to one that has" >&2
  exit 1
fi
folders=()
for folder in tests/kernels tests/engine tests/gpu; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
# The plugins of the full environment may be missing here, so their options are not made an error.
exec "$python" -m pytest -o addopts= --import-mode=importlib -ra -p no:cacheprovider "${@:-${folders[@]}}"
