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

    def test_only_a_shutdown_gives_way_to_another_wish(self) -> None:
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

    def test_more_promised_than_there_is_is_told(self) -> None:
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


def move(*faults: tuple[Any, ...], **more: Any) -> dict[str, Any]:
    told = [{"phase": phase, "fault": fault} | (rest[0] if rest else {}) for phase, fault, *rest in faults]
    usual = {"source": "hv1", "target": "hv2", "state": "migrate", "method": "none"}
    homes = {"prior_last_node": "", "new_last_node": "hv1"}
    return decide("migration.run", **(usual | homes | {"faults": told} | more))


def course(*faults: tuple[Any, ...], **more: Any) -> tuple[str, str | None, int, list[str]]:
    answer = move(*faults, **more)
    return answer["result"], answer["reason"], answer["attempts"], answer["phases"]


SENDS = ["requested", "target_ready", "transferring"]
STOPS = ["requested", "target_ready", "stopping"]
FAULTS = [
    *("target_silent", "node_changed", "max_downtime_error", "live_error"),
    *("source_lost", "target_lost", "guest_ignores", "state_changed"),
]
FAILS = ("transferring", "live_error", {"count": 3})


class TestMoves:
    def test_a_live_move_succeeds(self) -> None:
        assert move() == {
            "phases": [*SENDS, "transferred", "committed"],
            "result": "live",
            "reason": None,
            "attempts": 1,
            "forced_off": False,
            "final": {"state": "start", "node": "hv2", "last_node": "hv1", "running_on": "hv2"},
            "locks_held": 0,
        }

    def test_up_to_three_attempts_then_the_guest_is_stopped_if_that_is_allowed(self) -> None:
        for count in range(3):
            assert course(("transferring", "live_error", {"count": count}))[:3] == ("live", None, count + 1)
        for count in (3, 9):
            fails = ("transferring", "live_error", {"count": count})
            phases = [*SENDS, "stopping", "stopped", "committed"]
            assert course(fails) == ("shutdown", None, 3, phases)
        for only in ({"state": "migrate-live"}, {"method": "live"}):
            assert course(FAILS, **only) == ("aborted", "live_failed", 3, [*SENDS, "aborted"])

    def test_a_move_by_shutdown_makes_no_live_attempt(self) -> None:
        assert course(method="shutdown") == ("shutdown", None, 0, [*STOPS, "stopped", "committed"])
        forbidden = course(method="shutdown", state="migrate-live")
        assert forbidden == ("aborted", "live_forbidden", 0, ["requested", "target_ready", "aborted"])

    def test_what_goes_wrong_before_the_transfer_aborts(self) -> None:
        early, ready = ["requested", "aborted"], ["requested", "target_ready", "aborted"]
        assert course(target="hv1") == ("aborted", "self_target", 0, early)
        assert course(("requested", "target_silent")) == ("aborted", "peer_timeout", 0, early)
        assert course(("requested", "node_changed")) == ("aborted", "target_changed", 0, early)
        assert course(("target_ready", "node_changed")) == ("aborted", "target_changed", 0, ready)
        assert course(("target_ready", "max_downtime_error")) == ("aborted", "max_downtime", 0, ready)
        assert course(("target_ready", "max_downtime_error"), method="shutdown")[0] == "shutdown"

    def test_an_aborted_move_leaves_everything_at_the_source(self) -> None:
        final = move(("requested", "target_silent"), prior_last_node="hv7")["final"]
        assert final == {"state": "start", "node": "hv1", "last_node": "hv7", "running_on": "hv1"}

    def test_a_side_that_dies(self) -> None:
        away = {"state": "start", "node": "hv2", "last_node": "hv1", "running_on": None}
        lost = move(("transferring", "source_lost"))
        assert (lost["result"], lost["reason"], lost["attempts"]) == ("orphaned", "source_lost", 1)
        assert (lost["phases"], lost["final"]) == ([*SENDS, "orphaned"], away)
        assert course(("transferring", "target_lost")) == ("aborted", "target_lost", 1, [*SENDS, "aborted"])
        late = move(("transferred", "target_lost"))
        assert (late["result"], late["reason"], late["final"]) == ("orphaned", "target_lost", away)
        assert late["phases"] == [*SENDS, "transferred", "orphaned"]
        down = course(("stopped", "target_lost"), method="shutdown")
        assert down == ("orphaned", "target_lost", 0, [*STOPS, "stopped", "orphaned"])

    def test_a_guest_that_ignores_the_request_is_stopped_hard(self) -> None:
        answer = move(("stopping", "guest_ignores"), method="shutdown")
        assert (answer["result"], answer["forced_off"]) == ("shutdown", True)
        assert move(("stopping", "guest_ignores"))["forced_off"] is False

    def test_another_wish_while_the_guest_stops(self) -> None:
        cancelled = move(("stopping", "state_changed", {"to": "start"}), method="shutdown")
        assert (cancelled["result"], cancelled["reason"]) == ("aborted", "cancelled")
        assert cancelled["final"]["running_on"] == "hv1"
        stopped = move(("stopping", "state_changed", {"to": "stop"}), method="shutdown")
        assert (stopped["result"], stopped["reason"], stopped["phases"]) == ("stopped", None, [*STOPS, "stopped"])
        assert stopped["final"] == {"state": "stop", "node": "hv2", "last_node": "hv1", "running_on": None}
        assert move(("stopping", "state_changed")) == {"error": "bad-input"}

    @given(
        faults=st.lists(
            st.fixed_dictionaries(
                {
                    "phase": st.sampled_from([*SENDS, "stopping", "transferred", "stopped"]),
                    "fault": st.sampled_from(FAULTS),
                    "count": st.integers(0, 4),
                    "to": st.sampled_from(["start", "stop"]),
                }
            ),
            max_size=4,
        ),
        state=st.sampled_from(["migrate", "migrate-live"]),
        method=st.sampled_from(["none", "live", "shutdown"]),
    )
    def test_whatever_happens_no_lock_is_held_and_one_host_is_named(
        self, faults: list[dict[str, Any]], state: str, method: str
    ) -> None:
        answer = move(state=state, method=method, faults=faults)
        final = answer["final"]
        assert answer["locks_held"] == 0
        assert answer["phases"][0] == "requested"
        assert len(set(answer["phases"])) == len(answer["phases"])
        assert final["node"] == ("hv1" if answer["result"] == "aborted" else "hv2")
        assert final["running_on"] == (None if answer["result"] in ("stopped", "orphaned") else final["node"])
        assert (final["state"] == "stop") == (answer["result"] == "stopped")
        assert answer["attempts"] <= 3
        assert (answer["reason"] is None) == (answer["result"] in ("live", "shutdown", "stopped"))
        if state == "migrate-live" or method == "live":
            assert "stopping" not in answer["phases"]
