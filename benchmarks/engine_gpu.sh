#!/usr/bin/env bash
# All that the engine's rows on a GPU need, in one call: start with an empty kernel cache (compiled by all cores, and one
# by one), start with a filled one, every workload with the profiler's table, the host's cost there, and the text of a
# real model where its file is given.
#
#   benchmarks/engine_gpu.sh RESULTS_FOLDER [MODEL_FILE | PIECE_1 PIECE_2]
#
# Needs torch, triton and numpy beside the two packages; no HTTP packages, so the figure through HTTP is not among them.
set -u
cd "$(dirname "$0")/.."
results=${1:?usage: engine_gpu.sh RESULTS_FOLDER [MODEL_FILE | PIECE_1 PIECE_2]}
shift
mkdir -p "$results"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH=kernels:server_image TRITON_CACHE_DIR=$work/parallel

run() {
  echo "== $*"
  "$@" 2>&1 | tee -a "$results/engine_gpu.log"
}

OCTAVO_COMPILE_PROCESSES=1 TRITON_CACHE_DIR=$work/serial run python3 benchmarks/engine.py --start --cache serial --results "$results"
run python3 benchmarks/engine.py --start --cache cold --results "$results"
run python3 benchmarks/engine.py --cache warm --profile --results "$results"
run python3 benchmarks/engine_host.py --rounds 3 --results "$results"
if [ $# -gt 0 ]; then
  cat "$@" > "$work/model.gguf"
  run python3 benchmarks/engine_text.py "$work/model.gguf"
  run python3 benchmarks/engine_text.py "$work/model.gguf" --dtype BFloat16 --tie 0.3
fi
