#!/usr/bin/env bash
# Brings a bare Debian machine to where `make` works: compiler and libraries from apt, Python
# packages and torch in .venv. Run again it does nothing, without network, unless a list changed.
# With DYNATRAIN_TORCH_DIR set, that torch is used and none is downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache mold python3 python3-venv
          libcli11-dev nlohmann-json3-dev libfmt-dev libspdlog-dev libgtest-dev libgmock-dev
          libbenchmark-dev librapidcheck-dev libcpp-httplib-dev libxxhash-dev fortunes)
torch_dir=${DYNATRAIN_TORCH_DIR:-}
requirements=requirements.txt
[ -n "$torch_dir" ] && requirements=requirements-tools.txt

stamp=.venv/setup-stamp
key=$(cat requirements.txt requirements-tools.txt scripts/setup.sh - <<<"$torch_dir" | sha256sum)
if [ -x .venv/bin/python ] && [ -f "$stamp" ] && [ "$(<"$stamp")" = "$key" ]; then
  exit 0
fi

fail() {
  echo "setup: $*" >&2
  exit 1
}

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ]; then
    fail "packages are missing; run: sudo apt-get install ${missing[*]}"
  fi
  echo "setup: installing ${missing[*]}"
  local install=(apt-get install -q -y --no-install-recommends "${missing[@]}")
  export DEBIAN_FRONTEND=noninteractive
  "${install[@]}" >/dev/null 2>&1 && return
  apt-get update -q >/dev/null && "${install[@]}" >/dev/null || fail "failed: ${install[*]}"
}

# Prints a Python the wheels exist for: 3.11 if there is one, else what Debian calls python3.
find_python() {
  local candidate
  for candidate in python3.11 /usr/bin/python3 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or newer with venv; install python3-venv"
}

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
  install_packages
else
  echo "setup: no apt here; needed are the equivalents of: ${packages[*]}" >&2
fi
if [ -n "$torch_dir" ] && [ ! -e "$torch_dir/lib/libtorch.so" ]; then
  fail "DYNATRAIN_TORCH_DIR=$torch_dir holds no lib/libtorch.so; name a libtorch or torch package"
fi
if [ ! -x .venv/bin/python ]; then
  python=$(find_python)
  "$python" -m venv --clear .venv
fi
echo "setup: installing $requirements into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$requirements" ||
  fail "pip could not install $requirements"
echo "$key" > "$stamp"
