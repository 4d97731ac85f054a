"""Who is shown what, and what is left of an object that is written back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.readers_table import readers_table
from tests.unit.resources.examples import FULL

from outlive.api import Identity, Role, visible_part
from outlive.base import Forbidden
from outlive.resources import (
    HOST_LABEL,
    KINDS,
    READERS,
    USER_DATA,
    VERBS,
    Assigned,
    Console,
    Holder,
    Migration,
    ObjectMeta,
    PreferredHosts,
    Resource,
    Token,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    encode,
    find_reads,
    has_uuid,
    hosts_of,
    restore_hidden,
    shared_part,
    without_passwords,
)
from outlive.resources.readers import ROLES

DOCS = Path(__file__).parents[3] / "docs/reference/permissions.md"
UUID = "6f9619ff-8b86-4011-b42d-00cf4fc964ff"
_replace = msgspec.structs.replace


def full(kind: type[Resource]) -> Any:
    return next(one for one in FULL if type(one) is kind)


def test_the_manual_prints_the_table() -> None:
    assert readers_table() in DOCS.read_text()


def test_every_kind_is_in_the_table_and_every_role_of_it_is_known() -> None:
    assert set(READERS) == set(KINDS.values())
    assert {role for row in READERS.values() for role in row} == set(ROLES)


@pytest.mark.parametrize("role", ["scheduler", "liquid", "join", "nobody"])
def test_a_role_that_the_table_does_not_name_reads_nothing(role: str) -> None:
    assert [kind for kind in KINDS.values() for verb in VERBS if find_reads(role, kind, verb)] == []


def test_what_leaves_a_host_can_be_shown_as_a_deletion() -> None:
    """In a watch it is sent once more, as a single object of another host is shown."""
    for kind, row in READERS.items():
        for role, found in row.items():
            if found.own and "watch" in found.verbs and kind.kind() != "HostLog":  # a log never changes its host
                assert "get" in found.rest_verbs, (kind, role)


def vm(**status: Any) -> VirtualMachine:
    return VirtualMachine(metadata=ObjectMeta(name="vm-1"), status=VirtualMachineStatus(**status))


@pytest.mark.parametrize(
    ("one", "hosts"),
    [
        (vm(), set()),
        (vm(assigned=Assigned(hypervisor="a")), {"a"}),
        (vm(holders=(Holder(hypervisor="a"), Holder(hypervisor="b"))), {"a", "b"}),
        (vm(migration=Migration(id="1", source="a", target="b")), {"a", "b"}),
        (vm(home="a"), {"a"}),
        (_replace(vm(), metadata=ObjectMeta(name="vm-1", labels={HOST_LABEL: "a"})), {"a"}),
        (_replace(vm(), spec=VirtualMachineSpec(preferred_hosts=PreferredHosts(weights={"a": 1}))), set()),
        (
            _replace(vm(), spec=VirtualMachineSpec(failback="auto", preferred_hosts=PreferredHosts(weights={"a": 1}))),
            {"a"},
        ),
    ],
)
def test_a_vm_belongs_to_the_hosts_that_have_to_do_with_it(one: VirtualMachine, hosts: set[str]) -> None:
    assert set(hosts_of(one)) == hosts


def test_a_host_that_merely_holds_a_vm_gets_nothing_that_belongs_to_the_vm() -> None:
    held = vm(assigned=Assigned(hypervisor="a"), home="b", holders=(Holder(hypervisor="a"), Holder(hypervisor="c")))
    assert (held.involved_hosts(), held.placed_hosts(), held.bound_hosts()) == ({"a", "c"}, {"a", "b"}, {"a"})
    console = full(Console)
    shown = {host: visible_part(Identity("t", Role.HOST, host), console, vm=held) is not None for host in "abcd"}
    assert shown == {"a": True, "b": True, "c": False, "d": False}


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_no_digest_of_a_token_is_shown_whichever_of_its_secrets_it_is_of(role: str) -> None:
    found, token = find_reads(role, Token), full(Token)
    assert found is not None
    shown = encode(found.select_part(token, "get", own=False))
    for digest in (token.digest, token.next_digest, token.former_digest):
        assert digest
        assert digest.encode() not in shown


@pytest.mark.parametrize(
    "attribute",
    ["passwd='hunter2'", 'passwd="hunter2"', "passwd = 'hunter2'", "passwd\n=\t'hunter2'", "passwd='a>hunter2'"],
)
def test_passwords_are_left_out_wherever_they_are(attribute: str) -> None:
    definition = f"<domain><devices><graphics type='vnc' {attribute} port='-1'/></devices></domain>"
    applied = json.dumps({"spec": {"definition": definition}})
    quoted = json.dumps({"kept": applied})
    meta = ObjectMeta(name="vm-1", annotations={"applied": applied, "quoted": quoted, "note": "any"})
    shown = without_passwords(VirtualMachine(metadata=meta, spec=VirtualMachineSpec(definition=definition)))
    assert b"hunter2" not in encode(shown)
    assert shown.metadata.annotations["note"] == "any"
    assert json.loads(shown.metadata.annotations["applied"])["spec"]["definition"] == shown.spec.definition
    assert "type='vnc'" in shown.spec.definition
    assert "port='-1'" in shown.spec.definition


@pytest.mark.parametrize(
    "text", ["passwd=" + "\\" * 9 + "'x", "passwd='" * 30_000, "passwd=" + " " * 200_000, "passwd"]
)
def test_what_is_no_password_costs_no_time(text: str) -> None:
    one = VirtualMachine(metadata=ObjectMeta(name="vm-1", annotations={"a": text}))
    assert set(without_passwords(one).metadata.annotations) == {"a"}


def test_of_a_vm_of_another_host_nothing_is_left_that_its_user_wrote() -> None:
    one: VirtualMachine = full(VirtualMachine)
    written = f"<domain><name>secret</name><uuid>{UUID}</uuid></domain>"
    one = _replace(one, spec=_replace(one.spec, definition=written))
    shown = shared_part(one)
    assert has_uuid(shown.spec.definition, UUID)
    assert (shown.spec.disks, shown.spec.ports, shown.spec.start_after) == (("disks",), ("ports",), ("start_after",))
    assert shown.spec.affinity_rules == one.spec.affinity_rules
    assert (shown.involved_hosts(), shown.status.home, shown.metadata.labels) == (
        one.involved_hosts(),
        "h1",
        one.metadata.labels,
    )
    kept = {"definition", "server_group", "server_group_policy", "affinity", "power_state", "disks", "ports"}
    kept |= {"network_policy", "start_after", "shared_disks"}
    empty = VirtualMachineSpec()
    left = {name for name in VirtualMachineSpec.__struct_fields__ if getattr(shown.spec, name) != getattr(empty, name)}
    assert left <= kept
    assert [one.vnc for one in shown.status.holders] == [None]
    assert b"secret" not in encode(shown)
    assert shown.metadata.annotations == {}


@pytest.mark.parametrize(
    ("source", "told"), [("bridge='vmbr10'", True), ("bridge='br0'", False), ("network='n'", False)]
)
def test_a_coordinator_is_shown_of_a_vm_of_another_host_what_the_guest_is_told(source: str, told: bool) -> None:
    """And nothing else of what its user wrote; a plain host is not shown even that."""
    one: VirtualMachine = full(VirtualMachine)
    definition = f"<domain><devices><interface><source {source}/></interface></devices><name>secret</name></domain>"
    meta = _replace(one.metadata, annotations={USER_DATA: "#cloud-config", "other": "secret"})
    one = _replace(one, metadata=meta, spec=_replace(one.spec, definition=definition, flavor="small"))
    shown = {
        role: found.select_part(one, "list", own=False)
        for role in ("host", "coordinator")
        if (found := find_reads(role, VirtualMachine, "list")) is not None
    }
    assert shown["host"] == shared_part(one)
    seen = shown["coordinator"]
    assert isinstance(seen, VirtualMachine)
    assert (seen.metadata.annotations, seen.spec.flavor) == (
        ({USER_DATA: "#cloud-config"}, "small") if told else ({}, "")
    )
    hidden = _replace(seen, metadata=_replace(seen.metadata, annotations={}), spec=_replace(seen.spec, flavor=""))
    assert hidden == shared_part(one)


@pytest.mark.parametrize("more", ["", "<!-- <uuid>{other}</uuid> -->", "<metadata><uuid>{other}</uuid></metadata>"])
def test_the_uuid_of_a_vm_of_another_host_is_that_of_its_definition(more: str) -> None:
    other = "0" * 8 + UUID[8:]
    definition = f"<domain>{more.format(other=other)}<uuid>\n{UUID}</uuid></domain>"
    shown = shared_part(VirtualMachine(spec=VirtualMachineSpec(definition=definition))).spec.definition
    assert (has_uuid(shown, UUID), has_uuid(shown, other)) == (True, False)


@pytest.mark.parametrize("status", [False, True])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_what_is_written_back_as_it_was_shown_changes_nothing(kind: type[Resource], role: str, status: bool) -> None:
    current, found = full(kind), find_reads(role, kind)
    for own in (True, False) if found is not None else ():
        seen = found.select_part(current, "get", own=own) if found is not None else None
        if seen is not None:
            names = [name for name in kind.__struct_fields__ if not kind.has_status() or (name == "status") is status]
            merged = restore_hidden(current, seen, seen, status=status)
            assert [name for name in names if getattr(merged, name) != getattr(current, name)] == []


labels = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=3)


@given(mine=st.lists(st.sampled_from("abcd"), unique=True), labels=labels)
def test_what_a_host_writes_is_written_and_what_it_was_not_shown_is_kept(mine: list[str], labels: Any) -> None:
    current: VirtualMachine = full(VirtualMachine)
    seen = shared_part(current)
    holders = (*seen.status.holders, *(Holder(hypervisor=name) for name in mine))
    status = restore_hidden(
        current, seen, _replace(seen, status=_replace(seen.status, holders=holders)), status=True
    ).status
    assert status == _replace(current.status, holders=(*current.status.holders, *holders[1:]))
    relabelled = _replace(seen, metadata=_replace(seen.metadata, labels=labels))
    merged = restore_hidden(current, seen, relabelled)
    assert isinstance(merged, VirtualMachine)
    assert (merged.metadata, merged.spec) == (_replace(current.metadata, labels=labels), current.spec)


def test_a_definition_with_a_password_is_not_changed_by_who_is_not_shown_it() -> None:
    text = "<domain><graphics passwd='hunter2'/></domain>"
    current = VirtualMachine(metadata=ObjectMeta(name="vm-1"), spec=VirtualMachineSpec(definition=text))
    seen = without_passwords(current)
    for changed in ("<domain/>", "", text):
        wanted = _replace(seen, spec=_replace(seen.spec, definition=changed))
        with pytest.raises(Forbidden, match="is not shown, and would lose it") as caught:
            restore_hidden(current, seen, wanted)
        assert caught.value.place == "spec.definition"
    free = VirtualMachine(metadata=ObjectMeta(name="vm-1"), spec=VirtualMachineSpec(definition="<domain/>"))
    wanted = _replace(free, spec=_replace(free.spec, definition="<domain type='kvm'/>"))
    assert restore_hidden(free, without_passwords(free), wanted) == wanted
