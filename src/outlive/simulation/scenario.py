"""A scenario: a folder with a failure story, read and checked as a whole.

``README`` has one line, the story; ``cluster.yaml`` the hosts, VMs and policies; ``timeline.yaml`` what happens;
``expect.yaml`` what it must come to. Every mistake of all four files is reported at once with file, entry, value and
remedy, because a story with a misspelt host would pass without having tested anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from outlive.base import BadInput, NotFound, count_of
from outlive.resources import Problems, parse_documents
from outlive.roles import SECTIONS
from outlive.runtime import Duration, decode_unit, find_mistakes, path_text
from outlive.simulation.expectations import AFTER_S, Expectations, read_expectations
from outlive.simulation.spec import VmSpec, WorldSpec, hosts_of, read_as, vms_of
from outlive.simulation.states import States
from outlive.simulation.timeline import Act, read_timeline

FILE_BYTES: Final = 1024 * 1024
"""The largest file of a scenario."""
LINE_CHARACTERS: Final = 200
"""The longest story line."""
MAKE_VMS: Final = ("create-vm", "place-vm")
"""Verbs that create the VM that they name."""
README, CLUSTER, TIMELINE, EXPECT = "README", "cluster.yaml", "timeline.yaml", "expect.yaml"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One story."""

    name: str
    line: str
    spec: WorldSpec
    acts: tuple[Act, ...] = ()
    expect: Expectations = Expectations()

    @property
    def names(self) -> frozenset[str]:
        """Hosts and VMs that it begins with or makes."""
        return (
            created_vms(self.acts) | {one.name for one in hosts_of(self.spec)} | {one.name for one in vms_of(self.spec)}
        )

    @property
    def until_s(self) -> float:
        """How long it runs: as long as it says, or until nothing is left to do or to judge."""
        if self.expect.until is not None:
            return self.expect.until
        last = max((act.at_s + (act.within_s if act.when else 0.0) for act in self.acts), default=0.0)
        return max([last + AFTER_S, *(moment.at for moment in self.expect.at)])


def created_vms(acts: Iterable[Act]) -> frozenset[str]:
    """VMs that these acts create."""
    return frozenset(act.arguments["vm"] for act in acts if act.verb in MAKE_VMS and "vm" in act.arguments)


def read_scenario(folder: Path, *, expected: bool = True) -> Scenario:
    """The scenario of a folder; without ``expected``, ``expect.yaml`` may be missing.

    ``NotFound`` where there is no such folder or file, ``BadInput`` with all mistakes.
    """
    if not folder.is_dir():
        raise NotFound("no such folder", place=str(folder), remedy="name a folder with README and cluster.yaml")
    problems = Problems()
    line = read_line(folder / README, problems)
    spec = _read_spec(read_value(folder / CLUSTER), str(folder / CLUSTER), problems)
    acts = read_timeline(read_value(folder / TIMELINE), str(folder / TIMELINE), problems)
    expect = Expectations()
    if expected or (folder / EXPECT).exists():
        expect = read_expectations(read_value(folder / EXPECT), str(folder / EXPECT), problems)
    if expect.until is not None:  # what is to be done or looked at after the end would be left out
        late = [f"{act.verb} is at {act.at_s:g} s" for act in acts if act.when is None and act.at_s > expect.until]
        late += [f"states are asked for at {one.at:g} s" for one in expect.at if one.at > expect.until]
        for text in late:
            problems.add(f"{folder / EXPECT}: until", f"it ends at {expect.until:g} s, and {text}", "let it end later")
    if spec is not None and not problems.shown:
        _check_names(spec, acts, expect, folder, problems)
    problems.check()
    assert spec is not None
    return Scenario(name=folder.name, line=line, spec=spec, acts=acts, expect=expect)


def inventory_scenario(name: str, spec: WorldSpec, acts: tuple[Act, ...], until_s: float) -> Scenario:
    """The story of an inventory of which something fails; nothing is expected but that no promise is broken."""
    hosts = sum(len(act.hosts) for act in acts)
    lose = "loses" if hosts == 1 else "lose"
    what = f"{hosts:,} of {count_of(len(hosts_of(spec)), 'host')} {lose} power" if hosts else "nothing fails"
    line = f"{name}: {what}, {count_of(len(vms_of(spec)), 'VM')} in all."
    return Scenario(name=name, line=line, spec=spec, acts=acts, expect=Expectations(until=Duration(until_s)))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            raw = stream.read(FILE_BYTES + 1)
    except FileNotFoundError:
        remedy = f"a scenario has {README}, {CLUSTER}, {TIMELINE} and {EXPECT}"
        raise NotFound("no such file", place=str(path), remedy=remedy) from None
    if len(raw) > FILE_BYTES:
        raise BadInput(f"is larger than {FILE_BYTES} bytes", place=str(path), remedy="this is no file of a scenario")
    return raw


