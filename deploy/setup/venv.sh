#!/bin/sh
# Makes DIR a Python virtual environment of what REQUIREMENTS pins by hash.
# Does nothing when it is one.
#
#   venv.sh DIR REQUIREMENTS
#
# Proxies and certificates come from the environment.
set -eu

die() { printf 'venv.sh: %s\n' "$*" >&2; exit 1; }

[ $# = 2 ] || die "usage: venv.sh DIR REQUIREMENTS"
mkdir -p "$1"
dir=$(cd -- "$1" && pwd)

python=$(command -v python3) || die "python3 is missing; run: deploy/setup/install.sh python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "Python 3.11 or later is needed, not $("$python" --version)"

# What was installed is named by what it was installed from and by. A directory
# that was moved is made anew: a virtual environment knows where it is.
stamp=$({ printf '%s\n' "$dir"; "$python" --version; cat "$0" "$2"; } | sha256sum | cut -d' ' -f1)
[ "$(cat "$dir/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

printf 'Installing %s into %s\n' "$2" "$dir" >&2
rm -f "$dir/stamp"
"$python" -m venv --clear "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    --only-binary :all: --require-hashes -r "$2"
printf '%s\n' "$stamp" >"$dir/stamp"
