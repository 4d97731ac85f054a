"""What other systems print is read as they mean it: sizes, states, hosts that take nothing, and what is no VM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outlive.base import BadInput, NotFound
from outlive.drivers.listings import read_ganeti, read_kubevirt, read_libvirt, read_proxmox, read_rvtools
from outlive.inventory import Inventory, Selection, parse_where

ALL = Selection()
GIB = 2**30


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def hosts_of(inventory: Inventory) -> dict[str, tuple[int, int]]:
    return {one.name: (one.capacity["cpu"], one.capacity["memory"]) for one in inventory.hosts}


def vms_of(inventory: Inventory) -> dict[str, tuple[int, int, str, str]]:
    return {
        one.id: (one.resources["cpu"], one.resources["memory"], one.host or "", one.phase or "")
        for one in inventory.vms
        if one.resources is not None
    }


def notices_of(inventory: Inventory) -> list[str]:
    return [str(one.code) for one in inventory.notices]


def problems_of(inventory: Inventory) -> list[str]:
    return [str(one) for one in inventory.problems.shown]


# --- Proxmox VE

NODE = {"type": "node", "id": "node/pve1", "node": "pve1", "status": "online", "maxcpu": 32, "maxmem": 128 * GIB}
GUEST = {
    "type": "qemu", "id": "qemu/100", "vmid": 100, "name": "db-1", "node": "pve1", "status": "running", "maxcpu": 4,
    "maxmem": 8 * GIB, "template": 0, "pool": "shop",
}  # fmt: skip


def test_a_proxmox_cluster_is_read(tmp_path: Path) -> None:
    listed = [
        NODE,
        {**NODE, "node": "pve2", "hastate": "maintenance"},
        GUEST,
        {**GUEST, "vmid": 101, "type": "lxc", "name": "proxy", "status": "stopped"},
        {**GUEST, "vmid": 9000, "template": 1, "name": "debian"},
        {"type": "storage", "storage": "local", "node": "pve1", "status": "available"},
        {"type": "sdn", "sdn": "localnetwork", "node": "pve1", "status": "ok"},
    ]
    found = read_proxmox(written(tmp_path / "cluster.json", {"data": listed}), ALL)
    assert hosts_of(found) == {"pve1": (32_000, 128 * GIB), "pve2": (32_000, 128 * GIB)}
    assert [one.disabled for one in found.hosts] == ["", "it is in maintenance"]
    assert vms_of(found) == {"100": (4000, 8 * GIB, "pve1", "running"), "101": (4000, 8 * GIB, "pve1", "stopped")}
    assert (found.vms[0].name, found.vms[0].project) == ("db-1", "shop")
    assert (found.rows_left_out, notices_of(found), problems_of(found)) == (1, ["containers"], [])


def test_a_proxmox_node_that_is_offline_has_no_sizes_and_is_named(tmp_path: Path) -> None:
    down = {"type": "node", "node": "pve3", "status": "offline"}
    found = read_proxmox(written(tmp_path / "cluster.json", [NODE, down, GUEST]), ALL)
    assert problems_of(found)[0].startswith(f"{tmp_path / 'cluster.json'}[1]: node 'pve3' has no cpu and memory")
    assert found.listed_hosts == {"pve1", "pve3"}
    chosen = read_proxmox(tmp_path / "cluster.json", Selection((), parse_where(["node!=pve3"])))
    assert (problems_of(chosen), chosen.rows_left_out) == ([], 1)
    with pytest.raises(BadInput, match="no column 'nod'"):
        read_proxmox(tmp_path / "cluster.json", Selection(parse_where(["nod=pve1"])))


@pytest.mark.parametrize("content", ["{}", "[1]", '"x"', '{"data": {}}'])
def test_another_json_is_no_proxmox_cluster(tmp_path: Path, content: str) -> None:
    with pytest.raises(BadInput, match=r"not the list of a cluster's resources.*pvesh get /cluster/resources"):
        read_proxmox(written(tmp_path / "x.json", content), ALL)


# --- libvirt

NODEINFO = """CPU model:           x86_64
CPU(s):              16
CPU frequency:       2400 MHz
CPU socket(s):       1
Memory size:         65798088 KiB

"""
LISTED = """ Id   Name          State
-----------------------------
 3    web 1         running
 5    build         paused
 -    old-db        shut off

