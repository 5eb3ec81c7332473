#!/bin/bash
# Writes the generated code of all contracts under api, or checks that it is
# what its sources say. The plugins are the tools of go.mod.
#
#   generate.sh [--check]
set -euo pipefail
cd -- "$(dirname -- "$0")/../.."

check=
if [ "${1-}" = --check ]; then check=yes; shift; fi
[ $# = 0 ] || { echo "usage: generate.sh [--check]" >&2; exit 2; }

command -v protoc >/dev/null || {
    echo "protoc is missing; to install it: deploy/setup/install.sh generate" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${GO:-go}" build -buildvcs=false -o "$work/" \
    google.golang.org/protobuf/cmd/protoc-gen-go \
    google.golang.org/grpc/cmd/protoc-gen-go-grpc \
    github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen

# generate OUT: the code of every contract, at its place in the tree, under OUT.
generate() {
    local out=$1 file dir
    # Named from the top of the tree: protobuf registers files by that name,
    # and it must be unique in a program.
    find api -name '*.proto' | sort | xargs -r protoc -I . \
        --plugin="$work/protoc-gen-go" --plugin="$work/protoc-gen-go-grpc" \
        --go_out="$out" --go_opt=paths=source_relative \
        --go-grpc_out="$out" --go-grpc_opt=paths=source_relative
    while IFS= read -r file; do
        dir=$(dirname "$file")
        mkdir -p "$out/$dir"
        # The configuration names its output without a directory.
        (cd "$out/$dir" && "$work/oapi-codegen" -config "$OLDPWD/$file" "$OLDPWD/$dir/openapi.yaml")
    done < <(find api -name codegen.yaml | sort)
}

if [ -z "$check" ]; then
    generate .
    exit
fi

mkdir "$work/fresh"
generate "$work/fresh"
stale=0
while IFS= read -r file; do
    # The version of protoc stands in the header and is the distribution's.
    if ! diff -u -I '^// .*protoc  *v[0-9]' "$file" "$work/fresh/$file" >"$work/diff"; then
        head -n 40 "$work/diff"
        stale=1
    fi
done < <(cd "$work/fresh" && find api -type f | sort)
if [ "$stale" = 1 ]; then
    echo "the generated code is stale: run make generate" >&2
    exit 1
fi
