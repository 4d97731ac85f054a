"""Suspecting hosts, reading power, and the timing of fencing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import decide

from outlive.node.fencing import PROFILES, ProfileName, default_profile, profile_of
from outlive.resources import FencingPolicy, FencingSpec, Timing

CONFIG = {"keepalive_interval": 5, "fence_intervals": 6, "storm_fraction": 0.5, "transition_grace": 300}
OBSERVER = {"name": "hv1", "mode": "coordinator", "connected": True, "own_age": 1.0, "uptime": 1000.0}


def peer(name: str, state: str = "run", age: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"name": name, "daemon_state": state, "age": age, "assigned_vms": 0, "fence_owner": None} | more


def evaluate(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return decide("fence.evaluate", **({"config": CONFIG, "observer": OBSERVER, "nodes": nodes} | more))


def nobody(reason: str) -> dict[str, Any]:
    return {"suspects": [], "adopt": [], "reason": reason}


class TestSuspicion:
    ONE_SILENT = (peer("hv2", age=31), peer("hv3"), peer("hv4"), peer("hv5", "dead"))

    def test_a_host_is_suspected_only_after_more_than_the_limit(self) -> None:
        assert evaluate(peer("hv2", age=30.0), peer("hv3"))["suspects"] == []
        assert evaluate(peer("hv2", age=30.1), peer("hv3"))["suspects"] == ["hv2"]

    def test_nobody_is_suspected_and_nothing_adopted_where_the_observer_should_not_judge(self) -> None:
        nodes = self.ONE_SILENT
        assert evaluate(*nodes) == {"suspects": ["hv2"], "adopt": ["hv5"], "reason": None}
        assert evaluate(*nodes, maintenance=True) == nobody("maintenance")
        assert evaluate(*nodes, observer=OBSERVER | {"mode": "hypervisor"}) == nobody("not_coordinator")
        assert evaluate(*nodes, config=CONFIG | {"fence_intervals": 0}) == nobody("disabled")
        assert evaluate(*nodes, observer=OBSERVER | {"connected": False}) == nobody("observer_stale")
        assert evaluate(*nodes, observer=OBSERVER | {"own_age": 10}) == nobody("observer_stale")
        assert evaluate(*nodes, observer=OBSERVER | {"own_age": 9.9})["reason"] is None
        assert evaluate(*nodes, observer=OBSERVER | {"uptime": 29.9}) == nobody("observer_grace")
        assert evaluate(*nodes, observer=OBSERVER | {"uptime": 30})["reason"] is None

    def test_the_first_of_several_reasons_is_given(self) -> None:
        unfit = OBSERVER | {"mode": "hypervisor", "connected": False, "uptime": 0}
        off = CONFIG | {"fence_intervals": 0}
        assert evaluate(observer=unfit, config=off, maintenance=True)["reason"] == "maintenance"
        assert evaluate(observer=unfit, config=off)["reason"] == "not_coordinator"
        fit = OBSERVER | {"connected": False, "uptime": 0}
        assert evaluate(observer=fit, config=off)["reason"] == "disabled"
        assert evaluate(observer=fit)["reason"] == "observer_stale"

    def test_the_observer_counts_once_whether_it_is_listed_or_not(self) -> None:
        silent = [peer("hv2", age=99), peer("hv3", age=99)]
        # Two of three are a storm; two of four are not more than half.
        assert evaluate(*silent)["reason"] == "storm"
        assert evaluate(*silent, peer("hv1"))["reason"] == "storm"
        assert evaluate(*silent, peer("hv4"))["suspects"] == ["hv2", "hv3"]
        assert evaluate(*silent, peer("hv1"), peer("hv4"))["suspects"] == ["hv2", "hv3"]
        assert evaluate(*silent, peer("hv4", "stop"))["reason"] == "storm"

    def test_a_storm_suspects_nobody_but_fences_of_others_are_taken_up(self) -> None:
        stuck = peer("hv9", "init", age=999, assigned_vms=3)
        nodes = [peer("hv2", age=99), peer("hv3", age=99), peer("hv8", "dead"), stuck]
        assert evaluate(*nodes) == {"suspects": [], "adopt": ["hv8"], "reason": "storm"}

    def test_one_rack_that_dies_is_one_failure(self) -> None:
        dead = [peer(f"hv{n}", age=99, domain="r2") for n in range(10, 16)]
        alive = [peer("hv1", domain="r1"), peer("hv2", domain="r1"), peer("hv3", domain="r3")]
        assert evaluate(*dead, *alive)["reason"] is None
        assert len(evaluate(*dead, *alive)["suspects"]) == 6
        alone = [each | {"domain": None} for each in dead]
        assert evaluate(*alone, *alive)["reason"] == "storm"

    def test_most_racks_silent_are_a_storm_and_a_host_in_most_racks_is_none(self) -> None:
        racks = [peer(f"hv{n}", age=0, domain=f"r{n % 4}") for n in range(2, 42)]
        two_of_three = [each | {"age": 99} if each["domain"] != "r1" else each for each in racks]
        assert evaluate(*two_of_three)["reason"] == "storm"
        one_each = [each | {"age": 99} if each["name"] in ("hv4", "hv7", "hv10") else each for each in racks]
        assert evaluate(*one_each)["suspects"] == ["hv4", "hv7", "hv10"]

    def test_both_hosts_and_domains_must_be_more_than_the_fraction(self) -> None:
        # One of two racks; half of four hosts, in two of three racks.
        rack = [peer("hv2", age=99, domain="r2"), peer("hv3", age=99, domain="r2")]
        assert evaluate(*rack, peer("hv1", domain="r1"))["suspects"] == ["hv2", "hv3"]
        half = [peer("hv2", age=99, domain="r2"), peer("hv3", age=99, domain="r3")]
        assert evaluate(*half, peer("hv1", domain="r1"), peer("hv4", domain="r1"))["suspects"] == ["hv2", "hv3"]
        assert evaluate(*half, peer("hv1", domain="r1"))["reason"] == "storm"

    def test_a_host_stuck_in_transition_is_suspected_only_with_vms_and_after_the_grace(self) -> None:
        def suspects(**more: Any) -> list[str]:
            found: list[str] = evaluate(peer("hv2", **({"state": "init", "age": 301, "assigned_vms": 1} | more)))[
                "suspects"
            ]
            return found

        assert suspects() == ["hv2"]
        assert suspects(state="shutdown") == ["hv2"]
        assert suspects(age=300) == []
        assert suspects(assigned_vms=0) == []
        assert suspects(state="stop") == []
        assert suspects(state="fenced") == []

    def test_the_primary_comes_first_then_natural_order(self) -> None:
        nodes = [peer(f"hv{n}") for n in range(20, 30)]
        nodes += [peer("hv10", age=99), peer("hv2", age=99), peer("hv9", "init", age=999, assigned_vms=1)]
        assert evaluate(*nodes)["suspects"] == ["hv2", "hv9", "hv10"]
        assert evaluate(*nodes, primary="hv10")["suspects"] == ["hv10", "hv2", "hv9"]
        assert evaluate(*nodes, primary="hv20")["suspects"] == ["hv2", "hv9", "hv10"]

    def test_a_fence_is_adopted_when_nobody_alive_owns_it(self) -> None:
        nodes = [
            peer("hv10", "dead"),
            peer("hv2", "dead", fence_owner="hv5", fence_owner_live=False),
            peer("hv3", "dead", fence_owner="hv5", fence_owner_live=True),
            peer("hv4", "fenced"),
        ]
        assert evaluate(*nodes)["adopt"] == ["hv2", "hv10"]

    @pytest.mark.slow
    @given(
        nodes=st.lists(
            st.builds(
                peer,
                st.sampled_from([f"hv{n}" for n in range(1, 8)]),
                st.sampled_from(["run", "dead", "init", "shutdown", "stop", "fenced"]),
                st.integers(0, 500),
                assigned_vms=st.integers(0, 2),
            ),
            max_size=8,
            unique_by=lambda each: each["name"],
        ),
        primary=st.sampled_from([None, "hv1", "hv3"]),
        fraction=st.sampled_from([0, 0.3, 0.5, 1]),
    )
    def test_the_observer_is_never_suspected_nor_adopted_and_nobody_heard_in_time_is(
        self, nodes: list[dict[str, Any]], primary: str | None, fraction: float
    ) -> None:
        answer = evaluate(*nodes, primary=primary, config=CONFIG | {"storm_fraction": fraction})
        ages = {each["name"]: each["age"] for each in nodes}
        named = (*answer["suspects"], *answer["adopt"])
        assert "hv1" not in named
        assert len(set(named)) == len(named)
        assert all(ages[name] > 30 for name in answer["suspects"])
        if answer["reason"] == "storm":
            working = [each for each in nodes if each["daemon_state"] == "run" and each["name"] != "hv1"]
            silent = [each for each in working if each["age"] > 30]
            assert len(silent) > fraction * (len(working) + 1)


def power(off: str, mid: str | None, final: str | None) -> tuple[bool, str, int]:
    answer = decide("fence.power", off=off, mid=mid, on="ok", final=final)
    return answer["fenced"], answer["reason"], answer["commands"]


ON, OFF = "Chassis Power is on", "Chassis Power is off"


class TestPower:
    def test_a_command_that_is_not_answered_ends_the_attempt(self) -> None:
        assert power("timeout", OFF, OFF) == (False, "unreachable", 1)
        assert decide("fence.power", off="timeout", mid=None, on=None, final=None)["commands"] == 1

    @pytest.mark.parametrize("off", ["ok", "error"])
    def test_readings_decide_and_not_the_code_of_the_command(self, off: str) -> None:
        assert power(off, OFF, ON) == (True, "confirmed_off", 4)
        assert power(off, OFF, None) == (True, "confirmed_off", 4)
        assert power(off, ON, OFF) == (True, "off_at_end", 4)
        assert power(off, None, OFF) == (True, "off_at_end", 4)
        assert power(off, ON, ON) == (False, "never_off", 4)
        for mid, final in [(None, None), (None, ON), (ON, None), ("?", ON), ("", "")]:
            assert power(off, mid, final) == (False, "unconfirmed", 4)

    def test_readings_are_read_in_any_letter_case(self) -> None:
        assert power("ok", "CHASSIS POWER IS OFF\n", ON)[1] == "confirmed_off"
        assert power("ok", "power is On", "POWER IS oN")[1] == "never_off"

    def test_a_text_that_says_both_says_nothing(self) -> None:
        assert power("ok", "power is on, power is off", ON)[1] == "unconfirmed"


def profile(**more: Any) -> dict[str, Any]:
    fast = {
        "renew_s": 1,
        "silence_s": 5,
        "throws": 2,
        "throw_s": 1,
        "guard_timeout_s": 5,
        "watchdog_s": 10,
        "grace_s": 2,
    }
    given = {key: more.pop(key) for key in ("hosts", "store_cas_per_s", "write_limit_s") if key in more}
    return decide("profile.validate", profile=fast | more, **given)


class TestProfiles:
    def test_both_shipped_profiles_are_sound(self) -> None:
        for name, suspicion, wait in [("fast", 7, 27.27), ("steady", 60, 57.57)]:
            answer = decide("profile.validate", profile=name, hosts=40, store_cas_per_s=1000)
            assert answer["errors"] == answer["warnings"] == []
            assert answer["suspicion_s"] == suspicion
            assert answer["watchdog_wait_s"] == pytest.approx(wait)

    def test_armed_hosts_are_steady_unless_told_otherwise(self) -> None:
        assert default_profile(armed=True) is ProfileName.STEADY
        assert default_profile(armed=False) is ProfileName.FAST
        assert set(PROFILES) == set(ProfileName)

    def test_the_guard_waits_for_three_renewals_and_a_write_but_not_longer_than_others_do(self) -> None:
        assert profile(guard_timeout_s=4.9)["errors"] == ["guard_timeout_too_short"]
        assert profile(write_limit_s=2.1)["errors"] == ["guard_timeout_too_short"]
        assert profile(guard_timeout_s=5.1)["errors"] == ["guard_timeout_exceeds_silence"]
        assert profile(grace_s=1.9)["errors"] == ["grace_too_short"]
        assert profile(guard_timeout_s=6, renew_s=2)["errors"] == [
            "guard_timeout_exceeds_silence",
            "guard_timeout_too_short",
        ]

    def test_the_smallest_interval_leaves_four_fifths_of_the_store_to_others(self) -> None:
        # 1,000 hosts, 2,000 writes/s, of which 400 for renewals: 2.5 s.
        crowded = profile(hosts=1000, store_cas_per_s=2000)
        assert crowded["smallest_renew_s"] == pytest.approx(2.5)
        assert crowded["errors"] == ["renew_too_short"]
        assert profile(hosts=400, store_cas_per_s=2000)["errors"] == []

    def test_a_store_that_was_not_measured_is_warned_of(self) -> None:
        unknown = profile(hosts=1000)
        assert unknown["warnings"] == ["store_not_measured"]
        assert unknown["smallest_renew_s"] is None

    def test_an_unknown_profile_is_refused(self) -> None:
        assert decide("profile.validate", profile="brisk", hosts=1) == {"error": "invalid"}


def test_timings_of_the_cluster_change_the_profile_that_they_name_and_no_other() -> None:
    policy = FencingPolicy(timings={"fast": Timing(silence_s=9.0, renew_s=2.0)})
    fast, steady = profile_of(policy, FencingSpec()), profile_of(policy, FencingSpec(), armed=True)
    assert (fast.renew_s, fast.silence_s, fast.throws) == (2.0, 9.0, PROFILES[ProfileName.FAST].throws)
    assert steady == PROFILES[ProfileName.STEADY]


def test_timings_that_cannot_be_change_nothing() -> None:
    policy = FencingPolicy(timings={"fast": Timing(renew_s=-1.0)})
    assert profile_of(policy, FencingSpec()) == PROFILES[ProfileName.FAST]


def test_a_host_chooses_before_the_cluster_and_the_cluster_before_arming() -> None:
    cluster = FencingPolicy(profile="fast")
    assert profile_of(cluster, FencingSpec(profile="steady")) == PROFILES[ProfileName.STEADY]
    assert profile_of(cluster, FencingSpec(armed=True)) == PROFILES[ProfileName.FAST]
    assert profile_of(FencingPolicy(), FencingSpec(armed=True)) == PROFILES[ProfileName.STEADY]
