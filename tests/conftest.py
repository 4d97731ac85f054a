"""Settings that all tests share: components that may be missing, and a repeatable hypothesis."""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes longest."""
    if INSIDE not in os.environ:
        from tests.support.distribution import place_of

        items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole parts of the run."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.distribution import PartScheduling

    return PartScheduling(config, log)


CRASHED: list[str] = []
"""Workers of this run that did not end as they should."""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Note a worker that crashed. ``scripts/test`` replaces none, because xdist may then wait for ever."""
    if error:
        CRASHED.append(node.gateway.id)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a worker crashed, also if it did so between two tests."""
    if CRASHED:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


REAL = (
    "tests/integration/",
    "tests/attacks/",
    "tests/torture/",
    "tests/unit/store/test_sqlite.py",
    "tests/unit/store/test_restore.py",
    "tests/unit/store/test_snapshots.py",
    "tests/unit/api/test_tls.py",
)
"""Where tests that are coroutine functions run on a real loop; elsewhere they run on virtual time."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function (``tests.support.loops``)."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from tests.support.loops import run, run_real

    names = inspect.signature(pyfuncitem.obj).parameters
    real = pyfuncitem.nodeid.startswith(REAL) or pyfuncitem.get_closest_marker("real_loop")
    (run_real if real else run)(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose component is missing; where everything is required, fail it instead."""
    for marker in item.iter_markers("component"):
        for name in marker.args:
            if COMPONENTS[name]():
                continue
            if os.environ.get("OUTLIVE_TEST_REQUIRE") == "all":
                pytest.fail(f"component {name} is missing and OUTLIVE_TEST_REQUIRE=all", pytrace=False)
            pytest.skip(f"component {name} is missing")
