#!/usr/bin/env bash
# Resolves the pinned requirement sets. They carry hashes and no address of an index, so that they hold behind any mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(command -v uv || true)
if [ -z "$uv" ] || ! "$uv" --version >/dev/null 2>&1; then uv=.venv/bin/uv; fi

compile() {
  local output=$1
  shift
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
    --no-emit-package octavo-kernels --no-emit-package octavo-operator --override requirements/overrides.txt "$@" -o "$output"
  echo "lock: $output"
}

compile requirements/dev.txt requirements/dev.in \
  operator/pyproject.toml server_image/pyproject.toml localcluster/pyproject.toml kernels/pyproject.toml cli/pyproject.toml
# The images take the same versions as the tests ran with.
compile requirements/operator.txt -c requirements/dev.txt operator/pyproject.toml
compile requirements/server.txt -c requirements/dev.txt --extra triton server_image/pyproject.toml kernels/pyproject.toml
