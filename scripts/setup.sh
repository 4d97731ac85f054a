# Sourced by scripts/run, scripts/test and scripts/bench, never run by itself: finds or makes what they need and says what it does.
# Plain sh. The including script has set ROOT to the project's folder and cd'ed there.

say() { printf '%s\n' "outlive: $*" >&2; }
die() { say "$*"; exit 1; }

# may_install: whether Debian packages may be installed here, and with which prefix ($APT_SUDO)
may_install() {
    [ "${OUTLIVE_INSTALL_PACKAGES:-1}" = 1 ] || return 1
    command -v apt-get >/dev/null 2>&1 || return 1
    APT_SUDO=
    [ "$(id -u)" = 0 ] && return 0
    command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null && APT_SUDO="sudo -n" && return 0
    return 1
}

# install_packages NAME…: Debian packages, without recommends; services that they bring are not started
install_packages() {
    may_install || { say "missing Debian packages: $* (install them, or run as root)"; return 1; }
    say "installing Debian packages: $*"
    policy=/usr/sbin/policy-rc.d
    made_policy=
    if [ ! -e "$policy" ] && [ -z "$APT_SUDO" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && made_policy=1
    fi
    status=0
    log=$(mktemp) || return 1
    {
        $APT_SUDO apt-get -qq update &&
            $APT_SUDO env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@"
    } >"$log" 2>&1 || status=$?
    [ -z "$made_policy" ] || rm -f "$policy"
    [ "$status" = 0 ] || { tail -n 5 "$log" >&2; say "could not install: $*"; }
    rm -f "$log"
    return "$status"
}

# lab_packages: Debian packages of the laboratory (real libvirt, QEMU, BMCs, namespaces) that are missing
lab_packages() {
    packages=
    while read -r program package; do
        case $program in
        /*) [ -e "$program" ] || packages="$packages $package" ;;
        *) command -v "$program" >/dev/null 2>&1 || packages="$packages $package" ;;
        esac
    done <<END
libvirtd libvirt-daemon-system
virsh libvirt-clients
qemu-system-x86_64 qemu-system-x86
qemu-img qemu-utils
/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so libvirt-daemon-driver-qemu
/usr/include/libvirt/libvirt.h libvirt-dev
pkg-config pkg-config
gcc gcc
/usr/lib/x86_64-linux-gnu/libc.a libc6-dev
ip iproute2
nft nftables
busybox busybox-static
cpio cpio
ipmi_sim openipmi
ipmitool ipmitool
/usr/sbin/sshd openssh-server
ovs-vswitchd openvswitch-switch
ovn-northd ovn-central
ovn-controller ovn-host
ethtool ethtool
ping iputils-ping
dhclient isc-dhcp-client
dnsmasq dnsmasq-base
pdns_server pdns-server
/usr/lib/x86_64-linux-gnu/pdns/libgsqlite3backend.so pdns-backend-sqlite3
dig bind9-dnsutils
/usr/lib/frr/bgpd frr
java default-jre-headless
/usr/share/java/zookeeper.jar zookeeper
kmod kmod
ssh openssh-client
END
    [ -n "$packages" ] || return 0
    # shellcheck disable=SC2086
    install_packages $packages || return 1
    rm -f .venv/.outlive-environment  # the binding of libvirt is built with what came now
}

# find_python: sets PYTHON to an interpreter of version 3.11 or later
find_python() {
    for PYTHON in "${OUTLIVE_PYTHON:-python3}" python3.11 python3.12 python3.13; do
        command -v "$PYTHON" >/dev/null 2>&1 &&
            "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return 0
    done
    install_packages python3 python3-venv && PYTHON=python3 && return 0
    die "Python 3.11 or later is needed (Debian: apt-get install python3 python3-venv)"
}

# environment NAME…: makes .venv hold exactly what requirements/NAME.txt lock, and Outlive itself from this folder
environment() {
    find_python
    wanted="$(for name in "$@"; do cat "requirements/$name.txt"; done | cat - pyproject.toml | sha256sum | cut -c1-16) $*"
    stamp=.venv/.outlive-environment
    [ -x .venv/bin/outlive ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return 0
    # what tests installed serves running as well: never take it away again
    if [ "$*" = "build runtime" ] && [ -x .venv/bin/outlive ]; then
        larger="$(cat requirements/dev.txt pyproject.toml | sha256sum | cut -c1-16) dev"
        [ "$(cat "$stamp" 2>/dev/null)" = "$larger" ] && return 0
    fi
    say "making the virtual environment in .venv ($*)"
    if [ ! -x .venv/bin/python ]; then
        "$PYTHON" -m venv .venv >/dev/null 2>&1 || {
            rm -rf .venv
            install_packages python3-venv || die "cannot make a virtual environment (Debian: apt-get install python3-venv)"
            "$PYTHON" -m venv .venv || die "cannot make a virtual environment in $ROOT/.venv"
        }
    fi
    if command -v uv >/dev/null 2>&1; then
        UV=uv
    else
        [ -x .venv/bin/uv ] || { say "installing uv"; .venv/bin/python -m pip -q install --require-hashes -r requirements/uv.txt || die "cannot install uv (is the package index reachable?)"; }
        UV=.venv/bin/uv
    fi
    files=
    for name in "$@"; do files="$files -r requirements/$name.txt"; done
    # shellcheck disable=SC2086
    "$UV" pip install -q --python .venv/bin/python --require-hashes $files || die "cannot install the locked dependencies"
    "$UV" pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e . || die "cannot install Outlive into .venv"
    # hosts with libvirt need its binding, which is built against the library that is there; others need none
    if pkg-config --exists libvirt 2>/dev/null && command -v gcc >/dev/null 2>&1; then
        "$UV" pip install -q --python .venv/bin/python --require-hashes -r requirements/libvirt.txt ||
            say "cannot build the binding of libvirt: this host runs no virtual machine"
    fi
    printf '%s' "$wanted" >"$stamp"
}
