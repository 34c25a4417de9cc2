#!/bin/bash
# The wheel in dist/ under the Python of another Debian release: `other_python.sh trixie 3.13`, as root.
# The packages are fetched here, so that the other system needs no network.
set -euo pipefail
cd "$(dirname "$0")/../.."
release=$1 version=$2 here=build/$1
pip=${PIP:-.venv/bin/python -m pip}
wheel=$(echo dist/paribus-*.whl)
archive=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | head -1 || true)

rm -rf "$here" && mkdir -p "$here/wheels"
mmdebstrap --quiet --variant=minbase --include=python3,python3-venv --dpkgopt=force-unsafe-io "$release" "$here/root" ${archive:+"$archive"}
$pip download --quiet --python-version "$version" --only-binary :all: --dest "$here/wheels" --constraint constraints.txt "$wheel[dashboard]"
mkdir "$here/root/try"
cp -r "$here/wheels" tests/acceptance constraints.txt "$wheel" "$here/root/try"
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/try/wheels PIP_CONSTRAINT= PIP_CONFIG_FILE=/dev/null HOME=/root
unshare --mount --pid --fork chroot "$here/root" /bin/bash -euc '
  mount -t proc proc /proc
  python3 -m venv /try/bare
  /try/bare/bin/pip install --quiet --constraint /try/constraints.txt /try/paribus-*.whl
  mkdir /try/tests && mv /try/acceptance /try/tests  # constraints.txt lies two folders up, as in the checkout
  python3 --version
  /try/bare/bin/paribus --version
  cd / && python3 /try/tests/acceptance/installed_wheel.py /try/bare/bin/paribus
'
rm -rf "$here"
