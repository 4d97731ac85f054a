"""Who becomes primary, and how the role changes hands."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import decide

from outlive.base.natural import natural_key


def contender(name: str, react_ms: float, **more: Any) -> dict[str, Any]:
    usual = {"mode": "coordinator", "daemon_state": "run", "router_state": "secondary"}
    return {"name": name, "react_ms": react_ms} | usual | more


def contend(*contenders: dict[str, Any], **more: Any) -> dict[str, Any]:
    usual = {"key": {"value": "none", "version": 7}, "lock_timeout_ms": 400, "takeover_delay_ms": 500, "hold_ms": 50}
    return decide("primary.contend", **(usual | {"contenders": contenders} | more))


class TestContest:
    def test_the_first_to_ask_wins_and_the_others_find_it_won(self) -> None:
        assert contend(contender("hv1", 30), contender("hv2", 10), contender("hv3", 70)) == {
            "winner": "hv2",
            "outcomes": {"hv1": "lost_version", "hv2": "won", "hv3": "lost_version"},
            "key_version": 8,
            "takeover_at_ms": 560,
        }

    def test_asking_at_once_natural_order_decides(self) -> None:
        assert contend(contender("hv10", 5), contender("hv2", 5))["winner"] == "hv2"

    def test_only_working_secondary_coordinators_contend(self) -> None:
        answer = contend(
            contender("a", 0, mode="hypervisor"),
            contender("b", 0, daemon_state="init"),
            contender("c", 0, router_state="takeover"),
            contender("d", 0, router_state="primary"),
        )
        assert answer == {
            "winner": None,
            "outcomes": dict.fromkeys("abcd", "not_eligible"),
            "key_version": 7,
            "takeover_at_ms": None,
        }

    def test_nobody_contends_for_a_role_that_is_taken(self) -> None:
        taken = contend(contender("hv1", 0), key={"value": "hv9", "version": 7})
        assert (taken["winner"], taken["outcomes"]) == (None, {"hv1": "not_eligible"})
        assert contend(contender("hv1", 0), key={"value": None, "version": 7})["winner"] == "hv1"
        assert contend()["winner"] is None

    def test_a_waiter_gives_up_after_the_limit_and_not_at_it(self) -> None:
        slow = contend(contender("hv1", 0), contender("hv2", 99), contender("hv3", 100), hold_ms=500)
        assert slow["outcomes"] == {"hv1": "won", "hv2": "lost_lock", "hv3": "lost_version"}

    def test_who_asks_after_the_winner_took_the_lock_for_good_does_not_get_it(self) -> None:
        late = contend(contender("hv1", 0), contender("hv2", 549), contender("hv3", 550), contender("hv4", 551))
        assert [late["outcomes"][name] for name in ("hv2", "hv3", "hv4")] == [
            "lost_version",
            "lost_version",
            "lost_lock",
        ]

    def test_a_name_given_twice_is_refused(self) -> None:
        assert contend(contender("hv1", 0), contender("hv1", 1)) == {"error": "bad-input"}

    @given(
        reacts=st.lists(st.integers(0, 1200), min_size=1, max_size=6),
        hold=st.integers(0, 600),
        timeout=st.integers(0, 500),
        delay=st.integers(0, 700),
    )
    def test_it_is_what_a_queue_followed_millisecond_by_millisecond_gives(
        self, reacts: list[int], hold: int, timeout: int, delay: int
    ) -> None:
        contenders = [contender(f"hv{n}", react) for n, react in enumerate(reacts)]
        answer = contend(*contenders, hold_ms=hold, lock_timeout_ms=timeout, takeover_delay_ms=delay)
        outcomes = followed(dict(enumerate(reacts)), hold, timeout, delay)
        assert answer["outcomes"] == outcomes
        assert list(outcomes.values()).count("won") == 1
        assert answer["key_version"] == 8


def followed(reacts: dict[int, int], hold: int, timeout: int, delay: int) -> dict[str, str]:
    """The contest, an instant after the other: a queue, a holder, a version, and a lock that is taken for good."""
    outcomes: dict[str, str] = {}
    queue: list[tuple[int, str]] = []
    held_until: int | None = None
    holder, version, forever = "", 0, None
    arrivals = sorted((react, natural_key(f"hv{n}"), f"hv{n}") for n, react in reacts.items())
    for now in range(3000):
        queue += [(react, name) for react, _, name in arrivals if react == now]
        if held_until == now:
            held_until, version, forever = None, 1, now + delay
            outcomes[holder] = "won"
        while queue and held_until is None and (forever is None or queue[0][0] <= forever):
            asked, name = queue.pop(0)
            if now - asked > timeout:
                outcomes[name] = "lost_lock"
            elif version:
                outcomes[name] = "lost_version"
            elif hold:
                holder, held_until = name, now + hold
            else:
                outcomes[name], version, forever = "won", 1, now + delay
    return outcomes | {name: "lost_lock" for _, name in queue}


NETWORKS = [{"vni": 1000, "type": "managed"}, {"vni": 200, "type": "managed"}, {"vni": 5, "type": "bridged"}]


def handover(old: dict[str, str] | str | None = "", **more: Any) -> dict[str, Any]:
    leaver = {"name": "hv1", "daemon_state": "run"} if old == "" else old
    usual = {"new": "hv2", "networks": NETWORKS, "enable_api": True, "db": ["ok"], "leaver_stalls_in": None}
    return decide("primary.handover", **(usual | {"old": leaver} | more))


class TestHandover:
    def test_all_steps_in_lock_step(self) -> None:
        assert handover() == {
            "steps": [
                *(
                    "B:hv1:stop_dns",
                    "B:hv1:stop_dhcp:200",
                    "B:hv1:stop_dhcp:1000",
                    "B:hv1:stop_metadata",
                    "B:hv1:stop_api",
                ),
                *("C:hv2:add_upstream", "C:hv1:del_upstream"),
                *("D:hv2:add_cluster", "D:hv2:add_storage", "D:hv1:del_cluster", "D:hv1:del_storage"),
                *("E:hv2:add_metadata_ip", "E:hv1:del_metadata_ip"),
                *(
                    "F:hv2:add_gateways:200",
                    "F:hv2:add_gateways:1000",
                    "F:hv1:del_gateways:200",
                    "F:hv1:del_gateways:1000",
                ),
                *("G:hv2:db_leader", "G:hv2:start_api", "G:hv2:start_metadata", "G:hv2:start_dhcp:200"),
                *("G:hv2:start_dhcp:1000", "G:hv2:start_dns"),
            ],
            "dns_started": True,
            "db_attempts": 1,
            "timeouts": [],
            "final": {"hv2": "primary", "hv1": "secondary"},
        }

    def test_without_an_api_it_is_neither_stopped_nor_started(self) -> None:
        assert not [step for step in handover(enable_api=False)["steps"] if step.endswith("_api")]

    @pytest.mark.parametrize("state", ["dead", "fenced", "stop", "init"])
    def test_a_leaver_that_is_gone_does_nothing(self, state: str) -> None:
        answer = handover({"name": "hv1", "daemon_state": state}, leaver_stalls_in="C")
        assert not [step for step in answer["steps"] if ":hv1:" in step]
        assert (answer["final"], answer["timeouts"]) == ({"hv2": "primary", "hv1": "secondary"}, [])
        nobody = handover(None)
        assert (nobody["steps"], nobody["final"]) == (answer["steps"], {"hv2": "primary"})
        assert [step for step in handover({"name": "hv1", "daemon_state": "shutdown"})["steps"] if ":hv1:" in step]

    def test_the_database_is_tried_for_five_times(self) -> None:
        def tried(*db: str) -> tuple[int, bool]:
            answer = handover(db=db)
            assert answer["dns_started"] is ("G:hv2:start_dns" in answer["steps"])
            assert answer["steps"].count("G:hv2:db_leader") == 1
            return answer["db_attempts"], answer["dns_started"]

        assert tried("same") == (1, True)
        assert tried("fail", "fail", "same") == (3, True)
        assert tried("fail") == (5, False)
        assert tried(*["fail"] * 4, "ok") == (5, True)
        assert tried(*["fail"] * 5, "ok") == (5, False)

    @pytest.mark.parametrize(
        ("stalls", "late", "last"),
        [
            ("A", ["C"], None),
            ("B", ["B", "C"], None),
            ("C", ["D"], "B"),
            ("D", ["E"], "C"),
            ("E", ["F"], "D"),
            ("F", ["G"], "E"),
            ("G", [], "F"),
        ],
    )
    def test_a_leaver_that_hangs_holds_up_the_candidate_once(
        self, stalls: str, late: list[str], last: str | None
    ) -> None:
        answer = handover(leaver_stalls_in=stalls)
        done = [step[0] for step in answer["steps"] if ":hv1:" in step]
        assert (max(done, default=None), answer["timeouts"]) == (last, late)
        assert answer["final"] == {"hv2": "primary", "hv1": "relinquish"}
        whole = [step for step in handover()["steps"] if ":hv2:" in step]
        assert [step for step in answer["steps"] if ":hv2:" in step] == whole

    def test_nobody_takes_over_from_itself(self) -> None:
        assert handover({"name": "hv2", "daemon_state": "run"}) == {"error": "bad-input"}
        assert handover(db=[]) == {"error": "invalid"}

    @given(st.lists(st.integers(1, 3000), unique=True, max_size=5), st.sampled_from([None, *"ABCDEFG"]))
    def test_what_a_live_leaver_gives_up_is_what_the_candidate_takes(self, vnis: list[int], stalls: str | None) -> None:
        answer = handover(networks=[{"vni": vni, "type": "managed"} for vni in vnis], leaver_stalls_in=stalls)
        taken = [re.sub("add", "del", step[6:]) for step in answer["steps"] if ":hv2:add" in step]
        given_up = [step[6:] for step in answer["steps"] if ":hv1:del" in step]
        assert given_up == taken[: len(given_up)]
        assert (given_up == taken) == (stalls in (None, "G") or (stalls == "F" and not vnis))
        phases = [step[0] for step in answer["steps"]]
        assert phases == sorted(phases)
