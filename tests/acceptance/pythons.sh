#!/bin/bash
# Every Python that is found, of those named: `pythons.sh wheel python3.12 python3.13` installs the wheel in dist/ into
# bare environments and tries it; `pythons.sh units ...` makes whole environments and runs the tests without training.
# A Python that is neither on the path nor one of pyenv's is skipped, and named at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=$1 missing=() failed=()
shift

wheel() {
  local place=build/bare-$1
  rm -rf "$place" &&
    "$2" -m venv "$place" &&
    "$place/bin/python" -m pip install --quiet --constraint constraints.txt dist/*.whl &&
    "$place/bin/python" tests/acceptance/installed_wheel.py "$place/bin/paribus"
}

units() {
  local place=.$1-venv
  if [ ! "$place/.installed" -nt constraints.txt ] || [ ! "$place/.installed" -nt pyproject.toml ]; then
    # shellcheck disable=SC2086 # words of pip: an index, and torch
    "$2" -m venv "$place" &&
      "$place/bin/python" -m pip install --quiet --upgrade "pip>=25.1" &&
      "$place/bin/python" -m pip install --quiet ${TORCH:?} &&
      "$place/bin/python" -m pip install --quiet --constraint constraints.txt \
        --editable ".[train,mlflow,figures,dashboard,data,math,notebook,s3,search,tensorboard]" --group dev &&
      touch "$place/.installed" || return 1
  fi
  OMP_NUM_THREADS=1 "$place/bin/python" -m pytest -n "${JOBS:-2}" --dist loadfile -q -m "not slow" -p no:cacheprovider tests/unit
}

found() {
  for each in "$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/${1#python}".*/bin/python; do
    if "$each" -c 'import ensurepip, venv' 2> /dev/null; then
      echo "$each"
      return
    fi
  done
}

for name; do
  python=$(found "$name")
  if [ -n "$python" ]; then
    echo "== $what with $("$python" --version)"
    "$what" "$name" "$python" || failed+=("$name")  # `set -e` does not hold in what `||` follows: hence the `&&` above
  else
    missing+=("$name")
  fi
done
[ ${#missing[@]} = 0 ] || echo "== skipped, not found: ${missing[*]}"
[ ${#failed[@]} = 0 ] || { echo "== failed: ${failed[*]}"; exit 1; }
