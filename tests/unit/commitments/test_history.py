"""The history of usage: two numbers for each change, exact seconds, and never more than a document holds."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run_by
from tests.support.sales import Market, asked, batch, host, hosting, in_market, project, vm

from outlive.base import BadInput, LoopClock, limits
from outlive.commitments import (
    Charged,
    begin_month,
    history_name,
    is_old,
    list_shares,
    list_still_charged,
    month_before,
    month_begin,
    month_of,
    month_seconds,
    record_charges,
)
from outlive.commitments import history as module
from outlive.resources import UsageHistory, encode
from outlive.store import list_all

MONTH = "2026-11"
BEGIN = month_begin(MONTH)


def charged(**vms: tuple[str, ...]) -> dict[str, Charged]:
    return {uuid: Charged(type="memory", vms=given) for uuid, given in vms.items()}


def test_months_are_those_of_utc() -> None:
    assert month_of(BEGIN) == MONTH
    assert month_of(BEGIN - 1) == "2026-10"
    assert (month_before("2026-01"), month_before(MONTH, 13), month_before("2026-12", -1)) == (
        "2025-12",
        "2025-10",
        "2027-01",
    )
    assert (month_seconds("2028-02"), month_seconds(MONTH)) == (29 * 86_400, 30 * 86_400)


@pytest.mark.parametrize("text", ["", "2026", "2026-13", "2026-1", "november", "2026-11-01"])
def test_a_text_that_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is no month"):
        month_begin(text)


def test_a_commitment_is_covered_while_any_vm_is_charged_to_it() -> None:
    history = begin_month("p", MONTH, None)
    for at, now in (
        (100, charged(a=("v1",))),
        (200, charged(a=("v1", "v2"))),
        (300, charged(a=("v2",), b=("v1",))),
        (400, {}),
        (500, charged(a=("v1",))),
    ):
        history = record_charges(history, now, BEGIN + at)
    a, b = list_shares(history, BEGIN + 600)
    assert (a.commitment, a.covered_seconds, a.vm_seconds) == ("a", 400, 500)
    assert (b.commitment, b.covered_seconds, b.vm_seconds) == ("b", 100, 100)
    assert history.commitments["a"].vms == {"v1": (100, 300, 500), "v2": (200, 400)}
    assert [one.timestamp() - BEGIN for run in a.vms["v1"] for one in run] == [100, 300, 500, 600]


def test_what_did_not_change_is_the_same_document() -> None:
    history = record_charges(begin_month("p", MONTH, None), charged(a=("v1",)), BEGIN + 100)
    assert record_charges(history, charged(a=("v1",)), BEGIN + 5000) is history


def test_a_commitment_that_ended_was_covered_until_then() -> None:
    history = record_charges(begin_month("p", MONTH, None), charged(a=("v1",)), BEGIN + 100)
    history = record_charges(history, {}, BEGIN + 400, {"a": BEGIN + 150.0})
    assert [(one.covered_seconds, one.vm_seconds) for one in list_shares(history, BEGIN + 900)] == [(50, 50)]


def test_what_goes_on_at_the_end_of_a_month_counts_in_both() -> None:
    history = record_charges(begin_month("p", MONTH, None), charged(a=("v1", "v2"), b=("v3",)), BEGIN + 100)
    history = record_charges(history, charged(a=("v1",)), BEGIN + 200)
    later = BEGIN + month_seconds(MONTH) + 1000
    assert list_shares(history, later)[0].covered_seconds == month_seconds(MONTH) - 100
    following = begin_month("p", "2026-12", history)
    assert following.commitments.keys() == {"a"}
    following = record_charges(following, {}, later)
    (a,) = list_shares(following, later + 9999)
    assert (a.covered_seconds, sorted(a.vms)) == (1000, ["v1"])


def test_a_commitment_that_ended_before_the_month_did_is_closed_then_though_it_is_counted_later() -> None:
    over, end = BEGIN + month_seconds(MONTH), BEGIN + month_seconds(MONTH) - 2 * 3600
    history = record_charges(begin_month("p1", MONTH, None), charged(aaaaaa=("v1",), bbbbbb=("v2",)), end - 10 * 3600)
    ends = {"aaaaaa": float(end), "bbbbbb": over + 60.0}
    closed = record_charges(history, list_still_charged(history, ends), over + 7200, ends)
    assert [one.covered_seconds for one in list_shares(closed, over + 7200)] == [10 * 3600, 12 * 3600]
    assert list(begin_month("p1", month_before(MONTH, -1), closed).commitments) == ["bbbbbb"]


def test_a_document_that_is_too_large_leaves_out_what_ended_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HISTORY_BYTES", 2000)
    history = begin_month("p", MONTH, None)
    for hour in range(200):
        history = record_charges(history, charged(a=(f"vm-{hour}",)), BEGIN + hour * 3600)
    history = record_charges(history, {}, BEGIN + 200 * 3600)
    (a,) = list_shares(history, BEGIN + 300 * 3600)
    assert a.covered_seconds == 200 * 3600, "the sum has all of them"
    assert "vm-199" in a.vms
    assert "vm-0" not in a.vms
    assert history.left_out == 200 - len(a.vms)


def test_the_largest_document_fits_into_every_store() -> None:
    vms = tuple(f"00000000-0000-0000-0000-{number:012}" for number in range(9_000))
    history = record_charges(begin_month("p", MONTH, None), charged(a=vms), BEGIN + 2_000_000)
    many = {f"uuid-{number:035}": Charged(type="cores", vms=("v",)) for number in range(3_000)}
    for size in (
        len(encode(history)),
        len(encode(record_charges(begin_month("p", MONTH, None), many, BEGIN + 2_000_000))),
    ):
        assert size < limits.OBJECT_BYTES


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.dictionaries(st.sampled_from("ab"), st.sets(st.sampled_from("xyz")))),
        max_size=12,
    )
)
def test_seconds_are_those_of_every_single_second(changes: list[tuple[int, dict[str, set[str]]]]) -> None:
    history, now, seconds, running = begin_month("p", MONTH, None), 0, dict[str, int](), dict[str, set[str]]()
    per_vm = dict[tuple[str, str], int]()

    def pass_time(until: int) -> None:
        for uuid, vms in running.items():
            seconds[uuid] = seconds.get(uuid, 0) + (until - now if vms else 0)
            for one in vms:
                per_vm[uuid, one] = per_vm.get((uuid, one), 0) + until - now

    for pause, wanted in changes:
        pass_time(now + pause)
        now, running = now + pause, wanted
        history = record_charges(
            history, charged(**{uuid: tuple(sorted(vms)) for uuid, vms in wanted.items()}), BEGIN + now
        )
    pass_time(now + 50)
    found = {one.commitment: one for one in list_shares(history, BEGIN + now + 50)}
    assert {uuid: one.covered_seconds for uuid, one in found.items()} == {uuid: seconds.get(uuid, 0) for uuid in found}
    assert all(seconds[uuid] == 0 for uuid in seconds.keys() - found.keys())
    for uuid, one in found.items():
        for name, runs in one.vms.items():
            assert sum((end - first).total_seconds() for first, end in runs) == per_vm.get((uuid, name), 0)


def test_documents_are_kept_for_so_many_months() -> None:
    history = UsageHistory(month="2025-11")
    assert not is_old(history, BEGIN, 13)
    assert is_old(history, BEGIN, 12)


# In a running cloud.


async def history_in(market: Market, name: str = "p1") -> UsageHistory:
    return await market.store.get(UsageHistory, history_name(name, month_of(LoopClock().now())))


@pytest.mark.slow
@run_by(in_market, hosting("h1", vm("v0", "h1")))
async def test_each_change_of_the_assignment_is_written_and_nothing_else(market: Market) -> None:
    await market.sell("aaaaaa", 2, then_s=10)
    first = await history_in(market)
    assert list(first.commitments["aaaaaa"].vms) == ["v0"]
    await asyncio.sleep(1000)
    assert (await history_in(market)).metadata.resource_version == first.metadata.resource_version
    await market.start(vm("v1", "h1"))
    await asyncio.sleep(400)
    assert set((await history_in(market)).commitments["aaaaaa"].vms) == {"v0", "v1"}
    assert await market.change(batch(project("p1", asked("aaaaaa", 2, old="confirmed", new=None)))) == ""
    await asyncio.sleep(10)
    done = (await history_in(market)).commitments["aaaaaa"]
    assert done.covered_since is None
    assert 1400 <= done.covered_seconds <= 1500
    assert [name async for name in list_all(market.store, UsageHistory)] == [await history_in(market)]


def test_a_new_month_goes_on_from_the_last_one_and_old_ones_are_deleted() -> None:
    mine = [vm("v0", "h1")]
    december = record_charges(begin_month("p1", "2025-12", None), charged(bbbbbb=("v1",)), month_begin("2025-12"))
    old = [december, begin_month("p1", "2024-12", None), begin_month("p9", "2020-01", None)]

    async def story(market: Market) -> None:
        await market.sell("aaaaaa", 1, then_s=10)
        found = {one.month: one async for one in list_all(market.store, UsageHistory)}
        assert found.keys() == {"2025-12", "2026-01"}
        carried = found["2026-01"].commitments["bbbbbb"]
        assert (carried.vms["v1"][0], len(carried.vms["v1"]), carried.covered_since) == (0, 2, None)
        assert found["2026-01"].commitments["aaaaaa"].covered_since is not None

    in_market([host("h1", vms=mine), *mine, *old], story)


def test_a_document_of_a_project_that_has_nothing_any_more_is_closed_when_a_leader_starts() -> None:
    async def story(market: Market) -> None:
        await asyncio.sleep(5)
        assert not any([module.is_open(one) async for one in list_all(market.store, UsageHistory)])

    now = 1_767_225_600
    assert month_of(now) == "2026-01"
    left = record_charges(begin_month("p1", "2026-01", None), charged(a=("v1",)), now)
    in_market([host("h1"), left], story)