"""


def domain(name: str, *, number: str = "", vcpu: str = "<vcpu placement='static'>4</vcpu>", memory: str = "") -> str:
    running = f" id='{number}'" if number else ""
    size = memory or "<memory unit='KiB'>8388608</memory>"
    return f"<domain type='kvm'{running}><name>{name}</name><uuid>uuid-of-{name}</uuid>{size}{vcpu}</domain>"


def dump(folder: Path, *, listed: bool = True) -> Path:
    host = folder / "kvm-1"
    host.mkdir(parents=True)
    written(host / "nodeinfo", NODEINFO)
    if listed:
        written(host / "list", LISTED)
    written(host / "1.xml", domain("web 1", number="3", vcpu="<vcpu current='2'>8</vcpu>"))
    written(host / "2.xml", domain("build", number="5", memory="<memory unit='GiB'>2</memory>"))
    written(host / "3.xml", domain("old-db", memory="<memory>1048576</memory>"))
    return folder


def test_a_dump_of_libvirt_is_read(tmp_path: Path) -> None:
    found = read_libvirt(dump(tmp_path / "dump"), ALL)
    assert hosts_of(found) == {"kvm-1": (16_000, 65798088 * 1024)}
    assert vms_of(found) == {
        "uuid-of-web 1": (2000, 8 * GIB, "kvm-1", "running"),
        "uuid-of-build": (4000, 2 * GIB, "kvm-1", "paused"),
        "uuid-of-old-db": (4000, 1 * GIB, "kvm-1", "shut off"),
    }
    assert problems_of(found) == []
    without = read_libvirt(dump(tmp_path / "other", listed=False), ALL)
    assert [one.phase for one in without.vms] == ["running", "running", "shut off"]


def test_what_is_wrong_with_a_dump_of_libvirt_is_named(tmp_path: Path) -> None:
    folder = dump(tmp_path / "dump")
    (folder / "kvm-1" / "nodeinfo").unlink()
    written(folder / "kvm-1" / "4.xml", "<domain><name>x")
    written(folder / "kvm-1" / "5.xml", "<pool/>")
    found = read_libvirt(folder, ALL)
    first, second, third = problems_of(found)
    assert "the sizes of host 'kvm-1' are missing (write it with: virsh -c qemu+ssh://kvm-1/system nodeinfo" in first
    assert "4.xml: the file is no XML" in second
    assert "5.xml: is not a domain with a name" in third
    assert found.nameless, "nobody knows which VM that is, so none has vanished"
    with pytest.raises(NotFound, match="no such folder"):
        read_libvirt(tmp_path / "nowhere", ALL)
    with pytest.raises(BadInput, match="has 0 folders"):
        read_libvirt(tmp_path / "dump" / "kvm-1", ALL)


# --- KubeVirt


def node(name: str, **changes: Any) -> dict[str, Any]:
    labels = changes.pop("labels", {"kubevirt.io/schedulable": "true", "topology.kubernetes.io/zone": "z1"})
    status = {
        "capacity": {"cpu": "32", "memory": "131072Mi"},
        "allocatable": {"cpu": "31500m", "memory": "129024Mi"},
        "conditions": [{"type": "Ready", "status": changes.pop("ready", "True")}],
    }
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": changes, "status": status}


def instance(name: str, domain: dict[str, Any], **status: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "shop", "uid": f"uid-{name}"}
    full = {"phase": "Running", "nodeName": "w1", **status}
    return {"kind": "VirtualMachineInstance", "metadata": meta, "spec": {"domain": domain}, "status": full}


def test_a_cluster_of_kubevirt_is_read(tmp_path: Path) -> None:
    items = [
        node("w1"),
        node("w2", unschedulable=True, ready="Unknown"),
        node("control", labels={}),
        instance("a", {"cpu": {"cores": 2, "sockets": 2}, "memory": {"guest": "4Gi"}}),
        instance("b", {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}),
        instance("c", {"memory": {"guest": "1Gi"}}, phase="Succeeded"),
        instance("d", {"memory": {"guest": "1Gi"}}, phase="Scheduling", nodeName=None),
        {"kind": "Pod", "metadata": {"name": "x"}},
    ]
    found = read_kubevirt([written(tmp_path / "all.json", {"kind": "List", "items": items})], ALL)
    assert hosts_of(found) == {"w1": (31_500, 126 * GIB), "w2": (31_500, 126 * GIB)}
    assert [(one.zone, one.disabled, one.down) for one in found.hosts] == [
        ("z1", "", False),
        ("z1", "it is cordoned", True),
    ]
    assert vms_of(found) == {
        "uid-a": (4000, 4 * GIB, "w1", "Running"),
        "uid-b": (500, GIB, "w1", "Running"),
        "uid-c": (1000, GIB, "", "Succeeded"),
        "uid-d": (1000, GIB, "", "Scheduling"),
    }
    assert (found.vms[0].name, found.vms[0].project) == ("a", "shop")
    assert (notices_of(found), problems_of(found)) == (["nodes-without-vms"], [])


def test_an_instance_without_memory_is_named(tmp_path: Path) -> None:
    found = read_kubevirt([written(tmp_path / "all.json", {"items": [node("w1"), instance("a", {})]})], ALL)
    assert "VirtualMachineInstance shop/a has no memory" in problems_of(found)[0]
    assert found.listed_vms == {"uid-a"}
    with pytest.raises(BadInput, match=r"there is no Node and no VirtualMachineInstance.*kubectl get nodes,vmi"):
        read_kubevirt([written(tmp_path / "x.json", {"items": []})], ALL)
    with pytest.raises(BadInput, match="is not a list of Kubernetes objects"):
        read_kubevirt([written(tmp_path / "y.json", [])], ALL)


# --- Ganeti

TEXT = """default|uuid-g|preferred||

