"""What the checker of certificates reads: where VMs are, files that are none, and plain JSON as a decision."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.certified import documents, fleet, resources
from tests.support.tampered import Case, Doc, other_host, slot_shrunk

from outlive.base import BadInput, Random
from outlive.failover import DECISIONS, host_view, merge
from outlive.failover.verify import StateFleet, read_certificate
from outlive.placement import list_resources
from outlive.resources import Hypervisor, VirtualMachine, state_facts
from outlive.runtime import DecisionTable


def test_without_trust_a_vm_is_where_it_is_assigned_and_reported() -> None:
    case = Case(3)
    vm = case.certified_vm()
    case.named("VirtualMachine", vm["id"])["status"]["assigned"]["hypervisor"] = other_host(case, vm["host"])
    assert case.codes() >= {"vm-unknown"}


def test_the_settings_that_the_state_carries_say_whom_to_trust() -> None:
    for trusting, places in ((True, {"v": "h00"}), (False, {})):
        state = [
            {
                "kind": "Cluster",
                "metadata": {
                    "name": "default",
                    "annotations": {
                        "outlive.dev/settings": msgspec.json.encode(
                            {"failover": {"trustHypervisorLocation": trusting}}
                        ).decode()
                    },
                },
            },
            {"kind": "Hypervisor", "metadata": {"name": "h05"}, "status": {"instances": []}},
            {"kind": "Hypervisor", "metadata": {"name": "h00"}, "status": {"instances": [{"id": "v"}]}},
            {"kind": "VirtualMachine", "metadata": {"name": "v"}, "status": {"assigned": {"hypervisor": "h05"}}},
        ]
        assert StateFleet(state_facts(resources(state))).places == places


@pytest.mark.parametrize("trusting", [True, False])
def test_vms_are_located_as_the_product_does(trusting: bool) -> None:
    for seed in range(30):
        random = Random(seed)
        plain = documents(fleet(random, 6, 20))
        hosts = [one for one in plain if one["kind"] == "Hypervisor"]
        for _ in range(8):
            random.choice(hosts)["status"].setdefault("instances", []).append({"id": f"v{random.randint(0, 25):03}"})
        random.choice(hosts)["status"]["instances"] = []
        for vm in (one for one in plain if one["kind"] == "VirtualMachine"):
            vm["status"]["phase"] = random.choice(("ACTIVE", "start", "restart", "migrate", "stop", "fail", ""))
            vm["spec"]["powerState"] = random.choice(("running", "running", "stopped"))
        kept = msgspec.json.encode({"failover": {"trustHypervisorLocation": trusting}}).decode()
        cluster = {"kind": "Cluster", "metadata": {"name": "default", "annotations": {"outlive.dev/settings": kept}}}
        objects = resources([cluster, *plain])
        views = [host_view(one) for one in objects if isinstance(one, Hypervisor)]
        listing = list_resources(one for one in objects if isinstance(one, VirtualMachine))
        merged = merge(listing.vms, views, trust_hosts=trusting)
        assert StateFleet(state_facts(objects)).places == {vm.id: vm.host for vm in merged.vms}


# Files that cannot be read


@pytest.mark.parametrize(
    ("raw", "place", "words"),
    [
        (b"", "c.json:1", "not JSON"),
        (b'{"version": 1,\n"k": ', "c.json:2", "not JSON"),
        (b"[]", "c.json", "not a certificate"),
        (b'{"version": 1}', "c.json", "stateDigest"),
        (
            b'{"version":1,"stateDigest":"","k":0,"hosts":[],"slots":[],'
            b'"vms":[{"id":"v","host":"h","need":-1,"slots":[]}]}',
            "c.json",
            r"vms\[0\].need",
        ),
    ],
)
def test_a_file_that_is_no_certificate_is_refused_with_its_place(raw: bytes, place: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        read_certificate(raw, "c.json")
    assert caught.value.place == place
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("once", "twice"),
    [
        (b'"k":2', b'"k":1,"k":2'),
        (b'"need":2', b'"need":1,"need":2'),
        (b'"v":"h"', b'"v":"g","v":"h"'),
        (b'"k":2', b'"k":18446744073709551616,"k":99999999999999999999'),
    ],
)
def test_a_member_that_is_there_twice_is_refused(once: bytes, twice: bytes) -> None:
    """Another reader might believe the first one, and read another claim."""
    raw = (
        b'{"version":1,"stateDigest":"","k":2,"hosts":["g","h"],"vms":[{"id":"v","host":"h","need":2,"slots":[]}],'
        b'"slots":[{"name":"r","host":"g","cpuMilli":1,"memoryBytes":1,"allocations":{"v":"h"}}]}'
    )
    assert read_certificate(raw) == read_certificate(msgspec.json.format(raw, indent=3))
    with pytest.raises(BadInput, match="is there twice"):
        read_certificate(raw.replace(once, twice))


@pytest.mark.parametrize("unit", ["power", ""])
def test_a_domain_that_no_host_is_in_certifies_nothing(unit: str) -> None:
    """Else single hosts would pass for power feeds."""
    case = Case(1)
    case.certificate["unit"] = unit
    assert case.codes() == {"unit"}


def test_amounts_beyond_64_bits_are_survived() -> None:
    case = Case(1)
    vm = case.certified_vm()
    case.named("VirtualMachine", vm["id"])["spec"]["resources"]["cpu"] = str(2**63 - 1)
    case.redigest()
    assert {"slot-too-small", "too-few-slots"} <= case.codes()


# As a decision


def test_the_check_is_a_decision_on_plain_json() -> None:
    table = DecisionTable(DECISIONS)
    case = Case(1)

    def decide(**more: Any) -> Doc:
        given = {"objects": case.state, "certificate": case.certificate, **more}
        answer: Doc = msgspec.json.decode(table.decide_json("failover.verify", msgspec.json.encode(given)))
        return answer

    assert decide(wishes={"failures": 1})["enumeration"]["lost"] == 0
    slot_shrunk(case)
    verdict = decide()
    assert (verdict["accepted"], verdict["violation"]["code"]) == (False, "digest")
    assert verdict["counts"]["slot-size"] == 1
    case.state.append({"kind": "Nothing"})
    assert decide() == {"error": "bad-input"}
