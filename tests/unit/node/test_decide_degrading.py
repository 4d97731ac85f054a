"""Hosts that get slow: how they are scored, and whether their virtual machines leave."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import decide, node

WINDOW, QUIET = 30, 180
GOOD, SLOW = 0.0, 0.9
"""Shares of time in which the disks make everything wait."""


def every(step: float, values: Iterable[float], *, until: float = WINDOW) -> list[list[float]]:
    """Samples at that distance, the last one at ``until``."""
    listed = list(values)
    return [[until - step * (len(listed) - 1 - n), value] for n, value in enumerate(listed)]


def score(now: float = WINDOW, before: dict[str, Any] | None = None, **samples: list[list[float]]) -> dict[str, Any]:
    more = {} if before is None else {"before": before}
    return decide("host.score", now=now, window=WINDOW, quiet=QUIET, samples=samples, **more)


def level(answer: dict[str, Any]) -> str:
    return str(answer["standing"]["level"])


class TestScoring:
    def test_host_whose_window_was_mostly_bad_degrades_and_says_by_what(self) -> None:
        answer = score(disk=every(5, [GOOD, GOOD, SLOW, SLOW, SLOW, SLOW]), hypervisor=every(5, [0.01] * 6))
        assert level(answer) == "degrading"
        assert answer["standing"]["causes"] == ["disk"]
        assert (answer["score"], answer["parts"]["hypervisor"]["score"]) == (0, 100)

    def test_a_few_bad_samples_say_nothing(self) -> None:
        assert level(score(disk=every(5, [GOOD, GOOD, GOOD, SLOW, SLOW, SLOW]))) == "well"
        assert level(score(disk=every(5, [SLOW, SLOW, SLOW]))) == "well"

    def test_one_hiccup_that_delays_many_things_is_one(self) -> None:
        assert level(score(keepalive=every(0.2, [3.0] * 20))) == "well"
        assert level(score(keepalive=every(1, [3.0] * 20))) == "degrading"

    def test_part_that_sinks_all_the_time_degrades_before_most_of_it_is_bad(self) -> None:
        sinking = every(2, [0.1 + 0.022 * n for n in range(15)])
        answer = score(disk=sinking)
        assert answer["parts"]["disk"]["bad"] < 0.6 * answer["parts"]["disk"]["samples"]
        assert answer["parts"]["disk"]["slope"] < -100
        assert level(answer) == "degrading"

    def test_a_step_down_is_no_slope(self) -> None:
        assert level(score(disk=every(2, [GOOD] * 9 + [0.45] * 6))) == "well"

    def test_recovery_takes_longer_than_the_window(self) -> None:
        degraded = score(disk=every(5, [SLOW] * 6))["standing"]
        good = every(5, [GOOD] * 6, until=WINDOW + 60)
        still = score(WINDOW + 60, degraded, disk=good)
        assert (level(still), still["score"], still["standing"]["causes"]) == ("degrading", 100, ["disk"])
        later = WINDOW + QUIET
        assert level(score(later, still["standing"], disk=every(5, [GOOD] * 6, until=later))) == "well"

    def test_host_that_comes_and_goes_degrades_all_the_time_since_it_began(self) -> None:
        standing = score(disk=every(5, [SLOW] * 6))["standing"]
        for turn in range(1, 9):
            now = WINDOW + turn * 90
            standing = score(now, standing, disk=every(5, [SLOW if turn % 2 else GOOD] * 6, until=now))["standing"]
            assert (standing["level"], standing["since"]) == ("degrading", WINDOW)

    def test_what_was_not_measured_has_no_score_and_accuses_nobody(self) -> None:
        answer = score(disk=every(5, [SLOW] * 6, until=-1))
        assert (answer["parts"], answer["score"], level(answer)) == ({}, 100, "well")

    def test_samples_in_the_wrong_order_are_no_input(self) -> None:
        assert score(disk=[[2, GOOD], [1, GOOD]]) == {"error": "bad-input"}
        assert score(fans=[[1, GOOD]]) == {"error": "invalid"}

    @given(st.lists(st.tuples(st.floats(0, 60), st.floats(0, 5)), max_size=40), st.floats(0, 60))
    def test_every_score_lies_between_nothing_and_all(self, samples: list[tuple[float, float]], now: float) -> None:
        ordered = [list(one) for one in sorted(samples)]
        answer = score(now, keepalive=ordered, store=ordered, disk=ordered, hypervisor=ordered)
        scores = [part["score"] for part in answer["parts"].values()]
        assert all(0 <= one <= 100 for one in scores)
        assert answer["score"] == min(scores, default=100)
        assert set(answer["standing"]["causes"]) == {n for n, part in answer["parts"].items() if part["degrades"]}


def peer(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def slow(name: str, cause: str = "disk", leaving: str = "stays", **more: Any) -> dict[str, Any]:
    return peer(name, degrading=True, causes=[cause], leaving=leaving, **more)


PEERS = [peer(f"hv{n}") for n in range(2, 10)]


def leave(*peers: dict[str, Any], **more: Any) -> str:
    usual = {"host": "hv5x", "degrading_for": 60, "causes": ["disk"], "scores": {"disk": 0}, "peers": peers or PEERS}
    answer = decide("host.leave", **(usual | more))
    assert answer["go"] == (answer["why"] == "")
    return str(answer["why"])


class TestLeaving:
    def test_host_that_is_slow_alone_is_left(self) -> None:
        assert leave() == ""
        assert leave(peer("hv2")) == ""

    def test_reasons_of_the_host_itself_come_first(self) -> None:
        assert leave(degrading_for=None, action="off") == "well"
        assert leave(action="tell") == leave(action="off") == "off"
        assert leave(draining=True) == "draining"
        assert leave(maintenance=True) == "maintenance"
        assert leave(storage_lost=True, degrading_for=1) == "storage_lost"
        assert leave(degrading_for=29.9) == "unsettled"
        assert leave(failures=3) == "failing"
        assert leave(failures=3, failures_limit=0) == ""

    def test_nobody_leaves_for_hosts_that_are_slow_or_do_not_work(self) -> None:
        assert leave(slow("hv2", "store"), causes=["disk"]) == "alone"
        assert leave(peer("hv2", works=False)) == "alone"

    def test_trouble_that_many_hosts_have_is_not_the_hosts_own(self) -> None:
        two = [slow("hv2"), slow("hv3"), *PEERS[2:]]
        assert leave(*two, common_share=0.25) == "common_cause"
        assert leave(*two, common_share=0.5) == ""
        assert leave(slow("hv2"), peer("hv3")) == "common_cause"
        assert leave(slow("hv2"), slow("hv3")) == "common_cause"

    def test_other_troubles_do_not_count_but_late_renewals_are_those_of_the_store(self) -> None:
        others = [slow("hv2", "hypervisor"), slow("hv3", "hypervisor"), *PEERS[2:]]
        assert leave(*others) == ""
        stores = [slow("hv2", "store"), slow("hv3", "store"), *PEERS[2:]]
        assert leave(*stores, causes=["keepalive"]) == "common_cause"

    def test_host_that_is_hardly_slower_than_the_others_is_not_left(self) -> None:
        same = [peer(f"hv{n}", scores={"store": 55}) for n in range(2, 9)]
        assert leave(*same, causes=["store"], scores={"store": 40}) == "like_others"
        assert leave(*same, causes=["store"], scores={"store": 20}) == ""
        assert leave(*same, causes=["store", "disk"], scores={"store": 40, "disk": 0}) == ""

    def test_one_host_is_left_at_a_time_unless_a_share_of_them_may_be(self) -> None:
        left = [slow("hv9", "hypervisor", "leaves"), *PEERS]
        assert leave(*left) == "in_line"
        assert leave(*left, leaving_share=0.3) == ""
        assert leave(slow("hv9", "hypervisor", "waits"), *PEERS) == ""
        assert leave(slow("hv2", "hypervisor", "waits"), *PEERS) == "in_line"
        assert leave(slow("hv2", "hypervisor", "stays"), *PEERS) == ""

    def test_of_two_that_are_left_by_mistake_the_later_by_name_stops(self) -> None:
        assert leave(slow("hv2", "hypervisor", "leaves"), *PEERS, leaves=True) == "in_line"
        assert leave(slow("hv9", "hypervisor", "leaves"), *PEERS, leaves=True) == ""

    def test_the_dead_count_for_nothing(self) -> None:
        assert leave(slow("hv2", "disk", "leaves", works=False), *PEERS) == ""


class TestPlaces:
    def test_hosts_that_degrade_are_chosen_only_where_no_other_will_do(self) -> None:
        wanted = {"node": "me", "memory": 4, "vcpus": 1}
        both = [node("bad", free=99, degrading=True), node("good", free=9)]
        assert decide("select.node", vm=wanted, nodes=both)["target"] == "good"
        assert decide("select.node", vm=wanted, nodes=both[:1])["target"] == "bad"

    def test_who_may_stay_is_not_shut_down_where_there_is_no_room(self) -> None:
        vm = {"uuid": "a", "state": "start", "node": "me", "memory": 9, "vcpus": 1}
        given_flush = {"node": "me", "op": "flush", "running": ["a"], "vms": [vm], "nodes": [], "require_fit": True}
        assert decide("flush.run", **given_flush)["steps"] == [{"vm": "a", "do": "shutdown", "autostart": True}]
        assert decide("flush.run", **given_flush, stay=True)["steps"] == [{"vm": "a", "do": "skip"}]
