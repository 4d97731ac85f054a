"""What the driver of libvirt makes of a VM, and what it keeps on disk; libvirt itself is in the suite of the port."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from outlive.base import InUse, OutliveError, Refused, Unavailable, start_time
from outlive.drivers.libvirt import (
    METADATA,
    POST_COPY,
    QEMU,
    DomainRun,
    GuestProcess,
    LibvirtSettings,
    Pace,
    Processes,
    Runs,
    Scans,
    Sending,
    Start,
    domain_xml,
    format_mark,
    has_connection,
    kill,
    receives,
)
from outlive.node.ports import DomainState
from outlive.node.vm import GuestCounts
from outlive.resources import Amounts, ObjectMeta, VirtualMachine, VirtualMachineSpec, complete_vm, parse_xml

SETTINGS = LibvirtSettings(
    uri="qemu:///system",
    partition="/guests",
    disk_paths=("/a", "/b", "/iso", "/dev/x"),
    console_paths=("/log",),
    host_devices=("user",),
)
DEFINITION = """<domain type='qemu' id='3'><name>web</name><uuid>7b0a2c5e-0000-4000-8000-00000000d0d0</uuid>
<memory unit='MiB'>96</memory><vcpu>1</vcpu><os><type>hvm</type></os><on_crash>restart</on_crash><devices>
<disk type='file'><driver name='qemu' type='raw'/><source file='/a'/><target dev='vda'/></disk>
<disk type='file'><driver name='qemu' cache='directsync'/><source file='/b'/><target dev='vdb'/></disk>
<disk type='file' device='cdrom'><source file='/iso'/><target dev='sda'/></disk>
<interface type='user'/><serial type='file'><source path='/log'/></serial>
<graphics type='vnc' port='5900' listen='0.0.0.0'><listen type='address' address='0.0.0.0'/></graphics>
</devices></domain>"""


def vm(definition: str = DEFINITION, **spec: object) -> VirtualMachine:
    made = VirtualMachineSpec(definition=definition, **spec)  # type: ignore[arg-type]
    return complete_vm(VirtualMachine(metadata=ObjectMeta(name="web-1"), spec=made))


def made(one: VirtualMachine, *, incoming: bool = False, settings: LibvirtSettings = SETTINGS):
    return parse_xml(domain_xml(Start(one, "r1", 7, incoming, {"qmp": "/q", "watch": "/w"}), settings))


def test_the_driver_s_parts_of_a_definition() -> None:
    domain = made(vm())
    assert "id" not in domain.attrib
    assert [domain.findtext(tag) for tag in ("name", "on_poweroff", "on_reboot", "on_crash")] == [
        *("web-1", "destroy", "restart", "destroy")
    ]
    caches = [one.get("cache") for one in domain.iterfind("devices/disk/driver")]
    assert caches == ["none", "directsync"]
    assert domain.findtext("resource/partition") == "/guests"
    assert domain.find("devices/interface/mac").get("address").startswith("52:54:00:")
    assert domain.find("devices/serial/source").get("append") == "on"
    graphics = domain.find("devices/graphics")
    assert (graphics.get("listen"), graphics.get("port"), list(graphics)) == ("127.0.0.1", None, [])
    assert domain.find(f"metadata/{{{METADATA}}}run").attrib == {"vm": "web-1", "runId": "r1", "epoch": "7"}
    words = [one.get("value") for one in domain.iter(f"{{{QEMU}}}arg")]
    assert f"socket,id={format_mark('web-1', 'r1', 7)},path=/q,server=on,wait=off" in words
    assert "suppress-vmdesc=on" in words
    assert "-incoming" not in words
    assert "-incoming" in [one.get("value") for one in made(vm(), incoming=True).iter(f"{{{QEMU}}}arg")]


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "127.0.0.1", "[::1]", "::ffff:127.0.0.2", "localhost", "224.0.0.1", "ff02::1"]
)
def test_an_address_that_is_not_the_host_s_own_is_no_address_for_guests_that_arrive(address: str) -> None:
    with pytest.raises(ValueError, match=f"migrationAddress {re.escape(address)} is .*; write this host's own"):
        LibvirtSettings(migration_address=address)
    for good in ("", "10.0.0.1", "2001:db8::1", "kvm-1.cluster"):
        assert LibvirtSettings(migration_address=good).migration_address == good


def test_a_cache_that_is_asked_for_is_that_of_all_disks() -> None:
    domain = made(vm(disk_cache="directsync"))
    assert {one.get("cache") for one in domain.iterfind("devices/disk/driver")} == {"directsync"}
    with pytest.raises(Refused, match="disk cache writeback"):
        made(vm(disk_cache="writeback"))


def test_a_plain_machine_has_its_disks_and_no_ports() -> None:
    spec = {"resources": Amounts(cpu=1500, memory=2**20 + 1), "disks": ("file:/a", "rbd:p/i", "drbd:r", "block:/dev/x")}
    domain = made(vm("", **spec))
    assert (domain.findtext("vcpu"), domain.findtext("memory")) == ("2", "1025")
    sources = [dict(one.attrib) for one in domain.iterfind("devices/disk/source")]
    assert sources == [
        {"file": "/a"},
        {"protocol": "rbd", "name": "p/i"},
        {"dev": "/dev/drbd/by-res/r/0"},
        {"dev": "/dev/x"},
    ]
    for more, said in (({"disks": ("root",)}, "'root'"), ({"ports": ("p",)}, "no definition")):
        with pytest.raises(Refused, match=said):
            made(vm("", **more))


def test_an_image_of_ceph_is_opened_by_its_own_user_or_by_the_host_s() -> None:
    own = "<auth username='me'><secret type='ceph' uuid='mine'/></auth>"
    disk = "<disk type='network'>{}<source protocol='rbd' name='p/{}'/><target dev='vd{}'/></disk>"
    disks = [disk.format(own, "own", "x"), disk.format("", "bare", "y")]
    definition = DEFINITION.replace("<interface", f"{''.join(disks)}<interface")
    settings = replace(SETTINGS, ceph_user="guests", ceph_secret="uuid")
    for given, users in ((SETTINGS, ["me", None]), (settings, ["me", "guests"])):
        found = made(vm(definition), settings=given).iterfind("devices/disk[@type='network']")
        auths = [disk.find(".//auth") for disk in found]
        assert [None if one is None else one.get("username") for one in auths] == users
    (disk,) = made(vm("", disks=("rbd:p/i",)), settings=settings).iterfind("devices/disk")
    secret = disk.find("source/auth/secret")
    assert secret is not None
    assert secret.attrib == {"type": "ceph", "uuid": "uuid"}
    with pytest.raises(ValueError, match="belong together"):
        LibvirtSettings(ceph_user="guests")


def test_a_vm_whose_disks_are_not_those_of_its_definition_does_not_start() -> None:
    one = vm()
    with pytest.raises(Refused, match=r"spec.disks of web-1 is not what its definition has: file:/a, file:/b"):
        made(replace(one, spec=replace(one.spec, disks=("file:/a",))))


def test_screens_have_the_password_of_the_secret_or_one_that_nobody_knows() -> None:
    hypervisor = pytest.importorskip("outlive.drivers.libvirt.hypervisor")
    answers: dict[str, str | OutliveError] = {
        "good": "s3cret-8",
        "empty": "",
        "long": "more-than-eight",
        "away": Unavailable("no server answers"),
    }

    async def answer(name: str) -> str:
        found = answers[name]
        if isinstance(found, OutliveError):
            raise found
        return found

    async def scenario() -> None:
        driver = hypervisor.LibvirtHypervisor(SETTINGS, answer)
        given = {}
        for name in answers:
            one = replace(vm(console_secret="console-a"), metadata=ObjectMeta(name=name))
            given[name] = await driver._read_screen_password(one)
        assert given.pop("good") == "s3cret-8"
        assert all(len(one) == 8 for one in given.values())
        assert not set(given.values()) & {"more-tha", "s3cret-8"}
        spice = replace(
            vm(DEFINITION.replace("'vnc'", "'spice'"), console_secret="console-a"), metadata=ObjectMeta(name="long")
        )
        assert await driver._read_screen_password(spice) == "more-than-eight"
        assert await driver._read_screen_password(vm()) == ""

    asyncio.run(scenario())
    start = Start(vm(), "r1", 7, False, {"qmp": "/q"}, "s3cret-8")
    graphics = parse_xml(domain_xml(start, SETTINGS)).find("devices/graphics")
    assert graphics is not None
    assert graphics.get("passwd") == "s3cret-8"


def run(run_id: str = "r1") -> DomainRun:
    return DomainRun(vm="vm-1", run_id=run_id, epoch=7, creator=os.getpid(), creator_started=start_time(os.getpid()))


def test_a_vm_has_one_run_and_a_removed_gate_stays_closed(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path), "")
    runs.claim(run())
    with pytest.raises(InUse):
        runs.claim(run("r2"))
    assert runs.list_runs() == [run()]
    socket = Path(runs.socket_path("vm-1", "r1", "qmp"))
    socket.touch()
    assert not runs.close_gate(run()), "its QEMU has bound its socket"
    socket.unlink()
    assert runs.close_gate(run())
    assert not socket.parent.exists()
    runs.remove(run())
    runs.claim(run("r2"))
    runs.remove(run("r1"))
    assert runs.find_run("vm-1") == run("r2"), "another run has come since"
    for wrong in ("", "../x", "a_b", "x" * 60):
        with pytest.raises(Refused):
            Runs(str(tmp_path / "other"), "").claim(run(wrong))


def test_what_becomes_of_a_run_is_decided_once(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path), "")
    runs.claim(run())
    assert runs.read_fate(run()) == ""
    assert runs.decide(run(), "declined") == "declined"
    assert runs.decide(run(), "resumed") == "declined"
    assert runs.read_fate(run()) == "declined"
    runs.remove(run())
    assert runs.decide(run(), "resumed") == "removed"


def test_guests_are_known_by_their_marks(tmp_path: Path) -> None:
    for pid, line in (
        ("7", f"qemu\0-chardev\0socket,id={format_mark('web-1', 'r1', 7)},path=/q"),
        ("8", "qemu\0-name\0x"),
    ):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_text(line)
        (tmp_path / pid / "stat").write_text(f"{pid} (qemu) S " + " ".join(str(word) for word in range(4, 30)))
        (tmp_path / pid / "cgroup").write_text("9:x:/\n0::/machine.slice/a\n")
    (found,) = Processes("/sys/fs/cgroup/machine.slice", str(tmp_path)).scan()
    assert (found.pid, found.vm, found.run_id, found.epoch, found.guarded) == (7, "web-1", "r1", 7, True)
    assert not Processes("/sys/fs/cgroup/machine", str(tmp_path)).scan()[0].guarded


FIRST_THREAD_ENDS = """import ctypes, threading
def other():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    print("ended", flush=True)
    input()
