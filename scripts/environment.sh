#!/usr/bin/env bash
# Finds a Python that is new enough and hands over to environment.py. OCTAVO_PYTHON names one explicitly.
set -euo pipefail
cd "$(dirname "$0")/.."
for candidate in ${OCTAVO_PYTHON:-} python3.13 python3.12 python3.11 python3 python; do
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    exec "$candidate" scripts/environment.py "$@"
  fi
done
echo "Octavo needs Python 3.11 or newer; none of python3.13, python3.12, python3.11, python3 on PATH is." >&2
echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or set OCTAVO_PYTHON=/path/to/python3." >&2
exit 1
