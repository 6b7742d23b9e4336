#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the first Python that can import a module, or nothing: find_python.sh matplotlib. It asks $PYTHON first, then every python3 on
# the path, then Debian's own: the first python3 is often another than the one that the system's packages belong to.
set -euo pipefail
candidates=(${PYTHON:+"$PYTHON"})
mapfile -t -O ${#candidates[@]} candidates < <(type -ap python3 || true)
for candidate in "${candidates[@]}" /usr/bin/python3; do
  "$candidate" -c "import $1" 2>/dev/null || continue
  case $candidate in
    /*) echo "$candidate" ;;
    */*) echo "$PWD/$candidate" ;;
    *) type -P "$candidate" ;;
  esac
  exit
done
