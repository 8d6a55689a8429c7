#!/usr/bin/env bash
# Debian's 64-bit ARM Python in a folder: its header files to compile for it, and all that qemu-user needs to run it.
#
#     scripts/arm64_root.sh FOLDER
#     qemu-aarch64-static -L FOLDER FOLDER/usr/bin/python3.11
#
# Packages are downloaded with this machine's own sources and keys, and only unpacked. Nothing is installed, no
# architecture is added to dpkg, and no rights are needed.
set -euo pipefail

[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
for program in apt-get dpkg-deb; do
    command -v $program >/dev/null || { echo "$0: there is no $program; this needs Debian 12" >&2; exit 1; }
done

mkdir -p "$(dirname "$1")"
folder=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
[ ! -e "$folder/.complete" ] || exit 0
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT

apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User="$(id -un)" \
        -o Dir::State::Lists="$work/lists" -o Dir::State::Status="$work/status" -o Dir::Cache="$work/cache" "$@"
}

mkdir -p "$work"/{lists,cache/archives}/partial "$work"/{packages,root}
touch "$work/status"
apt update
cd "$work/packages"
apt download python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libpython3.11-dev \
    libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libssl3 libbz2-1.0 liblzma5 libcrypt1 libuuid1
for package in *.deb; do dpkg-deb --extract "$package" "$work/root"; done
touch "$work/root/.complete"
rm -rf "$folder"
mv "$work/root" "$folder"
