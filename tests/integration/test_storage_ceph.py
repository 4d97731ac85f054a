"""A silent host that writes to an image of Ceph is shut out, its lock is removed, and another host writes: never both.

Who wrote is read from the image's own blocks. All parts are real: Ceph, QEMU's client of it, and the drivers.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import msgspec
import pytest
from lab.processes import run
from tests.conformance.ports.real_ceph import NET, NUMBERS, RealCeph, Writer, cluster
from tests.support.loops import run_real

from outlive.base import NotFound, Unavailable
from outlive.drivers.storage import CephCommands, RbdLocks
from outlive.node.vm import START_LOCKS, StartLocksInput

pytestmark = pytest.mark.component("ceph")
ROUND_S = 30.0
"""For a write that is taken, on a machine that does other things."""
BLOCKS = 64
"""Each writer writes these over and over, with its own pattern."""


@pytest.fixture
def real() -> Iterator[RealCeph]:
    made = RealCeph(cluster())
    yield made
    made.close()


class Guest:
    """A guest's QEMU, as far as its disk goes: it writes all blocks, round after round, for as long as it lives."""

    def __init__(self, host: str, image: str, pattern: int) -> None:
        self.writer = Writer(cluster(), host, image)
        self.pattern = pattern

    def round(self) -> bool:
        return self.writer.writes(limit_s=ROUND_S, pattern=self.pattern)


def first_block(image: str) -> int:
    """The pattern that the image's first block holds, as a reader sees it who takes no lock."""
    made = cluster()
    disk = f"rbd:{image}:conf={made.ceph.conf}:id=admin"
    words = made.switch.inside("host-ceph", "qemu-img", "dd", "-U", "-f", "raw", "-O", "raw", "bs=4096", "count=1")
    out = made.state / f"block-{time.monotonic_ns()}"
    run(*words, f"if={disk}", f"of={out}")
    block = out.read_bytes()
    assert len(set(block)) == 1, "one write is whole"
    return block[0]


async def test_writer_of_a_silent_host_is_shut_out_and_another_start_succeeds(real: RealCeph) -> None:
    image = real.scope[0].removeprefix("disk:rbd:")
    volume = f"rbd:{image}"
    old = Guest("a", image, 0xA1)
    assert old.round()
    assert first_block(image) == 0xA1
    storage, fencer = real.storage("b"), real.driver("b")
    locks = await storage.list_locks((volume,))
    mine, theirs = storage.own_address(), real.storage("a").own_address()

    def wants(*fenced: str) -> str:
        given = StartLocksInput(
            storage_ip=mine, volumes=(volume,), locks=locks, vm_state="start", fenced_ips=tuple(fenced)
        )
        return START_LOCKS.function(given).result

    assert wants() == "fail", "it may still write"
    await fencer.cut("a", 1, real.scope)
    assert real.scope[0] in (await fencer.read_back("a", 1)).scope
    assert await fencer.wait_isolated(real.scope) == real.scope
    assert wants(theirs) == "start", "its host is isolated"
    for lock in locks:
        await storage.release(lock)
    assert await storage.list_locks((volume,)) == ()
    new = Guest("b", image, 0xB2)
    try:
        assert new.round()
        for _ in range(3):
            assert not old.writer.writes(limit_s=1.0, pattern=old.pattern), "the old writer is shut out"
            assert first_block(image) == 0xB2
            assert new.round()
        with pytest.raises(Unavailable, match="Ceph blocks this host's address"):
            await real.driver("a").wait_isolated(real.scope)
        await fencer.lift("a", 1)
        assert await real.driver("a").wait_isolated(real.scope) == real.scope
        assert not old.writer.writes(limit_s=1.0, pattern=old.pattern), "its client does not come back by itself"
        assert first_block(image) == 0xB2
    finally:
        old.writer.kill()
        new.writer.kill()


async def test_order_to_let_in_that_is_late_lets_nobody_in(real: RealCeph) -> None:
    """A coordinator that releases a host says so first: no other isolates it again before that has ended."""
    ceph = cluster().ceph
    await real.driver("b").cut("a", 1, real.scope)
    ceph.ceph("config-key", "set", "outlive/lift/a/c", "1")
    with pytest.raises(Unavailable, match="c is about to let a in again"):
        await real.driver("b").cut("a", 2, real.scope)
    ceph.ceph("config-key", "rm", "outlive/lift/a/c")
    await real.driver("b").cut("a", 2, real.scope)
    await real.driver("b").lift("a", 1)
    assert set((await real.driver("b").read_back("a", 2)).scope) == set(real.scope)


def test_what_is_wrong_with_ceph_is_one_clear_error(real: RealCeph) -> None:
    made = cluster()
    good = made.settings("b")
    image = real.scope[0].removeprefix("disk:")
    stranger = made.state / "stranger.keyring"
    subprocess.run(
        ["ceph-authtool", "--create-keyring", stranger, "--gen-key", "-n", "client.outlive"],
        check=True,
        capture_output=True,
    )
    wrong = made.state / "wrong.conf"
    wrong.write_text(made.ceph.conf.read_text().replace(f"{NET}.{NUMBERS['ceph']}", f"{NET}.250"))

    async def looked() -> None:
        for settings, volume, error, said in (
            (good, "rbd:vms/nowhere", NotFound, "disk rbd:vms/nowhere does not exist"),
            (good, "rbd:nowhere/d", NotFound, "error opening pool 'nowhere'"),
            (
                changed(good, ceph_conf="/nowhere.conf"),
                image,
                Unavailable,
                "/nowhere.conf cannot be read: no such file",
            ),
            (changed(good, ceph_keyring="/nowhere"), image, Unavailable, "/nowhere cannot be read: no such file"),
            (changed(good, ceph_keyring=str(stranger)), image, Unavailable, "does not know client.outlive"),
            (changed(good, ceph_conf=str(wrong)), image, Unavailable, "no monitor of Ceph answers"),
            (changed(good, rbd_program="/nowhere/rbd"), image, Unavailable, "/nowhere/rbd is not installed"),
        ):
            with pytest.raises(error) as raised:
                await RbdLocks(CephCommands(settings)).list_locks(volume)
            assert said in str(raised.value)

    run_real(looked())


changed = msgspec.structs.replace
