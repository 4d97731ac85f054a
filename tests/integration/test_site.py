"""The manual as a site, in a real browser: it finds, offers its versions, and loads nothing from another server."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.support.browser import Browser, browser
from tests.support.environments import can_be_made
from tests.support.guards import until

pytestmark = [
    pytest.mark.component("chromium"),
    pytest.mark.skipif(not can_be_made("docs"), reason="no uv, which makes the environment of the manual"),
]

ROOT = Path(__file__).parents[2]
VERSIONS = ("0.9", "0.10")
BUILD_LIMIT_S = 300
SHOWN_S = 60.0


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a site of two versions."""
    folder = tmp_path_factory.mktemp("site")
    for version in VERSIONS:
        subprocess.run([ROOT / "scripts/docs", version, folder], check=True, capture_output=True, timeout=BUILD_LIMIT_S)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def texts(tab: Browser, selector: str) -> list[str]:
    """What the elements show."""
    script = f"[...document.querySelectorAll('{selector}')].map(one => one.innerText.trim())"
    found: list[str] = tab.evaluate(script)
    return found


def has_scheme(tab: Browser, scheme: str) -> bool:
    return bool(tab.evaluate("document.body.getAttribute('data-md-color-scheme')") == scheme)


def test_the_front_page_leads_to_the_newest_version(site: str, tab: Browser) -> None:
    tab.open(site, width=1200)
    until(lambda: tab.evaluate("location.pathname") == "/0.10/", "the newest version", SHOWN_S)


def test_a_page_offers_all_versions(site: str, tab: Browser) -> None:
    tab.open(f"{site}/0.9/index.html", width=1200)
    until(lambda: texts(tab, ".md-version__link") == ["0.10", "0.9"], "all versions", SHOWN_S)


def test_the_search_finds_a_page_for_the_night_by_its_words(site: str, tab: Browser) -> None:
    tab.open(f"{site}/0.10/index.html?q=quarantine", width=1200)
    page = "Hosts that die again and again"
    until(lambda: page in " ".join(texts(tab, ".md-search-result__link")), f"page {page}", SHOWN_S)


@pytest.mark.parametrize("dark", [False, True])
def test_pages_are_light_or_dark_as_the_reader_wants_and_load_nothing_from_elsewhere(
    site: str, tab: Browser, dark: bool
) -> None:
    for page in ("index.html", "how-to/night.html", "concepts/coverage.html", "reference/cli.html"):
        tab.open(f"{site}/0.10/{page}", width=1200, dark=dark)
        until(partial(has_scheme, tab, "slate" if dark else "default"), f"{page} dark: {dark}", SHOWN_S)
        assert tab.evaluate("document.querySelector('.md-banner a').href") == f"{site}/0.10/how-to/night.html"
        assert [one for one in tab.requests if not one.startswith(site)] == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1200
        assert tab.complaints == []
