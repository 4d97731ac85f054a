"""The daemon on a host with a real libvirt: what it publishes, and that a libvirt that hangs costs no renewal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from lab.processes import until
from lab.single import Single

from outlive.base.errors import Unavailable

pytestmark = [pytest.mark.component("libvirt"), pytest.mark.slow]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Single]:
    quick = {"node": {"usage": "3s", "look": "2s", "callLimit": "3s"}, "libvirt": {"callLimit": "2s"}}
    made = Single(tmp_path_factory.mktemp("single"), **quick)
    try:
        made.start()
        made.add_vms(2)
        until(lambda: usage(made).get("running") == 2, "both run", 60, 0.5)
        yield made
    finally:
        made.stop()


def usage(single: Single) -> dict[str, Any]:
    return single.outlive("get", "hypervisorusages", "host-1")["usage"]


def guests(single: Single) -> dict[int, str]:
    return {pid: name for pid, name in single.host.processes() if name.startswith("qemu")}


def test_a_daemon_that_is_started_again_takes_its_guests_over(single: Single) -> None:
    before, record = guests(single), single.record()
    assert len(before) == 2
    os.kill(single.pid, signal.SIGKILL)
    until(lambda: single.record()["nonce"] != record["nonce"], "another daemon renews", 30, 0.2)
    ready = len(single.events("node.ready"))
    os.kill(single.pid, signal.SIGUSR2)
    until(lambda: len(single.events("node.ready")) > ready, "the installed version took over", 30, 0.2)
    until(lambda: usage(single).get("running") == 2, "both are counted", 30, 0.5)
    assert guests(single) == before, "no guest was touched"
    assert single.record().get("epoch", 1) == record.get("epoch", 1)


def test_each_guest_is_counted(single: Single) -> None:
    until(lambda: set(usage(single).get("guests", {})) == {"vm-1", "vm-2"}, "both are counted", 30, 0.5)
    kinds = {"cpu", "memory", "diskRead", "diskWritten", "netReceived", "netSent"}
    assert all(set(used) == kinds for used in usage(single)["guests"].values())


def test_what_a_guest_writes_to_its_console_is_kept_and_its_screen_is_known(single: Single) -> None:
    def console() -> dict[str, Any]:
        found = single.outlive("get", "consoles")["items"]
        return {one["metadata"]["name"]: one for one in found}.get("vm-1", {})

    until(lambda: "SeaBIOS" in console().get("text", ""), "the firmware has written to the console", 30, 0.5)
    assert console()["host"] == "host-1"
    log = single.host.folder / "var/log/outlive/console/vm-1.log"
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    with log.open("ab") as file:
        file.write(b"a line\n\xff")
    until(lambda: console()["text"].endswith("a line\n\ufffd"), "the line is kept", 30, 0.5)
    log.rename(log.with_name("vm-1.log.0"))
    log.write_text("after a rotation\n")
    until(lambda: console()["text"].endswith("after a rotation\n"), "the new file is read", 30, 0.5)
    assert "SeaBIOS" in console()["text"]
    screens = {name: single.outlive("vm", "info", name)["vnc"] for name in ("vm-1", "vm-2")}
    assert {one["listen"] for one in screens.values()} == {"127.0.0.1"}
    assert len({one["port"] for one in screens.values()}) == 2


def test_a_libvirt_that_hangs_costs_no_renewal(single: Single) -> None:
    until(lambda: "domains" not in usage(single).get("stale", ()), "all figures are fresh", 30, 0.5)
    libvirtd, before = single.libvirtd.pid, guests(single)
    first = single.record()
    os.kill(libvirtd, signal.SIGSTOP)
    try:
        until(lambda: "domains" in usage(single).get("stale", ()), "the figures of domains are stale", 60, 0.5)
        shown = usage(single)
    finally:
        os.kill(libvirtd, signal.SIGCONT)
    assert {"domains", "guests"} >= set(shown["stale"])
    assert shown["running"] == 2, "as they were when libvirt answered last"
    assert single.record()["nonce"] == first["nonce"]
    assert single.events("membership.not_renewed") == []
    until(lambda: "domains" not in usage(single).get("stale", ()), "libvirt answers again", 60, 0.5)
    assert guests(single) == before


def test_a_hypervisor_that_is_too_old_is_named_with_what_is_needed() -> None:
    """libvirt's own test driver says that it is version 0.0.2."""
    from outlive.drivers.libvirt.service import Service

    async def asked() -> None:
        with pytest.raises(Unavailable, match=r"^QEMU 0\.0\.2 is too old \(install QEMU 7\.2\.0 or later\)$"):
            await Service("test:///default", threads=2, limit_s=10).ask(lambda connection: connection.getVersion())

    asyncio.run(asked())
