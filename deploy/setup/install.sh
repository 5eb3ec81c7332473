#!/bin/sh
# Installs what building, testing and running the sandbox needs on a Debian or
# Ubuntu host, and says so first. Does nothing when all is there, and never
# starts a service: sandboxd needs no libvirtd.
#
#   install.sh [--check] [base] [lint] [generate] [python]
#
# Needs root, or sudo. Without either it prints the command to run and fails.
set -eu

say() { printf '%s\n' "$*" >&2; }
die() { say "install.sh: $*"; exit 1; }

# base: build, images and machines. Each word says what it is for:
#   qemu-system-x86 qemu-utils            the machines and their disks
#   libvirt-daemon-driver-qemu            libvirt's QEMU driver, run inside sandboxd
#   libvirt-dev pkg-config gcc libc6-dev  sandboxd is built with cgo
#   mmdebstrap debian-archive-keyring e2fsprogs busybox-static  images
#   uidmap                                images are built without root too
#   python3-pip                           fetches the pinned Node.js build for the images
#   ca-certificates                       module proxy and mirrors
packages_base="qemu-system-x86 qemu-utils libvirt-daemon-driver-qemu
    libvirt-dev pkg-config gcc libc6-dev
    mmdebstrap debian-archive-keyring e2fsprogs busybox-static uidmap
    python3-pip ca-certificates"
packages_generate="protobuf-compiler"
packages_lint="shellcheck $packages_generate"
packages_python="python3-venv ca-certificates"

# The hypervisor runs as the first of these when sandboxd is root. The second is
# Debian's name in libvirt's QEMU driver, which looks it up before it reads that
# another one is configured, and fails without; only the daemon's package makes it.
user=sandbox-qemu
users="$user libvirt-qemu"

check_only=
groups=
for arg in "$@"; do
    case $arg in
        --check) check_only=yes ;;
        base | lint | generate | python) groups="$groups $arg" ;;
        *) die "unknown argument $arg: want --check, base, lint, generate or python" ;;
    esac
done
[ -n "$groups" ] || groups=base

for tool in dpkg-query apt-get; do
    command -v "$tool" >/dev/null 2>&1 ||
        die "this host has no $tool: only Debian and Ubuntu are supported. Elsewhere install the like of: $packages_base"
done

# missing prints which of its arguments are not installed.
missing() {
    # dpkg-query fails when it does not know a package; its list is what counts.
    have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p') || true
    for package in "$@"; do
        case "
$have
" in
            *"
$package
"*) ;;
            *) printf '%s\n' "$package" ;;
        esac
    done
}

wanted=
for group in $groups; do
    case $group in
        base) wanted="$wanted $packages_base" ;;
        lint) wanted="$wanted $packages_lint" ;;
        generate) wanted="$wanted $packages_generate" ;;
        python) wanted="$wanted $packages_python" ;;
    esac
done
# shellcheck disable=SC2086 # a list of words
absent=$(missing $wanted | sort -u | tr '\n' ' ')
absent=${absent% }

# Without root the hypervisor runs as whoever starts sandboxd: then the user is
# worth no question for a password, and is added only along with packages.
need_users=
case " $groups " in
    *" base "*)
        if [ "$(id -u)" = 0 ] || [ -n "$absent" ]; then
            for name in $users; do
                getent passwd "$name" >/dev/null || need_users="$need_users $name"
            done
        fi
        ;;
esac

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

can_be_root() {
    [ "$(id -u)" = 0 ] && return 0
    command -v sudo >/dev/null 2>&1 || return 1
    sudo -n true 2>/dev/null && return 0
    # sudo may ask for a password where somebody can answer.
    [ -t 0 ] && [ -t 2 ]
}

if [ -z "$absent" ] && [ -z "$need_users" ]; then
    exit 0
fi
self=$(cd -- "$(dirname -- "$0")" && pwd)/$(basename -- "$0")
if [ -n "$check_only" ]; then
    [ -z "$absent" ] || say "missing packages: $absent"
    [ -z "$need_users" ] || say "missing system users:$need_users"
    exit 1
fi
if ! can_be_root; then
    say "These packages are missing: $absent"
    say "To install them, run as root (or with sudo):"
    say
    say "    $self$groups"
    say
    exit 1
fi

if [ -n "$absent" ]; then
    say "Installing: $absent"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 update >&2 ||
        say "install.sh: apt-get update failed, going on with the package lists at hand"
    # shellcheck disable=SC2086 # a list of words
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
        install --no-install-recommends $absent >&2 ||
        die "cannot install $absent: see the messages of apt-get above (on Ubuntu, the component universe must be enabled)"
fi

for name in $need_users; do
    say "Adding the system user $name"
    as_root useradd --system --user-group --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin "$name" || die "cannot add the system user $name"
done
# /dev/kvm belongs to this group where there is one.
if getent passwd "$user" >/dev/null && getent group kvm >/dev/null && ! id -nG "$user" 2>/dev/null | tr ' ' '\n' | grep -qx kvm; then
    as_root usermod -a -G kvm "$user" || die "cannot add $user to the group kvm"
fi