threading.Thread(target=other).start()
ctypes.CDLL(None).pthread_exit(None)"""


def test_guests_that_outlive_did_not_make_are_known_by_their_name_and_uuid(tmp_path: Path) -> None:
    uuid = "7b0a2c5e-0000-4000-8000-00000000d0d0"
    lines = {
        "7": f"kvm\0-name\0guest=old,,web,debug-threads=on\0-S\0-uuid\0{uuid}",
        "8": f"qemu\0-name\0guest=x\0-uuid\0{uuid}\0-chardev\0socket,id={format_mark('x', 'r1', 7)},path=/q",
        "9": "qemu\0-name\0guest=y\0-uuid\0none",
    }
    for pid, line in lines.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_text(line)
        (tmp_path / pid / "stat").write_text(f"{pid} (qemu) S " + " ".join(str(word) for word in range(4, 30)))
    found = sorted(Processes("/sys/fs/cgroup/machine.slice", str(tmp_path)).scan())
    assert [(one.pid, one.vm, one.run_id, one.uuid) for one in found] == [(7, "old,web", "", uuid), (8, "x", "r1", "")]


def test_a_guest_whose_first_thread_has_ended_is_there_while_another_one_lives() -> None:
    words = ("-chardev", f"socket,id={format_mark('web-1', 'zombie', 7)},path=/q")
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_THREAD_ENDS, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == b"ended\n"
            assert not Path(f"/proc/{made.pid}/cmdline").read_bytes()
            (found,) = [one for one in Processes("/sys/fs/cgroup/none").scan() if one.pid == made.pid]
            assert (found.vm, found.run_id, found.epoch) == ("web-1", "zombie", 7)
            assert asyncio.run(kill(found, 10))
        finally:
            made.kill()


def process(proc: Path, line: str, *, state: str = "S", threads: int = 1, group: str = "/") -> None:
    """The process 7 of a kernel."""
    (proc / "7").mkdir(parents=True, exist_ok=True)
    (proc / "7" / "cmdline").write_text(line)
    words = [state, *(str(word) for word in range(4, 30))]
    words[6], words[17] = "0", str(threads)
    (proc / "7" / "stat").write_text(f"7 (qemu) {' '.join(words)}")
    (proc / "7" / "cgroup").write_text(f"0::{group}\n")


def test_a_guest_without_a_command_line_is_there_until_the_kernel_and_its_cgroup_have_forgotten_it(
    tmp_path: Path,
) -> None:
    proc, slice_path = tmp_path / "proc", tmp_path / "slice"
    group = slice_path / "machine-qemu\\x2d1\\x2dweb.scope"
    group.mkdir(parents=True)
    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    line = f"qemu\0-chardev\0socket,id={format_mark('vm-1', 'r1', 7)},path=/q\0"
    process(proc, line, group=f"{group}/libvirt/emulator")
    there = Processes(str(slice_path), str(proc))
    (found,) = there.scan()
    assert found.group == str(group)
    runs = Runs(str(tmp_path / "runs"), "")
    runs.claim(run())
    runs.note(run(), found)
    process(proc, "", state="Z", threads=2, group=f"{group}/libvirt/emulator")
    again = Processes(str(slice_path), str(proc), known=runs.list_processes())
    assert there.scan() == again.scan() == [found]
    process(proc, "", state="Z", threads=1)
    assert there.scan() == again.scan() == [found], "somebody is left in its cgroup"
    (group / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert there.scan() == again.scan() == []


def test_no_serial_number_or_path_of_a_definition_passes_as_the_mark(tmp_path: Path) -> None:
    mine, other = (
        f"socket,id={format_mark('vm-1', 'r1', 7)},path=/q",
        f"socket,id={format_mark('vm-2', 'r9', 9)},path=/q",
    )
    before = f"qemu\0-smbios\0type=1,serial=id=outlive_vm-2_r9_9\0-drive\0file=/{other}\0-chardev\0{other}\0"
    process(tmp_path, f"{before}-chardev\0{mine}\0-machine\0-chardev\0-device\0{other}\0")
    (found,) = Processes("/none", str(tmp_path)).scan()
    assert (found.vm, found.run_id, found.epoch) == ("vm-1", "r1", 7)


@pytest.mark.slow
def test_a_process_that_does_not_answer_keeps_nobody_waiting_and_each_look_begins_after_its_call(
    tmp_path: Path,
) -> None:
    process(tmp_path, "")
    (tmp_path / "7" / "cmdline").unlink()
    os.mkfifo(tmp_path / "7" / "cmdline")

    async def scenario() -> None:
        scans = Scans(Processes("/none", str(tmp_path)), 0.5)
        for _ in range(2):
            with pytest.raises(Unavailable, match="could not be read"):
                await scans.scan()
        line = f"qemu\0-chardev\0socket,id={format_mark('vm-1', 'r1', 7)},path=/q\0"
        with (tmp_path / "7" / "cmdline").open("w") as fifo:
            (tmp_path / "7" / "cmdline").unlink()
            process(tmp_path, line)
            fifo.write("qemu")
        first, second = await asyncio.gather(scans.scan(), scans.scan())
        assert [one.vm for one in first] == ["vm-1"]
        assert first == second

    asyncio.run(scenario())


def test_a_process_that_appears_during_a_listing_is_listed(tmp_path: Path) -> None:
    pytest.importorskip("libvirt")
    from outlive.drivers.libvirt import LibvirtHypervisor

    proc = tmp_path / "proc"
    proc.mkdir()

    class Appears(Processes):
        """The create ends just after the first look."""

        def scan(self) -> list[GuestProcess]:
            found = super().scan()
            process(proc, f"qemu\0-chardev\0socket,id={format_mark('vm-1', 'r1', 7)},path=/q\0")
            runs.mark_created(run())
            return found

    async def nothing_known(question: object) -> dict[str, tuple[int, int]]:
        return {}

    async def scenario() -> None:
        hypervisor = LibvirtHypervisor(replace(SETTINGS, folder=str(tmp_path / "runs")))
        hypervisor._scans = Scans(Appears("/none", str(proc)), 10)
        hypervisor.service.ask = nothing_known  # type: ignore[assignment]
        (found,) = await hypervisor.list_domains()
        assert (found.vm, found.run_id, found.state) == ("vm-1", "r1", DomainState.RUNNING)

    runs = Runs(str(tmp_path / "runs"), "")
    runs.claim(run())
    asyncio.run(scenario())


def test_runs_that_ended_while_they_waited_cost_one_look_at_processes_together(tmp_path: Path) -> None:
    pytest.importorskip("libvirt")
    from outlive.drivers.libvirt import LibvirtHypervisor

    looks: list[int] = []

    class Counted(Processes):
        def scan(self) -> list[GuestProcess]:
            looks.append(1)
            return super().scan()

    async def nothing_known(question: object) -> dict[str, tuple[int, int]]:
        return {}

    async def scenario() -> None:
        hypervisor = LibvirtHypervisor(replace(SETTINGS, folder=str(tmp_path / "runs")))
        hypervisor._scans = Scans(Counted("/none", str(tmp_path)), 10)
        hypervisor.service.ask = nothing_known  # type: ignore[assignment]
        assert await hypervisor.list_domains() == ()

    runs = Runs(str(tmp_path / "runs"), "")
    for number in range(20):
        one = replace(run(), vm=f"vm-{number}", incoming=number > 0)
        runs.claim(one)
        runs.mark_created(one)
    asyncio.run(scenario())
    assert len(looks) == 2
    assert runs.find_run("vm-0") is None, "it ran here and is over"
    assert runs.find_run("vm-1") is not None, "it can be declined"


def test_a_process_receives_by_post_copy_for_as_long_as_it_is_told_which_memory_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "fd"
    assert receives(7, str(tmp_path)) is None
    folder.mkdir(parents=True)
    for number, target in enumerate(("/dev/null", "anon_inode:[eventfd]")):
        (folder / str(number)).symlink_to(target)
    assert receives(7, str(tmp_path)) is False
    (folder / "9").symlink_to("anon_inode:[userfaultfd]")
    assert receives(7, str(tmp_path))


def test_how_far_a_guest_is_that_is_sent_is_known_to_the_next_daemon(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path), "")
    runs.claim(run())
    assert runs.find_sending("vm-1") is None
    runs.mark_moving("vm-1", Sending(7, "99"))
    assert runs.find_sending("vm-1") == Sending(7, "99", "")
    runs.mark_moving("vm-1", Sending(7, "99", POST_COPY))
    assert runs.find_sending("vm-1") == Sending(7, "99", POST_COPY)
    runs.unmark_moving("vm-1")
    assert runs.find_sending("vm-1") is None
    runs.remove(run())
    with pytest.raises(Unavailable):
        runs.mark_moving("vm-1", Sending(7, "99"))


def passes(*given: tuple[float, int, float], status: str = "active", pace: Pace | None = None) -> list[float]:
    """What a transfer's pace says at each of: second, pass, and what is left."""
    pace = pace or Pace(0.0)
    return [
        pace.stalled_s({"status": status, "ram": {"dirty-sync-count": number, "remaining": left}}, now_s)
        for now_s, number, left in given
    ]