node1|65536|1024|40000|1000000|500000|16|N|uuid-g|1||N|0
node2|65536|1024|50000|1000000|500000|16|M|uuid-g|1||N|0
node3|65536|1024|64000|1000000|900000|16|Y|uuid-g|1||N|0

web|4096|20480|2|running|Y|node1|node2|drbd|tag|1
db|8192|20480|4|ADMIN_down|Y|node2||plain||1

cluster-tag
"""


def test_the_text_of_htools_is_read(tmp_path: Path) -> None:
    found = read_ganeti([written(tmp_path / "cluster.data", TEXT)], ALL)
    assert hosts_of(found) == dict.fromkeys(("node1", "node2", "node3"), (16_000, 64 * GIB))
    assert [one.down for one in found.hosts] == [False, False, True]
    assert vms_of(found) == {
        "web": (2000, 4 * GIB, "node1", "running"),
        "db": (4000, 8 * GIB, "node2", "ADMIN_down"),
    }
    assert (notices_of(found), problems_of(found)) == (["mirrored-instances"], [])


def test_listings_of_ganeti_are_read_by_their_titles(tmp_path: Path) -> None:
    nodes = written(
        tmp_path / "nodes", "Node|CTotal|MTotal|Offline|Drained|Group\nn1|16|65536|N|N|a\nn2|16|65536|N|Y|a\n"
    )
    instances = written(
        tmp_path / "instances",
        "Instance|ConfigVCPUs|ConfigMaxMem|Status|Primary_node|Secondary_Nodes\nweb|2|4096|running|n1|n2\n",
    )
    found = read_ganeti([nodes, instances], ALL)
    assert hosts_of(found) == {"n1": (16_000, 64 * GIB), "n2": (16_000, 64 * GIB)}
    assert [one.disabled for one in found.hosts] == ["", "it is drained"]
    assert vms_of(found) == {"web": (2000, 4 * GIB, "n1", "running")}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "neither the text of htools"),
        ("a table\nof something\n", "neither the text of htools"),
        (TEXT.replace("|16|N|uuid-g|1||N|0", ""), "node 'node1' has 6 columns"),
        ("Node|CTotal\nn1|16|65536\n", "has 3 columns, and 2 titles"),
    ],
)
def test_what_is_no_text_of_ganeti_is_named(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        read_ganeti([written(tmp_path / "x", content)], ALL)


def test_a_node_of_ganeti_that_does_not_answer_has_no_sizes(tmp_path: Path) -> None:
    nodes = written(tmp_path / "nodes", "Node|CTotal|MTotal|Offline\nn1|16|65536|N\nn2|(nodata)|(nodata)|N\nn3|?|?|Y\n")
    problems = problems_of(read_ganeti([nodes], ALL))
    assert "nodes:3: node 'n2'" in problems[0]
    assert "nodes:4: node 'n3'" in problems[1]


# --- RVTools

VHOST = """Host,Datacenter,Cluster,in Maintenance Mode,# Cores,# Memory
esx1,DC1,C1,False,32,262010
esx2,DC1,C1,True,32,262010
"""
VINFO = """VM,Powerstate,Template,CPUs,Memory,Datacenter,Cluster,Host,VM UUID
app,poweredOn,False,4,16384,DC1,C1,esx1,u-1
old,poweredOff,False,8,32768,DC1,C1,esx1,u-2
golden,poweredOff,True,2,4096,DC1,C1,esx1,u-3
"""


def test_rvtools_are_read(tmp_path: Path) -> None:
    found = read_rvtools(written(tmp_path / "vHost.csv", VHOST), written(tmp_path / "vInfo.csv", VINFO), ALL)
    assert hosts_of(found) == dict.fromkeys(("esx1", "esx2"), (32_000, 262010 * 2**20))
    assert [(one.zone, bool(one.disabled)) for one in found.hosts] == [("C1", False), ("C1", True)]
    assert vms_of(found) == {
        "u-1": (4000, 16 * GIB, "esx1", "poweredOn"),
        "u-2": (8000, 32 * GIB, "esx1", "poweredOff"),
    }
    assert found.rows_left_out == 1
