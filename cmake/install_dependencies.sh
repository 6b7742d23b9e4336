#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the named Debian packages that are missing; with none named, those that building and testing bila needs.
# Where there is no apt-get it installs nothing: CMake then looks for the libraries itself and downloads what it lacks.
set -eu

[ $# -gt 0 ] || set -- g++ cmake ninja-build python3 libeigen3-dev catch2 libbenchmark-dev

command -v apt-get >/dev/null 2>&1 || {
  echo "No apt-get here. Needed: a C++20 compiler, CMake 3.25, Ninja, Python 3. Eigen, Catch2 and Google Benchmark are downloaded if missing." >&2
  exit 0
}

missing=
for package in "$@"; do
  command -v "${package%-build}" >/dev/null 2>&1 || dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

root=
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null 2>&1 || {
    echo "Missing packages. As root: apt-get install$missing" >&2
    exit 1
  }
  root=sudo
fi
echo "Installing$missing"
$root apt-get update -qq || echo "The package lists could not be refreshed; trying with those at hand." >&2
# shellcheck disable=SC2086 # a list of words on purpose
$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
