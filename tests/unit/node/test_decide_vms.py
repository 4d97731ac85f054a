"""What a host does about one virtual machine: events, locks, figures, moves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import decide

STATES = ["start", "stop", "shutdown", "restart", "migrate", "migrate-live", "unmigrate", "disable", "fail"]
OTHERS = ["provision", "import", "restore", "mirror", "delete", "anything"]


def event(state: str, *, here: bool = True, running: bool = True, busy: str | None = None) -> str:
    answer = decide("vm.event", this_node="me", state=state, node="me" if here else "hv2", running=running, busy=busy)
    action: str = answer["action"]
    return action


class TestEvents:
    @pytest.mark.parametrize("busy", ["start", "restart", "migrate", "receive", "stop"])
    @pytest.mark.parametrize("state", STATES)
    def test_a_running_job_is_never_disturbed(self, busy: str, state: str) -> None:
        assert event(state, busy=busy) == event(state, here=False, running=False, busy=busy) == "defer"

    def test_only_a_shutdown_gives_way_to_another_request(self) -> None:
        for state in ("shutdown", "restart", "migrate"):
            assert event(state, busy="shutdown") == "defer"
        for state in ("start", "stop", "disable", "migrate-live", "unmigrate", "fail"):
            assert event(state, busy="shutdown") == "abort_shutdown"

    def test_here_and_running(self) -> None:
        assert {state: event(state) for state in STATES} == {
            "start": "adopt",
            "stop": "destroy",
            "shutdown": "shutdown",
            "restart": "restart",
            "migrate": "settle_start",
            "migrate-live": "settle_start",
            "unmigrate": "settle_start",
            "disable": "destroy",
            "fail": "none",
        }

    def test_here_and_not_running(self) -> None:
        assert {state: event(state, running=False) for state in STATES} == {
            "start": "start",
            "stop": "forget",
            "shutdown": "settle_stop",
            "restart": "write_start",
            "migrate": "receive",
            "migrate-live": "receive",
            "unmigrate": "receive",
            "disable": "none",
            "fail": "none",
        }

    def test_running_here_but_at_home_elsewhere(self) -> None:
        assert {state: event(state, here=False) for state in STATES} == {
            "start": "terminate",
            "stop": "terminate",
            "shutdown": "shutdown",
            "restart": "terminate",
            "migrate": "send",
            "migrate-live": "send_live",
            "unmigrate": "send",
            "disable": "terminate",
            "fail": "terminate",
        }

    @pytest.mark.parametrize("state", [*STATES, *OTHERS])
    def test_neither_here_nor_running(self, state: str) -> None:
        assert event(state, here=False, running=False) == "none"

    @pytest.mark.parametrize("state", OTHERS)
    def test_states_of_others_ask_for_nothing_at_home(self, state: str) -> None:
        assert event(state) == event(state, running=False) == "none"
        assert event(state, here=False) == "terminate"

    @given(st.sampled_from([*STATES, *OTHERS]), st.booleans(), st.booleans())
    def test_nothing_starts_here_that_belongs_elsewhere(self, state: str, here: bool, running: bool) -> None:
        action = event(state, here=here, running=running)
        if action in ("start", "write_start", "receive", "adopt", "settle_start", "restart"):
            assert here
        if action in ("terminate", "send", "send_live"):
            assert not here

    def test_an_unknown_job_is_refused(self) -> None:
        assert decide("vm.event", this_node="a", state="start", node="a", running=True, busy="x") == {
            "error": "invalid"
        }


def lock(id: str, address: str, volume: str = "p/a") -> dict[str, str]:
    return {"volume": volume, "id": id, "locker": "client.1", "address": address}


def locks(*held: dict[str, str], **more: Any) -> dict[str, Any]:
    usual = {"vm_state": "start", "storage_ip": "10.0.0.1", "volumes": ["p/a", "p/b"]}
    return decide("rbd.start_locks", **(usual | {"locks": held, "remove_fails": [], "fenced_ips": []} | more))


MINE, THEIRS = "10.0.0.1:0/77", "10.0.0.2:0/78"


class TestLocks:
    def test_my_own_are_stale_and_removed(self) -> None:
        answer = locks(lock("1", MINE), lock("2", MINE, "p/b"))
        assert answer == {"result": "start", "removed": ["1", "2"], "reason": None, "lock": None}

    def test_one_of_another_host_forbids_the_start_and_what_was_removed_stays_removed(self) -> None:
        answer = locks(lock("1", MINE), lock("2", THEIRS), lock("3", MINE))
        assert answer == {"result": "fail", "removed": ["1"], "reason": "foreign_lock", "lock": "2"}

    def test_one_of_a_host_that_is_proven_dead_is_stale(self) -> None:
        assert locks(lock("1", THEIRS), fenced_ips=["10.0.0.2"])["removed"] == ["1"]
        assert locks(lock("1", THEIRS), fenced_ips=["10.0.0.20"])["reason"] == "foreign_lock"

    def test_a_stopped_vm_has_no_writer(self) -> None:
        assert locks(lock("1", THEIRS), vm_state="stop")["result"] == "start"

    def test_one_that_cannot_be_removed_is_fatal(self) -> None:
        answer = locks(lock("1", MINE), lock("2", MINE), remove_fails=["2"])
        assert answer == {"result": "fail", "removed": ["1"], "reason": "lock_remove_failed", "lock": "2"}
        assert locks(lock("1", THEIRS), remove_fails=["1"])["reason"] == "foreign_lock"
        assert locks(lock("1", THEIRS), remove_fails=["1"], vm_state="stop")["reason"] == "lock_remove_failed"

    def test_locks_of_other_volumes_do_not_matter(self) -> None:
        assert locks(lock("1", THEIRS, "p/c"))["removed"] == []
        assert locks(lock("1", THEIRS), volumes=[])["result"] == "start"

    @pytest.mark.parametrize(
        ("mine", "address", "own"),
        [
            ("fd00::1", "[fd00::1]:0/77", True),
            ("fd00::1", "[fd00:0::0001]:0/77", True),
            ("fd00::1", "[fd00::11]:0/77", False),
            ("10.0.0.1", "10.0.0.11:0/77", False),
            ("10.0.0.1", "10.0.0.1", True),
            ("fd00::1", "fd00::1", True),
            ("10.0.0.1", "", False),
            ("", "", False),
            ("", ":0/77", False),
            ("10.0.0.1", "[10.0.0.2", False),
        ],
    )
    def test_the_owner_is_the_host_part_of_the_address(self, mine: str, address: str, own: bool) -> None:
        assert locks(lock("1", address), storage_ip=mine)["result"] == ("start" if own else "fail")


def accounted(uuid: str, **more: Any) -> dict[str, Any]:
    usual = {
        "node": "me",
        "state": "start",
        "active_here": True,
        "paused": False,
        "live_memory": 100,
        "xml_memory": 128,
    }
    return {"uuid": uuid, "vcpus": 2} | usual | more


def account(*vms: dict[str, Any], total: float = 1000) -> dict[str, Any]:
    return decide("account.node", node="me", memory_total=total, vms=vms)


class TestAccounts:
    def test_every_kind_is_counted_where_it_belongs(self) -> None:
        answer = account(
            accounted("runs"),
            accounted("down", active_here=False, state="stop"),
            accounted("incoming", paused=True),
            accounted("leaving", node="hv2"),
            accounted("elsewhere", node="hv2", active_here=False),
            accounted("foreign-paused", node="hv2", paused=True),
        )
        assert answer == {
            "allocated": 200,
            "provisioned": 200 + 2 * 128,
            "vcpu_allocated": 4,
            "domains_count": 4,
            "running": ["runs", "leaving"],
            "stats_for": ["runs", "leaving"],
            "overprovisioned": False,
        }

    def test_more_promised_than_there_is_is_reported(self) -> None:
        vms = [accounted("a"), accounted("b", active_here=False)]
        assert account(*vms, total=228)["overprovisioned"] is False
        assert account(*vms, total=227)["overprovisioned"] is True
        assert account(total=0)["overprovisioned"] is False

    def test_both_sides_of_a_move_keep_room(self) -> None:
        moving = {"uuid": "m", "node": "target", "state": "migrate", "live_memory": 100, "xml_memory": 128, "vcpus": 1}
        source = decide("account.node", node="source", memory_total=999, vms=[moving | {"active_here": True}])
        target = decide(
            "account.node", node="target", memory_total=999, vms=[moving | {"active_here": True, "paused": True}]
        )
        assert (source["allocated"], source["provisioned"]) == (100, 100)
        assert (target["allocated"], target["provisioned"], target["domains_count"]) == (0, 128, 1)

    @given(
        st.lists(
            st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 9), st.integers(0, 9)), max_size=8
        )
    )
    def test_each_vm_is_counted_once_at_most(self, given_vms: list[tuple[bool, bool, bool, int, int]]) -> None:
        vms = [
            accounted(
                str(n), node="me" if mine else "hv2", active_here=active, paused=paused, live_memory=a, xml_memory=b
            )
            for n, (mine, active, paused, a, b) in enumerate(given_vms)
        ]
        answer, alone = account(*vms), [account(each) for each in vms]
        for figure in ("allocated", "provisioned", "vcpu_allocated", "domains_count"):
            assert answer[figure] == sum(each[figure] for each in alone)
        assert answer["provisioned"] >= answer["allocated"]
        assert answer["running"] == [uuid for each in alone for uuid in each["running"]]
