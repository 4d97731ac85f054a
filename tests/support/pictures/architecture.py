"""The parts of a cluster, and who talks to whom over which network."""

from __future__ import annotations

from typing import Final

from tests.support.pictures.canvas import Area, Drawing

NETWORKS: Final = {
    "blue": "cluster network",
    "red": "BMC network",
    "amber": "storage network, OVN",
    "grey": "inside one machine, or to other systems",
}
WIDTH: Final = 1000


def _machine(d: Drawing, x: float, y: float, name: str, *, daemon: str) -> dict[str, Area]:
    d.rect(Area(x, y, 372, 196), radius=10)
    d.text(x + 44, y + 22, name, bold=True)
    boxes = {
        "daemon": Area(x + 16, y + 36, 150, 62),
        "libvirt": Area(x + 16, y + 130, 150, 50),
        "guard": Area(x + 222, y + 36, 134, 62),
        "watchdog": Area(x + 222, y + 130, 134, 50),
    }
    d.box(boxes["daemon"], ["daemon", "lease, its VMs", daemon], colour="green")
    d.box(boxes["libvirt"], ["libvirt", "runs the VMs"], colour="green")
    d.box(boxes["guard"], ["guard", "kills VMs if no", "renewal counts"], colour="amber")
    d.box(boxes["watchdog"], ["watchdog", "resets the host"], colour="amber")
    down, right = boxes["daemon"].point("b"), boxes["daemon"].point("r")
    d.arrow(down, boxes["libvirt"].point("t"))
    d.badge(down[0], down[1] + 16, "7", "grey")
    d.arrow(right, boxes["guard"].point("l"))
    d.badge(right[0] + 27, right[1], "5", "grey")
    down = boxes["guard"].point("b")
    d.arrow(down, boxes["watchdog"].point("t"))
    d.badge(down[0], down[1] + 16, "6", "grey")
    return boxes


def architecture() -> Drawing:
    """Server, coordinators, hosts, BMCs and storage."""
    d = Drawing("The parts, and who talks to whom", WIDTH, 660)
    server = Area(240, 56, 520, 130)
    d.rect(server, radius=10)
    d.text(500, 78, "server: outlive up, or two or three outlive controller", bold=True, anchor="middle")
    api = d.box(Area(256, 92, 110, 78), ["API", "HTTPS,", "status page"], colour="blue")
    d.box(Area(382, 92, 130, 78), ["store", "SQLite, Kubernetes", "or ZooKeeper"], colour="blue", small=10.5)
    d.box(
        Area(528, 92, 216, 78), ["controllers", "slots, placement, recovery,", "inventory, commitments"], colour="blue"
    )
    operator = d.box(Area(20, 100, 130, 56), ["you", "command line, browser"], small=10.5)
    d.arrow(operator.point("r"), (api.x, 128), colour="blue")
    d.badge(195, 128, "1", "blue")
    clouds = d.box(Area(850, 100, 130, 56), ["other systems", "Nova, Limes, mail"], small=10.5)
    d.arrow((server.x + server.width, 128), clouds.point("l"))
    d.badge(805, 128, "10", "grey")
    one = _machine(d, 20, 262, "a coordinator", daemon="fences other hosts")
    other = _machine(d, 608, 262, "a host", daemon="")
    d.arrow((48, one["daemon"].y), (48, 222), (290, 222), (290, 170), colour="blue")
    d.badge(200, 222, "2", "blue")
    d.arrow((636, other["daemon"].y), (636, 222), (330, 222), (330, 170), colour="blue")
    d.badge(500, 222, "2", "blue")
    bmc = d.box(Area(440, 290, 120, 56), ["BMC", "of the host"], colour="red")
    d.arrow((392, 318), bmc.point("l"), colour="red")
    d.badge(416, 318, "3", "red")
    d.arrow(bmc.point("r"), (608, 318), colour="red", dashed=True)
    d.arrow((392, 420), (608, 420), colour="blue", both=True)
    d.badge(500, 420, "9", "blue")
    storage = d.box(
        Area(350, 540, 300, 60), ["storage and OVN", "Ceph, DRBD, shared files; ports of VMs"], colour="amber"
    )
    d.arrow((111, 442), (111, 570), storage.point("l"), colour="amber", both=True)
    d.badge(111, 510, "8", "amber")
    d.arrow((699, 442), (699, 570), storage.point("r"), colour="amber", both=True)
    d.badge(699, 510, "8", "amber")
    d.arrow((300, 458), (300, 500), (430, 500), (430, 540), colour="amber")
    d.badge(365, 500, "4", "amber")
    for at, (colour, name) in enumerate(NETWORKS.items()):
        x = (20, 215, 390, 630)[at]
        d.line((x, 634), (x + 26, 634), colour=colour, width=2.5)
        d.text(x + 34, 638, name, size=12, colour="muted")
    return d
