"""Makes the example inventory: ``python -m outlive.cli.example.generate DIRECTORY``.

Every VM runs on a host of its zone. About a third of the cores are in use, so that there is room for two slots per VM
and planning covers the example.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

from outlive.base.random import Random

SEED: Final = 20261121
RACKS: Final = 4
HOSTS_PER_RACK: Final = 10
VMS: Final = 600
PROJECTS: Final = tuple(f"{area}-{number}" for area in ("shop", "bank", "media", "lab") for number in (1, 2, 3))
MEMORY_SHARE: Final = 0.65
"""No host is filled with VMs beyond this share of its memory and CPU."""


class Size(NamedTuple):
    """A flavor, and how many of a hundred VMs have it."""

    name: str
    cpu: int
    memory_gib: int
    disk_gib: int
    share: int


SIZES: Final = (
    Size("g.small", 2, 4, 20, 24),
    Size("g.medium", 4, 8, 40, 24),
    Size("g.large", 8, 16, 80, 16),
    Size("g.xlarge", 16, 32, 160, 6),
    Size("m.medium", 4, 16, 40, 12),
    Size("m.large", 8, 32, 80, 8),
    Size("m.xlarge", 16, 64, 160, 3),
    Size("c.large", 16, 16, 40, 5),
    Size("c.xlarge", 32, 32, 80, 2),
)
NAMES: Final = ("web", "api", "db", "cache", "queue", "batch", "mail", "auth", "ci", "log")


class Host(NamedTuple):
    """A host of the example."""

    name: str
    zone: str
    rack: str
    cpu: int
    memory_gib: int


def hosts() -> list[Host]:
    """All hosts: two machine types, racks 1 and 2 in zone a, 3 and 4 in zone b."""
    made: list[Host] = []
    for rack in range(1, RACKS + 1):
        for place in range(1, HOSTS_PER_RACK + 1):
            big = place > HOSTS_PER_RACK - 3
            cpu, memory = (384, 1536) if big else (256, 1024)
            made.append(Host(f"kvm-r{rack}-{place:02d}", "zone-a" if rack <= 2 else "zone-b", f"r{rack}", cpu, memory))
    return made


def vm_rows(machines: list[Host], random: Random) -> list[list[str]]:
    """All VMs, each on the host of its zone that has the most free memory among three drawn ones."""
    cpu = {host.name: host.cpu * MEMORY_SHARE for host in machines}
    memory = {host.name: host.memory_gib * MEMORY_SHARE for host in machines}
    drawn = [size for size in SIZES for _ in range(size.share)]
    rows: list[list[str]] = []
    for number in range(1, VMS + 1):
        size = drawn[random.randrange(len(drawn))]
        zone = ("zone-a", "zone-b")[number % 2]
        fitting = [
            h for h in machines if h.zone == zone and cpu[h.name] >= size.cpu and memory[h.name] >= size.memory_gib
        ]
        host = max(random.sample(fitting, min(3, len(fitting))), key=lambda h: (memory[h.name], h.name))
        cpu[host.name] -= size.cpu
        memory[host.name] -= size.memory_gib
        project = PROJECTS[random.randrange(len(PROJECTS))]
        name = f"{NAMES[random.randrange(len(NAMES))]}-{number:03d}"
        sizes = [str(size.cpu), f"{size.memory_gib}Gi", str(size.disk_gib)]
        rows.append([_uuid(random), name, project, size.name, *sizes, zone, host.name, "ACTIVE"])
    return rows


def _uuid(random: Random) -> str:
    digits = f"{random.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def host_text() -> str:
    """``hosts.csv``."""
    lines = ["name,zone,domain-rack,cpu,memory,cpu_arch"]
    lines += [f"{h.name},{h.zone},{h.rack},{h.cpu},{h.memory_gib}Gi,x86_64" for h in hosts()]
    return "\n".join(lines) + "\n"


def vm_text() -> str:
    """``vms.csv``."""
    lines = ["id,name,project,flavor,cpu,memory,disk,zone,host,status"]
    lines += [",".join(row) for row in vm_rows(hosts(), Random(SEED))]
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    """Write both files."""
    (folder / "hosts.csv").write_text(host_text(), encoding="utf-8")
    (folder / "vms.csv").write_text(vm_text(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
