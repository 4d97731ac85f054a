"""What placement answers is believed as far as it was asked."""

from __future__ import annotations

from tests.support.loops import run

from outlive.failover import Call, Caller, WithCandidates, claim_of, gather_offers, resolve_size
from outlive.failover.planner import AssignInput, Fail, Need, PlacementOffer
from outlive.failover.planner.assign import assign
from outlive.placement import Fleet, VmView
from outlive.resources import Amounts, Hypervisor, HypervisorStatus, ObjectMeta

GIB = 2**30
VM = VmView(id="v", host="h1", zone="z", cpu_milli=1000, memory_bytes=GIB)
SIZE = resolve_size(VM)


class Answering:
    needs_candidates = True

    def __init__(self, offer: PlacementOffer) -> None:
        self.offers = offer

    async def offer(self, call: Call) -> PlacementOffer:
        return self.offers

    def equivalence_key(self, call: Call) -> None:
        return None


def fleet() -> Fleet:
    found = Fleet()
    for name in ("h1", "h2", "h3"):
        status = HypervisorStatus(capacity=Amounts(cpu=8000, memory=8 * GIB), allocation=Amounts())
        found.upsert_host(Hypervisor(metadata=ObjectMeta(name=name), status=status))
    return found


def test_hosts_that_were_not_asked_about_are_left_out_of_an_answer_with_their_scores():
    port = WithCandidates(
        Answering(PlacementOffer(hosts=("ghost", "h3", "h1", "h2"), scores=(4.0, 3.0, 2.0, 1.0))), fleet()
    )
    answer = run(port.offer(Caller().build_new_call(VM, SIZE, ignore=("h1",))))
    assert (answer.hosts, answer.scores) == (("h3", "h2"), (3.0, 1.0))


def test_an_answer_about_one_host_is_judged_by_its_caller():
    port = WithCandidates(Answering(PlacementOffer(hosts=("h2", "h3"))), fleet())
    assert run(port.offer(Caller().validate(VM, "h3"))).hosts == ("h2", "h3")


def test_a_host_that_nobody_knows_has_no_room():
    given = AssignInput(
        slots=(),
        vms=(VM,),
        needs=(Need(vm="v", needed=1, size=SIZE, offer_class="c"),),
        new={"c": PlacementOffer(hosts=("ghost",))},
        free={"h2": (8000, 8 * GIB)},
    )
    (action,) = assign(given).actions
    assert isinstance(action, Fail)


def test_where_there_is_nobody_to_ask_about_nobody_is_offered():
    """That is an answer, no failure of placement: asking again would not change it."""
    port = WithCandidates(Answering(PlacementOffer(error="must not be asked")), Fleet())
    claims = [claim_of(VM, 1, SIZE, with_project=False)]
    offers = run(gather_offers(port, Caller(), claims, requests={}, request_id=""))
    assert [*offers.new.values(), *offers.reuse.values()] == [PlacementOffer(), PlacementOffer()]
