"""For which VMs placement is not asked, because no answer would help them."""

from __future__ import annotations

from outlive.recovery import AffectedVm, Free, find_unplaceable, select_longest_waiting

GIB = 2**30
ROOMS = {"small": Free(cpu_milli=1000, memory_bytes=GIB), "large": Free(cpu_milli=8000, memory_bytes=16 * GIB)}


def vm(name: str, gib: int, *, avoid: tuple[str, ...] = (), host_limit: tuple[str, ...] = ()) -> AffectedVm:
    return AffectedVm(id=name, cpu_milli=1000, memory_bytes=gib * GIB, avoid=avoid, host_limit=host_limit)


def in_vain_here(*vms: AffectedVm, takes: frozenset[str] = frozenset(ROOMS)) -> frozenset[str]:
    return find_unplaceable(vms, ROOMS, takes.__contains__)


def test_vms_that_fit_on_some_host_are_asked_about_and_the_others_are_not() -> None:
    assert in_vain_here(vm("fits", 16), vm("fits-exactly", 1), vm("too-large", 17)) == {"too-large"}


def test_a_host_that_takes_no_vms_has_no_room() -> None:
    assert in_vain_here(vm("a", 16), vm("b", 1), takes=frozenset({"small"})) == {"a"}
    assert in_vain_here(vm("a", 1), takes=frozenset()) == {"a"}


def test_hosts_that_refused_the_vm_and_hosts_that_it_may_not_run_on_do_not_count() -> None:
    avoiding, limited = vm("avoiding", 16, avoid=("large",)), vm("limited", 16, host_limit=("small",))
    assert in_vain_here(avoiding, limited, vm("free", 16)) == {"avoiding", "limited"}


def test_a_vm_without_a_size_needs_no_room() -> None:
    assert in_vain_here(AffectedVm(id="empty")) == frozenset()


def test_everybody_is_asked_about_before_anybody_is_asked_about_again() -> None:
    everybody = [f"vm-{number}" for number in range(10)]
    asked: dict[str, int] = {}
    turns: list[str] = []
    for _ in range(5):
        for vm in select_longest_waiting(everybody, asked, 4):
            turns.append(vm)
            asked[vm] = len(turns)
    assert turns[:10] == everybody
    assert turns[10:20] == everybody


def test_a_new_vm_is_asked_about_first_in_the_order_of_restart() -> None:
    assert select_longest_waiting(["important", "old", "new"], {"old": 7}, 2) == ["important", "new"]
