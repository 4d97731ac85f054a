"""What judging a write costs grows with the size of the object, and not with its square.

One token could otherwise keep the server from renewing the leases of all hosts. Comparisons are counted and no time is
measured, so that a busy machine changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import inspect as types

from outlive.node import (
    NAMED_AFTER_HOSTS,
    RULES_OF_HOSTS,
    RULES_OF_OTHERS,
    Facts,
    HostWriter,
    host_refusal,
    needed_facts,
    write_refusal,
)
from outlive.node.membership import MemberView
from outlive.resources import (
    KINDS,
    ROLES,
    Amounts,
    Assigned,
    Cluster,
    ClusterStatus,
    Cut,
    FormerMembership,
    Holder,
    MemberRecord,
    Membership,
    ObjectMeta,
    Pause,
    Proof,
    Resource,
    VirtualMachine,
    VirtualMachineStatus,
    Vnc,
    limit_of,
    restore_hidden,
    shared_part,
)

pytestmark = pytest.mark.slow

ME = "kvm-1"
AT = datetime(2026, 1, 1, tzinfo=UTC)
ENTRIES = 60
"""Of one list; then there are twice as many."""
_replace = msgspec.structs.replace


class Counted(str):
    """A text that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def comparisons(work: Callable[[], object]) -> int:
    Counted.comparisons = 0
    work()
    return Counted.comparisons


def assert_linear(made: Callable[[int], Callable[[], object]]) -> None:
    """Twice as many entries cost at most three times as much, and no entry more than a few comparisons."""
    cost, cost_of_twice = comparisons(made(ENTRIES)), comparisons(made(2 * ENTRIES))
    assert cost_of_twice <= 3 * cost + 100
    assert cost <= 60 * ENTRIES


# Objects with one long list


def lists_of(kind: type[msgspec.Struct]) -> Iterator[tuple[str, ...]]:
    """The attributes that lead to each list and map of the kind that is in no other one."""
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    for field in info.fields:
        inner = without_none(field.type)
        if limit_of(inner)[1] is not None:
            yield (field.name,)
        elif isinstance(inner, types.StructType):
            yield from ((field.name, *path) for path in lists_of(inner.cls))


def without_none(info: types.Type) -> types.Type:
    if isinstance(info, types.UnionType):
        return next(one for one in info.types if not isinstance(one, types.NoneType))
    return info


def value_of(info: types.Type, word: str) -> Any:
    """A value of the type, whose texts have the word in them and count."""
    info = limit_of(without_none(info))[0]
    match info:
        case types.StructType():
            return struct_of(info.cls, word)
        case types.StrType():
            return Counted(word)
        case types.LiteralType():
            return info.values[0]
        case types.EnumType():
            return next(iter(info.cls))
        case types.VarTupleType():
            return (value_of(info.item_type, word),)
        case types.DictType():
            return {Counted(word): value_of(info.value_type, word)}
        case types.BoolType():
            return False
        case types.IntType() | types.FloatType():
            return 1
        case types.DateTimeType():
            return AT
        case types.CustomType():
            return Amounts(cpu=1000)
        case _:
            return word


def struct_of(struct: type[msgspec.Struct], word: str) -> Any:
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    given = {one.name: value_of(one.type, word) for one in info.fields if one.required}
    of_host = {name: ME for name in ("hypervisor", "host", "by") if name in given}
    return struct(**given | of_host)


def with_list(struct: Any, path: tuple[str, ...], word: str, count: int) -> Any:
    """The struct with so many entries in the list at the path."""
    field = next(one for one in types.type_info(type(struct)).fields if one.name == path[0])  # type: ignore[attr-defined]
    info = limit_of(without_none(field.type))[0]
    if path[1:]:
        inner = getattr(struct, path[0])
        inner = inner if isinstance(inner, msgspec.Struct) else struct_of(info.cls, "same")  # type: ignore[attr-defined]
        return _replace(struct, **{path[0]: with_list(inner, path[1:], word, count)})
    if isinstance(info, types.DictType):
        entries: Any = {Counted(f"{word}{n}"): value_of(info.value_type, f"{word}{n}") for n in range(count)}
    else:
        entries = tuple(value_of(info.item_type, f"{word}{n}") for n in range(count))  # type: ignore[attr-defined]
    return _replace(struct, **{path[0]: entries})


JUDGED = [kind for kind in KINDS.values() if kind in {*RULES_OF_HOSTS, *RULES_OF_OTHERS, *NAMED_AFTER_HOSTS}]
CASES = [(kind, path) for kind in JUDGED for path in lists_of(kind)]
NAMES = [f"{kind.kind()}-{'.'.join(path)}" for kind, path in CASES]


