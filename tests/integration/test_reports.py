"""Reports in a real browser: complete, without anything from elsewhere, and as wide as the window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.browser import Browser, browser
from tests.support.command import outlive, planned

from outlive.failover.analysis import FailuresInput, Question, survive
from outlive.failover.report.html import LARGE_HOSTS, FleetFigures, HostFigures, Share, survival_report

pytestmark = pytest.mark.component("chromium")

HOSTS = "name,cpu,memory,zone,domain-rack\n" + "".join(f"h{n:02},32,128Gi,z{n // 8},r{n // 4}\n" for n in range(16))
EVIL = "<img src=x onerror=alert(1)>\"'&"
WIDTHS = (1280, 400)
LARGEST_BYTES = 5_000_000


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A covered state, in which two VMs are too large for any slot."""
    vms = [f"v{n:02},4,8Gi,h{n % 16:02},small,z{n % 16 // 8}" for n in range(48)]
    vms += [f"big{n},30,120Gi,h{n:02},large,z0" for n in (1, 2)]
    rows = "id,cpu,memory,host,flavor,zone\n" + "\n".join(vms) + "\n"
    return planned(tmp_path_factory.mktemp("fleet"), HOSTS, rows, code=1)


def shown(tab: Browser, path: Path, *, hosts: int) -> str:
    """The text of a report, after it was looked at in every width."""
    for width in WIDTHS:
        tab.open(path.as_uri(), width=width)
        assert tab.complaints == []
        assert tab.requests == [path.as_uri()]
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate("document.querySelectorAll('.h').length") == hosts
        assert tab.evaluate("document.querySelectorAll('#hosts tbody tr').length") == hosts
        unnamed = "[...document.querySelectorAll('table')].filter(one => !one.caption || !one.caption.textContent)"
        assert tab.evaluate(f"{unnamed}.length") == 0
        assert tab.evaluate("[...document.querySelectorAll('.h')].every(one => one.ariaLabel)") is True
    text: str = tab.evaluate("document.body.innerText")
    return text


def test_a_coverage_report_shows_hosts_tolerance_weakest_vms_and_gap(tab: Browser, state: Path, tmp_path: Path) -> None:
    path = tmp_path / "coverage.html"
    reported = outlive("failover", "coverage", "--state", state, "--html", path, "-o", "json")
    assert reported.code == 1
    document = json.loads(reported.out)
    text = shown(tab, path, hosts=16)
    assert "2 of 50 VMs that need slots do not have them." in text
    assert f"{document['slots']:,}" in text
    for part in (
        "rack r0",
        "Zone z1",
        "Why VMs are not covered",
        "By rack",
        "The weakest VMs",
        "Least possible",
        "big1",
    ):
        assert part in text
    assert document["uncovered"][0]["remedy"].split("`")[0].strip() in text
    assert "of 128 GiB" in tab.evaluate("document.querySelector('.h').ariaLabel")


def test_a_report_of_failures_shows_what_fails_where_vms_land_and_who_is_lost(
    tab: Browser, state: Path, tmp_path: Path
) -> None:
    path = tmp_path / "survive.html"
    reported = outlive("survive", "h01,h02", "--state", state, "--html", path, "-o", "json")
    assert reported.code == 1
    document = json.loads(reported.out)
    text = shown(tab, path, hosts=16)
    assert "What if h01 and h02 fail?" in text
    assert tab.evaluate("document.querySelectorAll('.h.x').length") == 2
    assert tab.evaluate("document.querySelectorAll('.h.t').length") == len({one["host"] for one in document["landing"]})
    for lost in document["lost"]:
        assert lost["vm"] in text
    for landing in document["landing"]:
        assert landing["slot"] in text


def test_any_rack_shows_the_worst_case_in_the_dark(tab: Browser, state: Path, tmp_path: Path) -> None:
    path = tmp_path / "rack.html"
    assert outlive("survive", "--domain", "rack", "--state", state, "--html", path).code == 1
    text = shown(tab, path, hosts=16)
    assert "The worst case: rack=r" in text
    assert tab.evaluate("document.querySelectorAll('.h.x').length") == 4
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.open(path.as_uri(), width=1280, dark=True)
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_the_keyboard_goes_from_host_to_host_and_tells_figures(tab: Browser, state: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.html"
    outlive("failover", "coverage", "--state", state, "--html", path)
    tab.open(path.as_uri(), width=1280)
    tab.evaluate("document.querySelector('.h').focus()")
    tab.press("ArrowRight")
    assert tab.evaluate("document.activeElement === document.querySelectorAll('.h')[1]") is True
    assert tab.evaluate("document.querySelectorAll('.h')[0].tabIndex") == -1
    reported = tab.evaluate("getComputedStyle(document.activeElement, '::after').content")
    assert "memory" in reported


def test_five_thousand_hosts_with_hostile_names_stay_usable(tab: Browser, tmp_path: Path) -> None:
    share = Share(capacity=1 << 40, used=1 << 39, reserved=1 << 37)
    hosts = tuple(
        HostFigures(
            name=f"host-{n:04}{EVIL if n % 500 == 0 else ''}",
            zone=f"z{n // 2500}",
            group=f"r{n // 20}{EVIL if n == 0 else ''}",
            memory=share,
            cpu=share,
            vms=20,
            slots=7,
            uncovered=n % 97 == 0,
        )
        for n in range(5_000)
    )
    assert len(hosts) > LARGE_HOSTS
    fleet = FleetFigures(hosts=hosts, grouped_by="rack", source=EVIL, when=EVIL)
    question = Question(unit="host", units={}, failures=1)
    result = survive(FailuresInput(vms=(), required={}, failures=1))
    content = survival_report(fleet, question, result)
    assert len(content) < LARGEST_BYTES
    path = tmp_path / "large.html"
    path.write_bytes(content)
    text = shown(tab, path, hosts=5_000)
    assert "rack r249" in text
    assert EVIL in text
    assert tab.evaluate("document.images.length") == 0


def test_a_path_that_cannot_be_written_is_bad_input_and_costs_nothing(state: Path, tmp_path: Path) -> None:
    for command in (("failover", "coverage"), ("survive", "--failures", "1")):
        for path in (tmp_path / "no" / "such.html", tmp_path):
            ended = outlive(*command, "--state", state, "--html", path)
            assert (ended.code, ended.out) == (3, "")
            assert str(path) in ended.line
    kept = tmp_path / "kept.html"
    kept.write_text("before")
    assert outlive("survive", "--failures", "1", "--state", state, "--html", kept).code == 1
    assert kept.read_text().startswith("<!doctype html>")
    assert list(tmp_path.glob(".*")) == []
