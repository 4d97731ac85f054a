"""Three real hosts, and the cluster on a real API server: power is cut, and guests run where they were promised to."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from lab import story
from lab.cluster import Lab
from lab.command import proof, rehearsed, slots_of
from lab.faults import heal
from lab.processes import until

pytestmark = [pytest.mark.component(name) for name in ("libvirt", "ipmi", "kubernetes")]
LIMIT_S = 150.0
HOME = "host-1"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"), guests_count=2, homes=[HOME], on_kubernetes=True)
    try:
        for _ in lab.start():
            pass
        story.wait_counting(lab, lab.guests, {}, LIMIT_S)
        until(lambda: slots_of(lab), "every guest has a slot on another host", LIMIT_S, 0.5)
        until(lambda: rehearsed(lab), "every BMC was tried and is good", LIMIT_S, 0.5)
        yield lab
    finally:
        lab.stop()
    assert lab.switch.plugged() == []


def one_writer(lab: Lab) -> bool:
    return [story.two_writers(lab.disk(name)) for name in lab.guests] == [""] * len(lab.guests)


def test_guests_of_a_host_that_lost_power_run_in_their_slots_though_the_controller_dies_as_well(lab: Lab) -> None:
    slots, before = slots_of(lab), story.runs(lab)
    began = time.monotonic()
    lab.host(HOME).power_off()
    lab.server.kill()
    lab.start_server()
    story.wait_counting(lab, lab.guests, before, LIMIT_S)
    print(f"run again {time.monotonic() - began:.1f} s after the loss")
    assert story.places(lab) == {name: [slots[name]] for name in lab.guests}
    assert one_writer(lab)


def test_guests_run_on_while_the_api_server_is_away_and_a_move_is_carried_out_once_it_is_back(lab: Lab) -> None:
    heal(lab)
    until(lambda: lab.host(HOME).on, "the host is on", LIMIT_S)
    before = story.runs(lab)
    assert lab.kubernetes is not None
    lab.kubernetes.server.kill()
    time.sleep(3)
    assert story.runs(lab) == before
    lab.start_server()
    until(lambda: HOME in {one["metadata"]["name"] for one in lab.objects("hypervisors")}, "it answers", LIMIT_S)
    until(lambda: not proof(lab, HOME), "it is a member again", LIMIT_S, 0.2)
    lab.outlive("vm", "move", "vm-1", "--to", HOME, "--wait", limit_s=LIMIT_S)
    until(lambda: story.places(lab)["vm-1"] == [HOME], "it runs there alone", LIMIT_S, 0.1)
    assert story.runs(lab) == before, "it has moved while it ran"
    assert one_writer(lab)
