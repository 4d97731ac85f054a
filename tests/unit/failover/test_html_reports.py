"""Reports as text: everything is escaped, nothing is fetched, and figures say what they mean."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from outlive.failover import HostView, SlotView
from outlive.failover.analysis import (
    CoverageInput,
    FailuresInput,
    Question,
    ToleranceInput,
    any_units,
    compute_coverage,
    compute_tolerance,
    render_case,
    survive,
)
from outlive.failover.report.html import (
    CaseEffect,
    FleetFigures,
    HostFigures,
    Share,
    coverage_report,
    format_cores,
    format_gib,
    format_percent,
    format_times,
    group_domain,
    host_text,
    hosts_table,
    survival_report,
)
from outlive.placement import VmView

EVIL = "</td><script>alert('x')</script>&\"'"
GIB = 2**30


class Tags(HTMLParser):
    """Counts elements; notices those that are never closed."""

    VOID = ("meta", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def figures(name: str, **more: object) -> HostFigures:
    share = Share(capacity=100 * GIB, used=50 * GIB, reserved=20 * GIB)
    given = {"zone": EVIL, "group": EVIL, "memory": share, "cpu": share, "vms": 1, "slots": 1, "uncovered": 0, **more}
    return HostFigures(name=name, **given)  # type: ignore[arg-type]


def hostile_coverage() -> bytes:
    vms = (VmView(id=f"v{EVIL}", host=f"h{EVIL}", zone=EVIL), VmView(id="w", host="g", zone="z"))
    slots = (SlotView(name=f"s{EVIL}", host="g", members={vms[0].id: vms[0].host}),)
    required = {vm.id: 1 for vm in vms}
    hosts = (HostView(name=vms[0].host), HostView(name="g"))
    result = compute_coverage(CoverageInput(vms=vms, required=required, slots=slots, hosts=hosts))
    judged = compute_tolerance(ToleranceInput(vms=vms, required=required, slots=slots))
    fleet = FleetFigures(hosts=tuple(figures(host.name) for host in hosts), grouped_by=EVIL, source=EVIL, when=EVIL)
    return coverage_report(fleet, result, "host", {"host": judged})


def hostile_survival() -> bytes:
    vms = (VmView(id=f"v{EVIL}", host=f"h{EVIL}", zone=EVIL),)
    given = FailuresInput(vms=vms, required={vms[0].id: 1}, cases=((vms[0].host,),))
    fleet = FleetFigures(hosts=(figures(vms[0].host),), grouped_by="", source=EVIL, when="")
    question = Question(unit="", units={}, cases=given.cases)
    return survival_report(fleet, question, survive(given))


def test_names_cannot_break_out_of_a_report() -> None:
    for content in (hostile_coverage(), hostile_survival()):
        text = content.decode()
        tags = Tags(text)
        assert tags.open == []
        assert tags.seen.count("script") == 1
        assert "alert(" in text
        assert "<script>alert(" not in text


def test_a_report_names_no_address_and_is_the_same_each_time() -> None:
    for make in (hostile_coverage, hostile_survival):
        text = make().decode()
        assert not re.search(r"(?:src|href)=\"(?!#|data:)", text)
        assert not re.search(r"url\(|@import", text)
        assert "default-src 'none'" in text
        assert make() == make()


def test_a_host_in_a_sentence() -> None:
    share = Share(capacity=100 * GIB, used=90 * GIB, reserved=20 * GIB, committed=1 * GIB)
    host = figures("h1", memory=share, cpu=Share(capacity=None, used=0, reserved=0), uncovered=2, ready=False)
    text = host_text(host, CaseEffect(landing={"h1": 3}))
    assert text == (
        "h1: memory 90 % used, 20 % held, 1 % committed, 11 % too much of 100 GiB; CPU unknown of an unknown amount; "
        "1 VM, 1 slot; 2 VMs without the slots they need; not in service; 3 VMs restart here"
    )
    assert host_text(host, CaseEffect(failed=frozenset({"h1"}))).endswith("; fails")


def test_every_host_is_a_row_with_its_fate() -> None:
    fleet = FleetFigures(hosts=(figures("a"), figures("b")), grouped_by="rack", source="", when="")
    table = hosts_table(fleet, CaseEffect(failed=frozenset({"a"}), landing={"b": 1}))
    assert [(row[0], row[-1]) for row in table.rows] == [("a", "fails"), ("b", "1 VM restarts here")]


def test_hosts_are_grouped_by_the_domain_in_question_then_by_racks() -> None:
    views = [HostView(name="a", domains={"power": "p", "rack": "r"}), HostView(name="b", domains={"bb": "1"})]
    assert [group_domain(views, wanted) for wanted in ("power", "host", "")] == ["power", "rack", "rack"]
    assert group_domain(views[1:]) == "bb"
    assert group_domain([HostView(name="c")]) == ""


def test_amounts_do_not_round_to_a_lie() -> None:
    assert [format_percent(share) for share in (0, 0.001, 0.5, 0.9999, 1)] == [
        "0 %",
        "below 1 %",
        "50 %",
        "99.9 %",
        "100 %",
    ]
    assert (format_gib(5 * GIB), format_gib(2048 * GIB), format_gib(20 * 1024 * GIB)) == (
        "5.0 GiB",
        "2,048 GiB",
        "20.0 TiB",
    )
    assert (format_cores(1500), format_cores(64_000)) == ("1.5 cores", "64 cores")
    assert (format_times(3, 2), format_times(3, 0)) == ("1.50 times", "–")


def test_lists_of_names_end() -> None:
    assert render_case(("a",)) == "a"
    assert render_case(("a", "b", "c")) == "a, b and c"
    assert render_case(tuple("abcdefgh")) == "a, b, c, d, e, f and 2 more"
    assert [any_units(count, "rack") for count in (1, 2)] == ["any rack", "any 2 racks"]
