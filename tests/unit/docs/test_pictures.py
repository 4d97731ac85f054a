"""The pictures are those that scripts/pictures draws now, and their states and arrows are those of the code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest
from tests.support.pictures import FOLDER, PICTURES, STATES, coverage
from tests.support.pictures.canvas import Area, Drawing, Unreadable
from tests.support.pictures.states import (
    NO_FENCE,
    NO_MEMBER,
    Arrows,
    Diagram,
    Mismatch,
    arrows_of_table,
    fence_arrows,
    host_arrows,
    shown_arrows,
    shown_states,
)

from outlive.guard import LEGAL
from outlive.node import HostLife
from outlive.node.fencing import PROFILES, ProfileName
from outlive.node.migration import PHASES as MOVE_PHASES
from outlive.node.vm import PHASES as VM_PHASES
from outlive.recovery import PHASES as RECOVERY_PHASES
from outlive.resources import FencePhase

DOCS = FOLDER.parent
SHOWN = re.compile(r"!\[[^\]]*\]\(([^)\s]+\.svg)\)")
PHOTOGRAPH = re.compile(r'(?:src|srcset)="([^"]+\.png)"')
LARGEST_BYTES = 200_000
TABLES: Mapping[str, tuple[set[str], Arrows]] = {
    "host-states": ({NO_MEMBER, *HostLife} - {HostLife.UNKNOWN}, host_arrows()),
    "fence-states": ({one or NO_FENCE for one in FencePhase}, fence_arrows()),
    "guard-states": (set(LEGAL), arrows_of_table(LEGAL)),
    "vm-states": (set(VM_PHASES), arrows_of_table(VM_PHASES)),
    "recovery-states": (set(RECOVERY_PHASES), arrows_of_table(RECOVERY_PHASES)),
    "move-states": (set(MOVE_PHASES), arrows_of_table(MOVE_PHASES)),
}
PAGES = {page: page.read_text() for page in sorted(DOCS.rglob("*.md"))}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_is_drawn_now(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text() == PICTURES[name]().render(), "draw it anew: scripts/pictures"


def test_each_diagram_of_states_is_compared() -> None:
    assert TABLES.keys() == STATES.keys()
    assert {path.stem for path in DOCS.rglob("*.svg")} == PICTURES.keys()


@pytest.mark.parametrize("name", TABLES)
def test_a_diagram_shows_the_states_and_arrows_of_the_code(name: str) -> None:
    states, arrows = TABLES[name]
    svg = (FOLDER / f"{name}.svg").read_text()
    assert shown_states(svg) == states
    assert shown_arrows(svg) == arrows


def test_a_host_is_dead_only_by_a_proof_and_alive_again_only_by_joining() -> None:
    arrows = host_arrows()
    assert {before for before, after in arrows if after == HostLife.DEAD} == {HostLife.CONDEMNED, NO_MEMBER}
    assert {after for before, after in arrows if before == HostLife.DEAD} == {HostLife.ALIVE}


def test_a_diagram_that_lacks_an_arrow_is_refused() -> None:
    diagram = Diagram("two states", 400, 200)
    diagram.state("a", 20, 80)
    diagram.state("b", 220, 80)
    assert diagram.finish("ab", frozenset()) is diagram.drawing
    with pytest.raises(Mismatch, match=r"the code has .*'a', 'b'"):
        diagram.finish("ab", frozenset({("a", "b")}))
    diagram.arrow("a", "b", diagram.at("a", "r"), diagram.at("b", "l"))
    diagram.finish("ab", frozenset({("a", "b")}))
    with pytest.raises(Mismatch, match=r"the drawing has .*'b'"):
        diagram.finish("a", frozenset({("a", "b")}))


def test_text_that_overlaps_or_does_not_fit_is_refused() -> None:
    drawing = Drawing("a title", 300, 100)
    drawing.text(20, 60, "one text")
    assert "one text" in drawing.render()
    drawing.arrow((10, 55), (200, 55))
    with pytest.raises(Unreadable, match="crosses 'one text'"):
        drawing.render()
    with pytest.raises(Unreadable, match="leaves"):
        drawing.text(250, 60, "too long for this picture")
    with pytest.raises(Unreadable, match="leaves"):
        drawing.box(Area(20, 70, 40, 20), ["too long for this box"])


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_colours_for_dark_pages(name: str) -> None:
    svg = (FOLDER / f"{name}.svg").read_text()
    light, _, dark = svg.partition("@media (prefers-color-scheme:dark)")
    assert 'class="f-ground' in dark
    dark = dark[: dark.index("</style>")]
    rules = re.findall(r"\.([fs]-[\w-]+)\{", light)
    assert rules
    assert re.findall(r"\.([fs]-[\w-]+)\{", dark) == rules
    used = set(re.findall(r"\b[fs]-[\w-]+", svg[svg.index("</style>") :]))
    assert used <= set(rules)
    assert not re.search(r'(?:fill|stroke)="', svg)


def test_the_example_of_coverage_is_that_of_the_page() -> None:
    rows = re.findall(r"^\| (s\d) \| h(\d) \| v(\d), v(\d) \|$", PAGES[DOCS / "concepts/coverage.md"], re.M)
    assert [(one.name, one.host, one.members) for one in coverage.TWO] == [
        (slot, int(host), (int(first), int(second))) for slot, host, first, second in rows
    ]


@pytest.mark.parametrize(("slots", "failures"), [(coverage.ONE, 1), (coverage.TWO, 2)])
def test_in_the_example_every_vm_has_a_place_whichever_hosts_fail(
    slots: tuple[coverage.Slot, ...], failures: int
) -> None:
    hosts = range(1, coverage.HOSTS + 1)
    for failed in combinations(hosts, failures):
        assert all(coverage.places(slots, failed).values()), failed
    assert not all(all(coverage.places(slots, failed).values()) for failed in combinations(hosts, failures + 1))


def test_the_time_of_the_watchdog_is_that_of_the_code_and_of_its_page() -> None:
    steady = PROFILES[ProfileName.STEADY]
    shown = f"(T + 2W + g)(1 + 2p) = {steady.watchdog_wait_s:.1f} s"
    assert shown in (FOLDER / "proof-watchdog.svg").read_text()
    page = PAGES[DOCS / "concepts/proofs.md"]
    assert "`(T + 2W + g)(1 + 2p)`" in page
    assert f"{steady.watchdog_wait_s:.1f} s, so at once" in page


def test_every_picture_is_on_a_page_and_in_the_list() -> None:
    listed = PAGES[FOLDER / "README.md"]
    places = [page.parent / link for page, text in PAGES.items() for link in SHOWN.findall(text)]
    assert {path.resolve().stem for path in places} == PICTURES.keys()
    assert [name for name in PICTURES if f"({name}.svg)" not in listed] == []


def test_photographs_are_small_and_each_is_on_a_page() -> None:
    kept = set(DOCS.rglob("*.png"))
    assert {path.stem for path in kept} == {
        f"{what}-{shade}" for what in ("status-page", "report") for shade in ("light", "dark")
    }
    assert [path.name for path in kept if path.stat().st_size > LARGEST_BYTES] == []
    assert {
        Path(page.parent / link).resolve() for page, text in PAGES.items() for link in PHOTOGRAPH.findall(text)
    } == kept