def test_a_transfer_gets_nearer_to_its_end_in_each_pass_that_begins_with_less_than_any_before() -> None:
    assert passes((10, 1, 900), (20, 1, 500), (30, 1, 10)) == [0, 0, 0], "a large memory takes its time"
    assert passes((10, 1, 900), (20, 1, 900), (30, 1, 900)) == [0, 10, 20], "nothing gets through"
    pace = Pace(0.0)
    assert passes((10, 1, 900), (20, 1, 5), (30, 2, 400), (40, 2, 5), (50, 3, 300), pace=pace) == [0] * 5
    assert passes((60, 3, 5), (70, 4, 300), (80, 4, 100), (90, 5, 301), (99, 5, 3), pace=pace) == [0, 10, 20, 30, 0]
    assert passes((110, 5, 3), (120, 5, 800), pace=pace) == [11, 21]
    split = {"status": "postcopy-active", "pace": pace}
    assert passes((130, 6, 800), (140, 6, 700), (150, 6, 700), **split) == [0, 0, 10]
    assert pace.stalled_s({}, 160) == 20, "a QEMU that says nothing"
    assert pace.stalled_s({}, 1000) == 35, "nobody looked"


def test_what_libvirt_cannot_say_is_an_error_that_callers_know() -> None:
    libvirt = pytest.importorskip("libvirt")
    from outlive.drivers.libvirt import LibvirtService

    async def scenario() -> None:
        service = LibvirtService("test:///default", threads=2, limit_s=10.0)
        service._connection = libvirt.open(service.uri)
        assert await service.ask(lambda connection: connection.lookupByName("test").name()) == "test"
        with pytest.raises(Unavailable, match="libvirt at test:///default: Domain not found"):
            await service.ask(lambda connection: connection.lookupByName("nobody"))

    asyncio.run(scenario())


