"""Hosts: pid, mount, network, UTS, IPC and cgroup namespaces on one switch, with a power button each.

A host is a folder of the state directory and, while it has power, a pid 1 (``lab.init``) with everything below it.
Its cgroup tree is a subtree of the machine's cgroup v2, which it sees as its whole ``/sys/fs/cgroup``. Power off kills
pid 1, and the kernel kills everything else of the host in the same stroke; power on boots it with a new boot id. The
switch is a network namespace with a bridge and a filter that no host can reach.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab import service
from lab.processes import LabError, Process, run, until

NET = "10.86.0"
"""The network of the switch, a /24. It exists only inside of the lab's namespaces."""
STORE = 2
"""The number of the store's address."""
HOSTS_LIMIT = 32
PROJECT = Path(__file__).resolve().parent.parent
RULES = """
flush ruleset
table bridge lab {
  set cut { type ifname . ifname; }
  chain wire { type filter hook forward priority 0; policy accept; iifname . oifname @cut drop; }
}
"""
SWITCHES = "/run/netns"
DISK_MIB = 64
CLOCK = "/etc/lab-clock"
"""On each host: how many seconds its wall clock is ahead of the machine's, as eight bytes."""
ENTER = 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"'
"""Runs a command in a cgroup."""


class Switch:
    """The network: one bridge, and a cable to everything that was plugged in by name and address."""

    def __init__(self, state: Path, net: str = NET) -> None:
        self.state = state
        self.net = net
        """The first three numbers of its addresses."""
        self.prefix = "ol" + hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:6]
        self.name = f"{self.prefix}-switch"
        self.group = cgroup_root() / self.prefix
        """The cgroup of all hosts on it."""

    def start(self) -> None:
        """Make it, without cables."""
        if self._there(self.name):
            return
        self.state.mkdir(parents=True, exist_ok=True)
        run("ip", "netns", "add", self.name)
        run("ip", "-n", self.name, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
        run("ip", "-n", self.name, "link", "set", "br0", "up")
        self.heal()

    def stop(self) -> None:
        """Remove it and every network on it."""
        for name in self._names():
            run("ip", "netns", "del", name)
        for group in (self.group / "power", self.group):
            with contextlib.suppress(OSError):
                group.rmdir()

    def plug(self, name: str, *numbers: int) -> str:
        """Give ``name`` a network of its own, with these addresses on the switch; the path of its namespace."""
        space = f"{self.prefix}-{name}"
        if not self._there(space):
            self.make_namespace(name)
            self.connect(name, space, "eth0")
            for number in numbers:
                run("ip", "-n", space, "addr", "add", f"{self.net}.{number}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
        return f"{SWITCHES}/{space}"

    def make_namespace(self, name: str) -> str:
        """Make a network namespace that is removed with the switch, without cables; its name."""
        space = f"{self.prefix}-{name}"
        if not self._there(space):
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
        return space

    def connect(self, name: str, space: str, interface: str, bridge: str = "br0") -> None:
        """Lay a cable from a bridge of the switch to an interface of a namespace; ``name`` is the switch's end."""
        run("ip", "-n", self.name, "link", "add", name, "type", "veth", "peer", "name", interface, "netns", space)
        run("ip", "-n", self.name, "link", "set", name, "master", bridge, "up")

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Drop everything from the first to the second of each pair; for both ways name both."""
        if pairs:
            elements = ", ".join(f'"{one}" . "{other}"' for one, other in pairs)
            self._nft(f"add element bridge lab cut {{ {elements} }}")

    def heal(self) -> None:
        """Take every cut back."""
        self._nft("table bridge lab\n" + RULES)

    def plugged(self) -> list[str]:
        """The names of everything on the switch."""
        return [name.removeprefix(f"{self.prefix}-") for name in self._names() if name != self.name]

    def isolate(self, name: str, *kept: str) -> None:
        """Cut one off from everything but what is kept."""
        others = [other for other in self.plugged() if other != name and other not in kept]
        self.cut(*[pair for other in others for pair in ((name, other), (other, name))])

    def inside(self, name: str, *command: str) -> list[str]:
        """A command that runs in the network of ``name``."""
        return ["nsenter", f"--net={SWITCHES}/{self.prefix}-{name}", "--", *command]

    def _nft(self, text: str) -> None:
        run("nsenter", f"--net={SWITCHES}/{self.name}", "--", "nft", "-f", "-", stdin=text + "\n")

    def _names(self) -> list[str]:
        folder = Path(SWITCHES)
        return sorted(path.name for path in folder.glob(f"{self.prefix}-*")) if folder.is_dir() else []

    def _there(self, name: str) -> bool:
        return Path(SWITCHES, name).exists()


def cgroup_root() -> Path:
    """Where the machine's cgroup v2 is mounted; mounted below ``/run`` where it is nowhere."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(target)
    target = "/run/outlive-lab-cgroup2"
    Path(target).mkdir(exist_ok=True)
    run("mount", "-t", "cgroup2", "cgroup2", target)
    return Path(target)


class Volume:
    """A small disk of its own for one folder, so that it can be full. It stays mounted until ``unmount``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._image = folder.with_name(f"{folder.name}.img")
        self._rest = folder / "filled"

    def mount(self) -> None:
        """Make it, unless it is there, and mount it, unless it is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.folder.is_mount():
            return
        if not self._image.exists():
            new = self._image.with_suffix(".new")
            with new.open("wb") as file:
                file.truncate(DISK_MIB << 20)
            run("mkfs.ext4", "-q", "-m", "0", str(new))
            new.rename(self._image)
        run("mount", "-o", "loop", str(self._image), str(self.folder))

    def unmount(self) -> None:
        """Take it away; what is on it is there again when it is mounted again."""
        if self.folder.is_mount():
            run("umount", "--lazy", str(self.folder))

    def fill(self) -> None:
        """Leave not a byte free."""
        with self._rest.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * size):
                        pass

    def free(self) -> None:
        """Take that back."""
        self._rest.unlink(missing_ok=True)


class Host:
    """One host, by its name and its number on the switch's network."""

    def __init__(self, switch: Switch, name: str, number: int) -> None:
        self.switch = switch
        self.name = name
        self.address = f"{NET}.{number}"
        self.folder = switch.state / name
        self._number = number
        self.disk = Volume(self.folder / "var")
        """Of its state, where somebody has mounted it."""
        self._process = Process(self.folder / "power.pid")
        self._group = switch.group / name
        self._clock = self.folder / CLOCK.lstrip("/")

    # --- what it is made of

    def make(self) -> None:
        """Its folder and its cable; both stay as they are where they are there."""
        self.switch.plug(self.name, self._number)
        if (self.folder / "services").is_dir():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        etc = self.folder / "etc"
        if not etc.is_dir():
            shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
        (etc / "machine-id").unlink(missing_ok=True)
        (etc / "machine-id").write_text(f"{uuid.uuid5(uuid.NAMESPACE_DNS, f'{self.switch.prefix}.{self.name}').hex}\n")
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "resolv.conf").unlink(missing_ok=True)
        (etc / "resolv.conf").write_text("")  # nobody to ask: what is not in hosts is not found, at once
        lines = ["127.0.0.1 localhost", *(f"{NET}.{10 + n} host-{n}" for n in range(1, HOSTS_LIMIT + 1))]
        (etc / "hosts").write_text("".join(f"{line}\n" for line in [*lines, f"{NET}.{STORE} store"]))
        for name in ("var/lib", "var/log", "var/cache", "var/tmp", "run", "log", "services"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "var/run").symlink_to("/run")
        (self.folder / "var/lock").symlink_to("/run/lock")  # where virsh locks a console

    def add_service(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, again_s: float | None = 1.0
    ) -> None:
        """A service that is started at every boot, in the order of the names (``20-libvirtd``).

        ``again_s``: how long after its end it is started again; ``None``: never.
        """
        said = {"command": list(command), "env": dict(env or {}), "again_s": again_s}
        (self.folder / "services" / f"{name}.json").write_text(json.dumps(said))

    # --- power

    @property
    def on(self) -> bool:
        """Whether it has power."""
        return bool(self._process.pid)

    @property
    def pid(self) -> int:
        """Pid 1 of the host, as the machine numbers it; 0 without power."""
        parent = self._process.pid
        if not parent:
            return 0
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            return 0
        return int(children[0]) if children else 0

    @property
    def boot_id(self) -> str:
        """Of the boot that runs, or ran last."""
        return (self.folder / "boot_id").read_text().strip()

    def power_on(self, limit_s: float = 45.0) -> None:
        """Boot it, with a new boot id and an empty ``/run``; returns when pid 1 takes requests."""
        if self.on:
            return
        self.make()
        shutil.rmtree(self.folder / "run")
        (self.folder / "run/lock").mkdir(parents=True)
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self._remove_group()
        self._make_group()
        shared = [str(path) for path in {PROJECT, self.switch.state.resolve(), Path(sys.prefix).resolve()}]
        space = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child"]
        init = [sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")), str(self.folder.resolve())]
        command = ["sh", "-c", ENTER, "sh", str(self._group), *self.switch.inside(self.name, *space, *init, *shared)]
        self._process.start(command, self.folder / "log/init.log")
        until(self._answers, f"{self.name} boots; see {self.folder}/log/init.log", limit_s)
        (self._group.parent / "power/cgroup.procs").write_text(str(self._process.pid))

    def power_off(self) -> None:
        """Cut its power: everything on it is gone when this returns."""
        if self.pid:
            self._kill_first()
        self._process.kill()
        until(lambda: not self._populated(), f"nothing of {self.name} is left", 10)
        self._remove_group()

    def reset(self) -> None:
        """Off and on."""
        self.power_off()
        self.power_on()

    def freeze(self, frozen: bool = True) -> None:
        """Let the whole host stand still, or go on."""
        (self._group / "cgroup.freeze").write_text("1" if frozen else "0")

    # --- its wall clock

    def own_clock(self) -> dict[str, str]:
        """What a service needs in its environment to read a wall clock that can be stepped (``clock.c``).

        All hosts share the kernel's, and no namespace has another one.
        """
        library = self.switch.state / "clock.so"
        if not library.exists():
            words = ["-O2", "-shared", "-fPIC", f'-DSTEP="{CLOCK}"']
            new = library.with_suffix(".new")
            run("gcc", *words, "-o", str(new), str(Path(__file__).with_name("clock.c")))
            new.rename(library)
        if not self._clock.exists():
            self._clock.write_bytes(bytes(8))
        return {"LD_PRELOAD": str(library.resolve())}

    def step_clock(self, seconds: int) -> None:
        """So many seconds ahead of the machine's, from now on."""
        if self._clock.exists():
            with self._clock.open("r+b") as file:  # in place: every service has it in its memory
                file.write(seconds.to_bytes(8, "little", signed=True))

    # --- what runs on it

    def ask(self, text: str) -> str:
        """The answer of pid 1: ``start NAME``, ``stop NAME``, ``list``."""
        try:
            return service.ask(text, self._socket())
        except OSError as error:
            raise LabError(f"{self.name} does not answer: {error.strerror or error}") from error

    def services(self) -> dict[str, int]:
        """The process number, on this machine, of each service; 0 where it does not run. No process there is asked."""
        first, found = self.pid, {}
        for name in sorted(file.stem for file in (self.folder / "services").glob("*.json")):
            words = _words(self._group / "system.slice" / name / "cgroup.procs")
            found[name.partition("-")[2]] = next((int(pid) for pid in words if first and _parent(pid) == first), 0)
        return found

    def inside(self, *command: str) -> list[str]:
        """A command that runs on the host."""
        if not self.pid:
            raise LabError(f"{self.name} has no power")
        group = self._group / "user.slice"
        group.mkdir(exist_ok=True)
        target = ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        return ["sh", "-c", ENTER, "sh", str(group), *target, "--", *command]

    def run(self, *command: str, limit_s: float = 60.0) -> str:
        """Run a command on the host and return its output."""
        return run(*self.inside(*command), limit_s=limit_s)

    def processes(self) -> Iterator[tuple[int, str]]:
        """Every process of the host: its number on this machine, and its name."""
        for group, _, _ in os.walk(self._group):  # which goes on where one is removed meanwhile
            for word in _words(Path(group, "cgroup.procs")):
                with contextlib.suppress(OSError):
                    yield int(word), Path(f"/proc/{word}/comm").read_text().strip()

    # --- below

    def _socket(self) -> str:
        """The path of pid 1's socket, short enough for the kernel wherever the state directory is."""
        return f"/proc/{self.pid}/root/run/init.sock"

    def _answers(self) -> bool:
        if not self.on:
            raise LabError(f"{self.name} did not boot: see {self.folder}/log/init.log")
        with contextlib.suppress(OSError):
            return bool(service.ask("list", self._socket()) is not None)
        return False

    def _kill_first(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)

    def _populated(self) -> bool:
        try:
            return "populated 1" in (self._group / "cgroup.events").read_text()
        except OSError:
            return False

    def _make_group(self) -> None:
        """Its cgroup, with every controller that the machine gives: where a tree has none, libvirt does not use it."""
        prefix = self._group.parent
        self._group.mkdir(parents=True)
        (prefix / "power").mkdir(exist_ok=True)
        for group in (prefix.parent, prefix):
            for name in (group / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):
                    (group / "cgroup.subtree_control").write_text(f"+{name}")

    def _remove_group(self) -> None:
        """Its cgroups, which are empty."""
        for folder, _, _ in os.walk(self._group, topdown=False):
            with contextlib.suppress(FileNotFoundError):
                Path(folder).rmdir()


def _words(path: Path) -> list[str]:
    """Of a file of the kernel's; none where it has gone."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def _parent(pid: str) -> int:
    """Of a process, as the machine numbers it; 0 where that has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def hosts(switch: Switch, count: int = 3) -> list[Host]:
    """``host-1`` to ``host-N``, with the addresses .11 and on."""
    return [Host(switch, f"host-{number}", 10 + number) for number in range(1, count + 1)]
