#!/usr/bin/env bash
# packages.sh FOLDER: installs what runs containers here, from Debian, and puts Docker Compose into FOLDER. Needs root.
# Debian 12 has no Docker Compose of version 2: the one file comes from the package of Debian 13, which runs here as well.
set -euo pipefail
FOLDER=$(readlink -f "$1")
PACKAGES="mmdebstrap buildah podman runc netavark aardvark-dns iptables iproute2 util-linux"
# shellcheck disable=SC2086
FOUND=$(dpkg-query -W -f '${db:Status-Status}\n' $PACKAGES 2> /dev/null | grep -cx installed || true)
# shellcheck disable=SC2086
test "$FOUND" = "$(wc -w <<< "$PACKAGES")" || { apt-get update -q; apt-get install -y -q --no-install-recommends $PACKAGES; } > "$FOLDER/apt.log"
test -x "$FOLDER/docker-compose" && exit
mkdir -p "$FOLDER/apt/lists/partial"
MIRROR=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR trixie main" > "$FOLDER/apt/sources.list"
APT="apt-get -q -o Dir::Etc::sourcelist=$FOLDER/apt/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$FOLDER/apt/lists"
cd "$FOLDER/apt"
$APT update >> "$FOLDER/apt.log"
$APT download docker-compose >> "$FOLDER/apt.log"
dpkg-deb --fsys-tarfile docker-compose_*.deb | tar -x -O ./usr/libexec/docker/cli-plugins/docker-compose > ../docker-compose
chmod +x ../docker-compose
rm -r "$FOLDER/apt"
