#!/bin/sh
# Installs schemathesis, which "make api-test" runs, as pinned by
# requirements.txt. Does nothing when it is there.
#
#   setup.sh DIR
#
# DIR becomes a virtual environment. Proxies and certificates come from the
# environment.
set -eu

die() { printf 'setup.sh: %s\n' "$*" >&2; exit 1; }

[ $# = 1 ] || die "usage: setup.sh DIR"
mkdir -p "$1"
dir=$(cd -- "$1" && pwd)
cd -- "$(dirname -- "$0")"

python=$(command -v python3) || die "python3 is missing; run: deploy/setup/install.sh api"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "Python 3.11 or later is needed, not $("$python" --version)"

# A directory that was moved is made anew: a virtual environment knows where it is.
stamp=$({ printf '%s\n' "$dir"; "$python" --version; cat setup.sh requirements.txt; } | sha256sum | cut -d' ' -f1)
[ "$(cat "$dir/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

printf 'Installing schemathesis into %s\n' "$dir" >&2
rm -f "$dir/stamp"
"$python" -m venv --clear "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    --only-binary :all: --require-hashes -r requirements.txt
printf '%s\n' "$stamp" >"$dir/stamp"
