"""Two Ceph clusters are two: nothing is asked of, proven by or credited to another one than that of the disk."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from tests.support.loops import run_real

from outlive.base import BadInput, NotFound, SystemClock, SystemIds, Unavailable
from outlive.drivers.storage import CephCluster, CephCommands, Cuts, RbdCut, StorageSettings, make_disks
from outlive.node.fencing import Isolation
from outlive.node.ports import CutPort, CutReport
from outlive.resources import parse
from outlive.store import MemoryStore

PROGRAM = '''#!/usr/bin/env python3
"""One cluster, which takes every order; each configuration file is another one."""
import datetime, fcntl, json, pathlib, sys, time
words = sys.argv[1:]
conf = pathlib.Path(words[words.index("--conf") + 1])
alone = conf.open()
fcntl.flock(alone, fcntl.LOCK_EX)
state_file = conf.with_suffix(".json")
state = json.loads(state_file.read_text()) if state_file.exists() else {"kv": {}, "blocked": {}, "asked": []}
text = " ".join(words)
state["asked"].append(text)
def after(*those):
    at = next((i for i in range(len(words)) if tuple(words[i : i + len(those)]) == those), None)
    return None if at is None else words[at + len(those) :]
if rest := after("config-key", "set"):
    state["kv"][rest[0]] = rest[1]
elif rest := after("config-key", "get"):
    if rest[0] not in state["kv"]:
        sys.exit(2)
    print(state["kv"][rest[0]])
elif rest := after("config-key", "dump"):
    print(json.dumps({key: value for key, value in state["kv"].items() if key.startswith(rest[0])}))
elif rest := after("blocklist", "add"):
    until = datetime.datetime.fromtimestamp(time.time() + float(rest[1]), datetime.timezone.utc)
    state["blocked"][rest[0]] = until.isoformat()
elif after("osd", "dump") is not None:
    print(json.dumps({"fsid": conf.stem, "epoch": 3, "blocklist": state["blocked"], "osds": []}))
elif after("lock", "ls") is not None:
    print("[]")
state_file.write_text(json.dumps(state))
'''
DISK = (
    "<disk type='network'><source protocol='rbd' name='volumes/erp'>{}</source><target dev='vd{}' bus='virtio'/></disk>"
)
B = "<host name='ceph-b-mon1.example' port='6789'/>"
A = "<host name='ceph-a-mon1.example' port='6789'/>"


def definition(*hosts: str) -> str:
    devices = "".join(DISK.format(one, "abc"[number]) for number, one in enumerate(hosts))
    uuid = "5d0a5c1e-9a43-4d0c-8f6a-1d2e3f4a5b6c"
    return (
        f"<domain type='kvm'><name>erp</name><uuid>{uuid}</uuid><memory>1024</memory><vcpu>1</vcpu>"
        f"<devices>{devices}</devices></domain>"
    )


@pytest.fixture
def settings(tmp_path: Path) -> StorageSettings:
    """A host with cluster A alone."""
    program = tmp_path / "ceph"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    for name in "ab":
        (tmp_path / f"{name}.conf").write_text("")
    return StorageSettings(ceph_conf=str(tmp_path / "a.conf"), ceph_program=str(program), rbd_program=str(program))


def both(settings: StorageSettings) -> StorageSettings:
    from msgspec.structs import replace

    b = CephCluster(
        monitors=("ceph-b-mon1.example", "ceph-b-mon2.example"),
        ceph_conf=settings.ceph_conf.replace("a.conf", "b.conf"),
    )
    return replace(settings, clusters={"b": b}, ceph_monitors=("ceph-a-mon1.example",))


def cuts(settings: StorageSettings) -> Cuts:
    async def addresses(host: str) -> tuple[str, ...]:
        return ("10.0.1.7",)

    def part(kind: str, of: StorageSettings) -> CutPort:
        return RbdCut(
            CephCommands(of), addresses, SystemClock(), host="kvm-1", own="10.0.1.1", lasts_s=86400, kind=kind
        )

    return Cuts({kind: part(kind, of) for kind, of in settings.ceph_clusters().items()})


def asked(settings: StorageSettings, cluster: str) -> str:
    file = Path(settings.ceph_conf).with_name(f"{cluster}.json")
    return "\n".join(json.loads(file.read_text())["asked"]) if file.exists() else ""


def test_the_id_of_a_disk_says_in_which_cluster_it_lies() -> None:
    ids = parse(definition(B, "", A + "<host name='ceph-a-mon2.example' port='3300'/>")).disk_ids
    assert ids == (
        "rbd+ceph-b-mon1.example:volumes/erp",
        "rbd:volumes/erp",
        "rbd+ceph-a-mon1.example,ceph-a-mon2.example:volumes/erp",
    )
    assert parse(definition("<host name='fd00::1' port='7000'/>")).disk_ids == ("rbd+fd00__1#7000:volumes/erp",)


@pytest.mark.slow
def test_no_isolation_is_credited_for_a_cluster_that_nobody_asked(settings: StorageSettings) -> None:
    scope = tuple(f"disk:{one}" for one in parse(definition(B, "")).disk_ids)

    async def isolated() -> tuple[str, ...]:
        port = cuts(settings)
        await port.cut("kvm-7", 3, scope)
        return (await port.read_back("kvm-7", 3)).scope

    assert run_real(isolated()) == ("disk:rbd:volumes/erp",)
    assert "ceph-b" not in asked(settings, "a")
    with pytest.raises(NotFound):
        run_real(cuts(settings).cut("kvm-7", 3, scope[:1]))


def test_nothing_starts_with_a_disk_in_a_cluster_that_its_host_does_not_know(
    settings: StorageSettings, tmp_path: Path
) -> None:
    port = make_disks(settings, "10.0.1.1", tmp_path)
    with pytest.raises(Unavailable, match=r"monitors are ceph-b-mon1\.example") as refused:
        run_real(port.list_locks(parse(definition(B)).disk_ids))
    assert "storage.clusters" in refused.value.remedy
    assert not asked(settings, "a")


@pytest.mark.parametrize("volume", ["rbd:--log-file=/etc/cron.d/x", "drbd:--force", "rbd+b:-c/x"])
def test_a_disk_is_no_option_of_a_program(settings: StorageSettings, tmp_path: Path, volume: str) -> None:
    with pytest.raises(Unavailable, match="option of a program"):
        run_real(make_disks(both(settings), "10.0.1.1", tmp_path).list_locks((volume,)))
    with pytest.raises(NotFound):
        run_real(cuts(both(settings)).cut("kvm-7", 3, (f"disk:{volume}",)))
    assert not asked(settings, "a")
    with pytest.raises(BadInput, match="no RBD image"):
        parse(definition("").replace("volumes/erp", "--log-file=/etc/cron.d/x"))


@pytest.mark.slow
def test_each_cluster_is_asked_for_its_own_disks(settings: StorageSettings, tmp_path: Path) -> None:
    two = both(settings)
    ids = parse(definition(B, "", A)).disk_ids
    scope = tuple(sorted(f"disk:{one}" for one in ids))

    async def isolated() -> tuple[str, ...]:
        port = cuts(two)
        await port.cut("kvm-7", 3, scope)
        assert set(await port.wait_isolated(scope)) == set(scope)
        return (await port.read_back("kvm-7", 3)).scope

    assert run_real(isolated()) == scope
    assert run_real(make_disks(two, "10.0.1.1", tmp_path).list_locks(ids)) == ()
    for cluster in "ab":
        assert "blocklist add 10.0.1.7:0/0" in asked(two, cluster)
        assert "lock ls volumes/erp" in asked(two, cluster)
    blocked = json.loads((tmp_path / "b.json").read_text())["blocked"]
    assert datetime.datetime.fromisoformat(blocked["10.0.1.7:0/0"]).year >= 2026


@pytest.mark.parametrize(
    "given",
    [
        {"ceph_monitors": ("m1",), "clusters": {"b": CephCluster(monitors=("m1:6789",), ceph_conf="/b")}},
        {"clusters": {f"c{one}": CephCluster(monitors=(f"m{one}",), ceph_conf="/b") for one in range(9)}},
    ],
)
def test_a_monitor_is_of_one_cluster_and_there_are_not_too_many(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"write at most|name it once"):
        StorageSettings(**given)  # type: ignore[arg-type]


@pytest.mark.slow
def test_each_cluster_is_asked_for_its_own_images_whether_it_is_reached(
    settings: StorageSettings, tmp_path: Path
) -> None:
    port = make_disks(both(settings), "10.0.1.1", tmp_path)
    ids = ("rbd+ceph-b-mon1.example:volumes/erp", "rbd:volumes/web", "rbd:--log-file=/etc/cron.d/x", "rbd:-c/x")
    places = tuple(port.find_place(one) for one in ids)
    assert places == ("rbd+ceph-b-mon1.example:volumes", "rbd:volumes", "", "")
    assert set(run_real(port.check_reach((*places, "rbd:--log-file=/etc/cron.d", "rbd:-c")))) == set(places[:2])
    assert asked(settings, "b").endswith("status volumes/erp")
    assert asked(settings, "a").endswith("status volumes/web")
    assert "cron" not in asked(settings, "a")
    assert "-c/x" not in asked(settings, "a")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("rbd:vms/x", "rbd:vms/x", True),
        ("rbd:vms/x", "rbd+ceph-a-mon1.example:vms/x", True),
        ("rbd:vms/x", "rbd+ceph-b-mon1.example:vms/x", False),
        ("rbd+ceph-a-mon1.example:vms/x", "rbd+ceph-b-mon1.example:vms/x", False),
        ("rbd:vms/x", "rbd+nobody-knows:vms/x", True),
        ("rbd+ceph-b-mon1.example:vms/x", "rbd+nobody-knows:vms/x", True),
        ("rbd:vms/x", "rbd+ceph-a-mon1.example:vms/y", False),
        ("drbd:x", "file:x", False),
    ],
)
def test_two_ids_are_one_image_where_their_clusters_are_one_or_not_known(
    settings: StorageSettings, tmp_path: Path, one: str, other: str, same: bool
) -> None:
    port = make_disks(both(settings), "10.0.1.1", tmp_path)
    assert port.are_same(one, other) is port.are_same(other, one) is same


class Part:
    """One storage that shuts hosts out, or does not answer."""

    def __init__(self, *scope: str, down: bool = False) -> None:
        self.scope = scope
        self.down = down

    async def read_back(self, host: str, epoch: int) -> CutReport:
        if self.down:
            raise Unavailable("cluster b does not answer")
        return CutReport(scope=self.scope, evidence="blocked", expires_in_s=3600.0)


def read_back(*parts: Part) -> tuple[str, ...]:
    port = Cuts({f"rbd+m{number}": part for number, part in enumerate(parts)})  # type: ignore[misc]
    return run_real(port.read_back("kvm-7", 3)).scope


def test_a_cluster_that_is_down_hides_no_isolation_of_the_others_and_is_credited_with_none() -> None:
    assert read_back(Part("disk:rbd:vms/a"), Part("disk:rbd+m1:vms/b", down=True)) == ("disk:rbd:vms/a",)


def test_that_nothing_is_isolated_is_not_said_while_a_cluster_is_down() -> None:
    async def isolated(*parts: Part) -> bool:
        port = Cuts({f"rbd+m{number}": part for number, part in enumerate(parts)})  # type: ignore[misc]
        return await Isolation(port, MemoryStore(SystemClock(), SystemIds())).is_isolated("kvm-7", 3)

    assert not run_real(isolated(Part(), Part()))
    assert run_real(isolated(Part("disk:rbd:vms/a"), Part(down=True)))
    for others in ((), (Part(),)):
        with pytest.raises(Unavailable, match="cluster b"):
            run_real(isolated(*others, Part(down=True)))