def read_line(path: Path, problems: Problems) -> str:
    """The story in one line."""
    line = _read(path).decode("utf-8", "replace").strip()
    if not line or "\n" in line or len(line) > LINE_CHARACTERS or not line.isprintable():
        remedy = f"write the story in one line of at most {LINE_CHARACTERS} characters"
        problems.add(str(path), "is not one line", remedy)
    return line


def read_value(path: Path) -> Any:
    """The only document of a YAML file; ``None`` for an empty one."""
    documents = parse_documents(_read(path), str(path))
    if len(documents) > 1:
        raise BadInput("a second document begins", place=documents[1].place, remedy="write one document")
    return _restore_on_key(documents[0].value) if documents else None


def _restore_on_key(value: Any) -> Any:
    """With the names that are written: YAML 1.1 reads a bare ``on`` as true."""
    if isinstance(value, dict):
        return {"on" if key is True else key: _restore_on_key(inner) for key, inner in value.items()}
    return [_restore_on_key(inner) for inner in value] if isinstance(value, list) else value


def _read_spec(value: Any, place: str, problems: Problems) -> WorldSpec | None:
    spec = read_as(value, WorldSpec, place, problems, "see docs/reference/scenarios.md#cluster")
    if spec is None:
        return None
    check_settings(spec.settings, f"{place}: settings", problems)
    names = [host.name for host in hosts_of(spec)]
    if not names:
        problems.add(f"{place}: hosts", "there are none", "write hosts: {count: 4}, or a list")
    for name in sorted({name for name in names if names.count(name) > 1} if len(names) < 1000 else ()):
        problems.add(f"{place}: hosts", f"{name!r} is there twice", "keep one of them")
    known = set(names)
    for vm in vms_of(spec):
        if vm.host not in known:
            problems.add(f"{place}: vms: {vm.name}", f"its host {vm.host!r} is not there", "name one of the hosts")
    networks = {one.name for one in spec.networks}
    for vm in vms_of(spec):
        _check_exist(vm.networks, networks, "network", f"{place}: vms: {vm.name}", problems)
    owners = dict[str, VmSpec]()
    for vm in vms_of(spec):
        for disk in vm.disks or ():
            other = owners.setdefault(disk, vm)
            if other is not vm and not (disk in vm.shared_disks and disk in other.shared_disks):
                what = f"disk {disk!r} is one of VM {other.name} as well"
                problems.add(f"{place}: vms: {vm.name}", what, "name it in sharedDisks of both, or give each its own")
    return spec


def _check_names(spec: WorldSpec, acts: Sequence[Act], expect: Expectations, folder: Path, problems: Problems) -> None:
    """Every host, VM and domain that acts and expectations name must be there, or be made by the story."""
    hosts = {host.name for host in hosts_of(spec)}
    vms = {vm.name for vm in vms_of(spec)} | created_vms(acts)
    domains = {f"rack={host.rack}" for host in hosts_of(spec) if host.rack}
    domains |= {f"{kind}={value}" for host in hosts_of(spec) for kind, value in host.domains.items()}
    for act in acts:
        _check_exist(act.hosts, hosts, "host", act.place, problems)
        _check_exist(act.vms, vms, "VM", act.place, problems)
        if act.arguments.get("domain"):
            _check_exist((act.arguments["domain"],), domains, "failure domain", act.place, problems)
        if act.when is not None:
            _check_states(act.when, hosts, vms, act.place, problems)
    for moment in expect.at:
        _check_states(moment, hosts, vms, f"{folder / EXPECT}: at {moment.at}", problems)
    _check_exist(expect.held if isinstance(expect.held, dict) else (), vms, "VM", f"{folder / EXPECT}: held", problems)


def _check_states(states: States, hosts: set[str], vms: set[str], place: str, problems: Problems) -> None:
    ports = (name.rpartition(".")[0] for name in states.port)
    _check_exist((*states.vm, *states.coverage, *ports), vms, "VM", place, problems)
    _check_exist((*states.membership, *states.host), hosts, "host", place, problems)


def _check_exist(names: Iterable[str], known: set[str], noun: str, place: str, problems: Problems) -> None:
    for name in names:
        if name not in known:
            few = sorted(known) if len(known) <= 12 else [*sorted(known)[:12], "…"]
            problems.add(place, f"there is no {noun} {name!r}", f"there are {', '.join(few) or 'none'}")


def check_settings(settings: Mapping[str, Any], place: str, problems: Problems) -> None:
    """Every section is one of ours, and reads as such."""
    for name, value in settings.items():
        kind = SECTIONS.get(name)
        if kind is None:
            problems.add(place, f"there is no section {name!r}", f"sections are {', '.join(SECTIONS)}")
            continue
        for one in find_mistakes(value, kind, dec_hook=decode_unit):
            problems.add(f"{place}: {path_text((name, *one.at))}", one.text, "see docs/reference/configuration.md")
