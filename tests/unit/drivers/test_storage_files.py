"""Files and block devices: real locks of a real QEMU program, and what is said of them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outlive.base import NotFound, Refused, Unavailable
from outlive.drivers.storage import PROGRAM, Cuts, Disks, FileLocks
from outlive.node.ports import DiskLock
from outlive.node.vm import StartLocksInput, start_locks

pytestmark = pytest.mark.real_loop

OWN = "10.0.0.1"


@contextmanager
def opened(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of QEMU's that writes the file, as a guest's does."""
    made = subprocess.Popen(["qemu-io", "-f", "raw", str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdin is not None
    assert made.stdout is not None
    made.stdin.write(b"write -P 7 0 4k\n")
    made.stdin.flush()
    while b"wrote" not in made.stdout.readline():
        pass
    try:
        yield made
    finally:
        made.kill()
        with made:
            made.wait()


def seen_elsewhere(file: Path) -> object:
    """What is seen of it where the processes of this host are not."""
    unseen = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-I", str(PROGRAM), "file", str(file)]
    return json.loads(subprocess.run(unseen, capture_output=True, text=True, check=True).stdout)


def disk(path: Path) -> tuple[Path, str]:
    file = path / "disk.raw"
    with file.open("wb") as stream:
        stream.truncate(2**20)
    return file, f"file:{file}"


def storage() -> Disks:
    files = FileLocks(OWN, 10.0)
    return Disks(OWN, {"file": files, "block": files}, {})


@pytest.mark.component("qemu")
async def test_file_that_a_process_of_this_host_writes_is_locked_by_it_until_its_end(tmp_path: Path) -> None:
    file, volume = disk(tmp_path)
    assert await storage().list_locks((volume,)) == ()
    with opened(file) as process:
        (lock,) = await storage().list_locks((volume,))
        assert (lock.volume, lock.address, lock.locker) == (volume, OWN, f"process {process.pid}")
        with pytest.raises(Refused, match="only the end of that releases it"):
            await storage().release(lock)
    assert await storage().list_locks((volume,)) == ()
    await storage().release(lock)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
@pytest.mark.component("qemu")
async def test_file_that_another_host_writes_is_locked_by_somebody_without_a_name(tmp_path: Path) -> None:
    """The other host: processes that this one does not see."""
    file, volume = disk(tmp_path)
    with opened(file) as process:
        assert seen_elsewhere(file) == {"locked": True, "pids": []}
        assert process.poll() is None
    assert await storage().list_locks((volume,)) == ()


def test_lock_of_a_host_that_has_no_name_keeps_a_virtual_machine_from_starting() -> None:
    lock = DiskLock(volume="file:/d", id="image", locker="another host", address="")
    given = StartLocksInput(storage_ip=OWN, volumes=("file:/d",), locks=(lock,), vm_state="start", fenced_ips=("",))
    assert start_locks(given).reason == "foreign_lock"


@pytest.mark.parametrize(
    ("volume", "error", "said"),
    [
        ("file:/etc/nowhere.raw", NotFound, "disk file:/etc/nowhere.raw does not exist"),
        ("file:/nowhere/disk.raw", Unavailable, "its folder is empty or not there (mount it"),
        ("file:/tmp", Unavailable, "/tmp cannot be opened: it is no file"),
        ("block:/dev/nowhere", Unavailable, "device /dev/nowhere is not on this host"),
        ("block:/etc/passwd", Unavailable, "/etc/passwd cannot be opened"),
        ("gluster:x", Unavailable, "nobody here knows the locks on disk 'gluster:x'"),
    ],
)
async def test_disk_that_cannot_be_asked_for_is_one_clear_error(volume: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        await storage().list_locks((volume,))
    assert said in str(raised.value)


async def test_nobody_shuts_a_host_out_of_a_file() -> None:
    port = Cuts({})
    with pytest.raises(NotFound):
        await port.cut("a", 1, ("disk:file:/d",))
    with pytest.raises(NotFound):
        await port.read_back("a", 1)
    assert await port.wait_isolated(("disk:file:/d",)) == ()


async def test_file_system_and_device_that_answer_are_reached_and_what_is_not_there_says_nothing(
    tmp_path: Path,
) -> None:
    _, volume = disk(tmp_path)
    place = storage().find_place(volume)
    found = await storage().check_reach((place, "file:/nowhere", "block:/dev/nowhere", "gluster:x"))
    assert found == {}


@pytest.mark.slow
async def test_path_that_does_not_answer_is_not_reached_and_keeps_one_child_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "hangs.py"
    program.write_text("import time, sys\nopen(sys.argv[2] + '/asked', 'a').write('.')\ntime.sleep(3600)\n")
    monkeypatch.setattr("outlive.drivers.storage.files.REACH_PROGRAM", program)
    monkeypatch.setattr("outlive.drivers.storage.files.MOUNTS", tmp_path / "none")
    monkeypatch.setattr("outlive.drivers.storage.files.REACH_S", 1.0)
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda self: None)  # as one that waits in the kernel
    _, volume = disk(tmp_path)
    disks = storage()
    for _ in range(2):
        assert await disks.check_reach((disks.find_place(volume),)) == {
            f"file:{tmp_path}": f"{tmp_path} does not answer"
        }
    assert (tmp_path / "asked").read_text() == "."
    monkeypatch.undo()
    for child in disks._kinds["file"]._paths._asking.values():  # type: ignore[attr-defined]
        child.kill()
        await child.wait()


async def test_errors_of_dead_storage_are_told_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "fails.py"
    monkeypatch.setattr("outlive.drivers.storage.files.REACH_PROGRAM", program)
    monkeypatch.setattr("outlive.drivers.storage.files.MOUNTS", tmp_path / "none")
    _, volume = disk(tmp_path)
    for number, why in ((errno.ESTALE, "stale file handle"), (errno.EACCES, "")):
        program.write_text(f"raise SystemExit({number})")
        expected = {f"file:{tmp_path}": f"{tmp_path}: {why}"} if why else {}
        assert await storage().check_reach((storage().find_place(volume),)) == expected


def test_files_of_one_mounted_file_system_lie_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "40 21 0:50 / /mnt/nfs rw shared:2 - nfs4 server:/a rw\n"
        "41 40 0:51 / /mnt/nfs/with\\040space rw shared:3 - nfs4 server:/b rw\n"
    )
    monkeypatch.setattr("outlive.drivers.storage.files.MOUNTS", mounts)
    places = {name: storage().find_place(f"file:{name}") for name in ("/mnt/nfs/vm-1/a", "/mnt/nfs/vm-2/b", "/srv/c")}
    assert list(places.values()) == ["file:/mnt/nfs", "file:/mnt/nfs", "file:/srv"]
    assert storage().find_place("file:/mnt/nfs/with space/d") == "file:/mnt/nfs/with space"


async def test_a_device_that_is_no_block_device_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # to open it would wait for a writer
    for place in (f"block:{pipe}", "block:/dev/null"):
        assert await storage().check_reach((place,)) == {}