@pytest.mark.parametrize(("kind", "path"), CASES, ids=NAMES)
@pytest.mark.parametrize("words", [("a", "a"), ("a", "b")])
def test_judging_a_long_list_costs_little_for_each_entry(
    kind: type[Resource], path: tuple[str, ...], words: tuple[str, str]
) -> None:
    base = _replace(struct_of(kind, "same"), metadata=ObjectMeta(name=ME))

    def judge(count: int) -> Callable[[], object]:
        before, after = (with_list(base, path, word, count) for word in words)
        cluster = before if isinstance(before, Cluster) else None
        facts = Facts(members=(mine(count),), cluster=cluster, hosts=(ME,))

        def work() -> None:
            for coordinator, term in ((False, 0), (True, 1)):
                who = HostWriter(ME, coordinator, "", term)
                needed_facts(ME, before, after)
                host_refusal(who, before, after, facts)
                host_refusal(who, None, after, facts)
                rule = RULES_OF_HOSTS.get(kind)
                if rule is not None:
                    rule(who, "it", before, after, facts)
            for names in ROLES.values():
                write_refusal(names, before, after, facts)
                rule_of_others = RULES_OF_OTHERS.get(kind)
                if rule_of_others is not None:
                    rule_of_others(names, before, after, facts)

        return work

    assert_linear(judge)


# What each rule looks at closely


def mine(count: int = 0, **record: Any) -> MemberView:
    former = tuple(
        FormerMembership(uid=Counted(f"f{n}"), dead_through=9, proof=Proof(kind="operator", evidence=Counted(f"e{n}")))
        for n in range(count)
    )
    given = {"machine_id": "m", "boot_id": "b", "epoch": 9, "former": former} | record
    return MemberView(host=ME, uid="u", record=MemberRecord(**given))


def entries_of(host: str, word: str, count: int) -> tuple[Holder, ...]:
    return tuple(Holder(hypervisor=host, member_uid="u", epoch=1, run_id=Counted(f"{word}{n}")) for n in range(count))


def held_by(*entries: Holder) -> VirtualMachine:
    status = VirtualMachineStatus(assigned=Assigned(hypervisor=ME), holders=entries)
    return VirtualMachine(metadata=ObjectMeta(name="vm"), status=status)


@pytest.mark.parametrize("host", [ME, "kvm-2"])
def test_a_host_that_writes_many_entries_of_holders_is_judged_quickly(host: str) -> None:
    def judge(count: int) -> Callable[[], object]:
        before = held_by(*entries_of(host, "a", count), *entries_of(ME, "same", count))
        after = held_by(*entries_of(ME, "same", count), *entries_of(ME, "z", count))
        dead = _replace(mine(), host=host, record=mine(dead_through=9).record)
        facts = Facts(members=(dead,) if host == ME else (mine(), dead))

        def work() -> None:
            needed_facts(ME, before, after)
            assert host_refusal(HostWriter(ME), before, after, facts) == ""
            write_refusal(ROLES["controller"], before, after, facts)

        return work

    assert_linear(judge)


def test_entries_of_a_host_that_was_cut_off_from_much_are_judged_quickly() -> None:
    def judge(count: int) -> Callable[[], object]:
        disks = tuple(f"d{n}" for n in range(count))
        before = held_by(*entries_of("kvm-2", "a", 8))
        before = _replace(before, spec=_replace(before.spec, disks=disks))
        cut = Cut(through=9, scope=tuple(Counted(f"disk:d{n}") for n in range(count)))
        other = MemberView(host="kvm-2", uid="u", record=mine(cut=cut).record)
        return lambda: host_refusal(
            HostWriter(ME), before, _replace(before, status=held_by().status), Facts(members=(other,))
        )

    assert_linear(judge)


def test_many_former_memberships_are_judged_quickly() -> None:
    def judge(count: int) -> Callable[[], object]:
        before = Membership(metadata=ObjectMeta(name=ME), record=mine(count).record)
        after = Membership(metadata=ObjectMeta(name=ME), record=mine(count).record)
        after = _replace(after, record=_replace(after.record, seq=1))

        def work() -> None:
            assert host_refusal(HostWriter(ME), before, after) == ""
            write_refusal(ROLES["operator"], before, after)

        return work

    assert_linear(judge)


def test_a_pause_that_waits_for_many_hosts_is_judged_quickly() -> None:
    def judge(count: int) -> Callable[[], object]:
        hosts = tuple(Counted(f"h{n}") for n in range(count))
        before = Cluster(metadata=ObjectMeta(name="default"), status=ClusterStatus(pause=Pause(waits_for=hosts)))
        after = _replace(before, status=ClusterStatus(pause=Pause(waits_for=(*hosts[1:], ME))))
        return lambda: host_refusal(HostWriter(ME), before, after, Facts(hosts=hosts, members=(mine(),)))

    assert_linear(judge)


def test_what_a_host_is_not_shown_of_many_holders_is_restored_quickly() -> None:
    def judge(count: int) -> Callable[[], object]:
        shown = [_replace(one, vnc=Vnc(listen="::1", port=5900)) for one in entries_of("kvm-2", "a", count)]
        before = held_by(*shown)
        seen = shared_part(before)
        wanted = _replace(seen, status=_replace(seen.status, holders=seen.status.holders[::-1]))

        def work() -> None:
            after = restore_hidden(before, seen, wanted, status=True)
            assert isinstance(after, VirtualMachine)
            assert after.status.holders == before.status.holders[::-1]

        return work

    assert_linear(judge)