def test_statistics_are_read_from_what_libvirt_counts() -> None:
    pytest.importorskip("libvirt")
    from outlive.drivers.libvirt import parse_counts

    counts = {"cpu.time": 2_500_000_000, "balloon.rss": 1024, "block.count": 2, "net.count": 1}
    disks = {"block.0.wr.bytes": 512, "block.1.wr.bytes": 8, "block.0.rd.bytes": 1, "block.7.wr.bytes": 99}
    found = parse_counts("vm-1", counts | disks | {"net.0.rx.bytes": 5, "net.0.tx.bytes": -1})
    assert (found.cpu_s, found.resident_bytes, found.written_bytes, found.read_bytes) == (2.5, 2**20, 520, 1)
    assert (found.received_bytes, found.sent_bytes) == (5, 0)
    assert parse_counts("vm-2", {}) == GuestCounts(vm="vm-2")


def test_the_service_that_starts_guests_is_a_problem_where_systemd_starts_it_at_boots(tmp_path: Path) -> None:
    pytest.importorskip("libvirt")
    from outlive.drivers.libvirt import GUESTS_SERVICE, starts_guests

    units = tmp_path / "etc/systemd/system"
    (units / "multi-user.target.wants").mkdir(parents=True)
    (units / "multi-user.target.wants" / GUESTS_SERVICE).symlink_to(f"/lib/systemd/system/{GUESTS_SERVICE}")
    assert not starts_guests(str(tmp_path)), "systemd does not run here"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert starts_guests(str(tmp_path))
    (units / GUESTS_SERVICE).symlink_to("/dev/null")
    assert not starts_guests(str(tmp_path)), "masked, its links stay"


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_connection_that_the_other_side_has_ended_is_seen(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as listening, socket.socket(family) as sending:
        listening.bind((address, 0))
        listening.listen()
        port = listening.getsockname()[1]
        listens = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        assert not has_connection(listens)
        sending.connect((address, port))
        receiving, _ = listening.accept()
        with receiving:
            assert has_connection(listens)
        assert not has_connection(listens)
        sending.send(b"what is sent last fits into buffers")
    assert has_connection("kvm-1.example:49152"), "a name: nobody knows"
