"""Settings that all tests share: components that may be missing, and a repeatable hypothesis."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kernel_guest import INSIDE

if INSIDE not in os.environ:  # where each import takes seconds, and no test uses it
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "outlive", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("outlive")


def _postgresql() -> bool:
    return shutil.which("pg_ctl") is not None or any(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))


def _chromium() -> bool:
    return shutil.which("chromium") is not None


def _kubectl() -> bool:
    return shutil.which("kubectl") is not None


def _openssl() -> bool:
    return shutil.which("openssl") is not None


def _ipmi() -> bool:
    return shutil.which("ipmi_sim") is not None and shutil.which("ipmitool") is not None


def _ceph() -> bool:
    programs = ("ceph-mon", "ceph-mgr", "ceph-osd", "rbd", "qemu-io", "nft", "nsenter")
    return os.geteuid() == 0 and all(shutil.which(name) is not None for name in programs)


def _systemd() -> bool:
    return shutil.which("systemd-analyze") is not None


def _libvirt() -> bool:
    tools = ("libvirtd", "qemu-system-x86_64", "nsenter", "ip", "nft")
    binding = importlib.util.find_spec("libvirt") is not None
    return os.geteuid() == 0 and binding and all(shutil.which(tool) is not None for tool in tools)


def _keystone() -> bool:
    from tests.support import environments

    return environments.can_be_made("keystone")


def _schemathesis() -> bool:
    from tests.support import environments

    return environments.can_be_made("checks")


def _nova() -> bool:
    from tests.support import environments

    return _postgresql() and Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists() and environments.can_be_made("nova")


def _kubernetes() -> bool:
    from tests.support import api_server

    return api_server.can_run()


def _shared() -> bool:
    return bool(os.environ.get("OUTLIVE_SHARED")) and Path(os.environ["OUTLIVE_SHARED"]).is_dir()


def _ovn() -> bool:
    programs = ("ovsdb-server", "ovs-vswitchd", "ovn-northd", "ovn-controller", "ethtool", "nsenter", "ip", "nft")
    return os.geteuid() == 0 and all(shutil.which(program) is not None for program in programs)


def _zookeeper() -> bool:
    return Path("/usr/share/java/zookeeper.jar").exists() and shutil.which("java") is not None


def _links() -> bool:
    programs = ("ip", "nft", "nsenter", "ping", "dhclient")
    return os.geteuid() == 0 and all(shutil.which(program) is not None for program in programs)


def _network_services() -> bool:
    return _links() and all(shutil.which(name) is not None for name in ("dnsmasq", "pdns_server", "dig"))


def _frr() -> bool:
    return Path("/usr/lib/frr/bgpd").exists() and _links()


def _kernel_guest() -> bool:
    from tests.support import kernel_guest

    return kernel_guest.can_run()


def _sshd() -> bool:
    return Path("/usr/sbin/sshd").exists() and shutil.which("ssh") is not None


COMPONENTS: dict[str, Callable[[], bool]] = {
    "postgresql": _postgresql,
    "chromium": _chromium,
    "kubectl": _kubectl,
    "kubernetes": _kubernetes,
    "openssl": _openssl,
    "ipmi": _ipmi,
    "libvirt": _libvirt,
    "ovn": _ovn,
    "ceph": _ceph,
    "zookeeper": _zookeeper,
    "links": _links,
    "network-services": _network_services,
    "frr": _frr,
    "kernel-guest": _kernel_guest,
    "sshd": _sshd,
    "qemu": lambda: shutil.which("qemu-io") is not None,
    "age": lambda: shutil.which("age") is not None,
    "promtool": lambda: shutil.which("promtool") is not None,
    "systemd": _systemd,
    "keystone": _keystone,
    "nova": _nova,
    "schemathesis": _schemathesis,
    "shared": _shared,
}
"""Real components that tests may need, and how to see whether they are there."""


LONGEST_FIRST = (
    "tests/integration/test_network_moves.py",
    "tests/integration/test_commitments.py",
    "tests/integration/test_storage_statistics.py",
    "tests/integration/test_lab_ceph.py",
    "tests/integration/test_controller.py",
    "tests/integration/test_schema_moves.py",
    "tests/integration/test_lab_kubernetes.py",
    "tests/integration/test_up.py",
    "tests/integration/test_schema_upgrade.py",
    "tests/integration/kernel/test_functions.py",
    "tests/integration/test_storage_ceph.py",
    "tests/integration/test_disaster.py",
    "tests/integration/test_bare_metal.py",
    "tests/integration/test_lab.py",
    "tests/attacks/test_fuzz.py",
    "tests/integration/test_dead_disk.py",
    "tests/integration/test_walkthrough.py",
    "tests/integration/test_import_openb.py",
)
"""Files that take half a minute and more, in the order in which they begin: no process works alone at the end, and
those that emulate whole machines begin apart."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    places = {file: place for place, file in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose component is missing; where everything is required, fail it instead."""
    for marker in item.iter_markers("component"):
        for name in marker.args:
            if COMPONENTS[name]():
                continue
            if os.environ.get("OUTLIVE_TEST_REQUIRE") == "all":
                pytest.fail(f"component {name} is missing and OUTLIVE_TEST_REQUIRE=all", pytrace=False)
            pytest.skip(f"component {name} is missing")
