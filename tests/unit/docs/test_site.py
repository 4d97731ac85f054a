"""The manual as a site: what scripts/site_hooks.py makes of files, and that the navigation has every page."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def load_hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts/site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load_hooks()


def test_the_navigation_has_every_page_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = Counter(re.findall(r"([\w/.-]+\.md)\s*$", navigation, re.M))
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert listed == Counter([*pages, *hooks.BESIDE.values()])


@pytest.mark.parametrize(
    ("file", "page", "link", "on_site"),
    [
        ("CHANGELOG.md", "changelog.md", "docs/how-to/upgrades.md", "how-to/upgrades.md"),
        ("bench/SEEDS.md", "seeds.md", "RESULTS.md", "results.md"),
        ("docs/evaluate/sizing.md", "evaluate/sizing.md", "../../bench/RESULTS.md", "../results.md"),
        ("docs/evaluate/sizing.md", "evaluate/sizing.md", "../how-to/install.md", "../how-to/install.md"),
        ("docs/testing.md", "testing.md", "../src/outlive/__main__.py", None),
    ],
)
def test_a_link_between_files_is_one_between_pages(file: str, page: str, link: str, on_site: str | None) -> None:
    assert hooks.link_in_site(link, file, page) == on_site


def test_only_links_of_the_text_are_changed() -> None:
    text = "[a](../bench/SEEDS.md#x) and [b](https://example.org/c.md)\n```\n[c](../bench/SEEDS.md)\n```\n"
    expected = "[a](seeds.md#x) and [b](https://example.org/c.md)\n```\n[c](../bench/SEEDS.md)\n```\n"
    assert hooks.text_in_site(text, "docs/testing.md", "testing.md") == expected


def test_each_level_of_a_list_gets_four_spaces() -> None:
    text = "1. one:\n   * inner\n     more\n\n   text\n2. two\n\nEnd\n* last"
    expected = "1. one:\n    * inner\n    more\n\n    text\n\n2. two\n\nEnd\n\n* last"
    assert re.sub(r"\n +more", "\n    more", hooks.indent_lists(text)) == expected


def test_code_keeps_its_indentation() -> None:
    text = "```\n* no list\n    code\n```"
    assert hooks.indent_lists(text) == text


@pytest.mark.parametrize(
    "loading",
    [
        '<script src="https://cdn.example/a.js">',
        "<link href=//fonts.example/x.css>",
        '<img alt="" src="http://a.example/b.png">',
    ],
)
def test_what_a_browser_would_load_from_another_server_is_found(loading: str) -> None:
    assert list(hooks.remote_loads(f"<p>{loading}</p>"))


def test_links_to_other_servers_load_nothing() -> None:
    assert not list(hooks.remote_loads('<a href="https://example.org/">x</a><script src="assets/a.js"></script>'))


def test_versions_are_listed_newest_first_and_the_front_page_leads_to_the_newest(tmp_path: Path) -> None:
    for version in ("0.9", "0.10", "dev", "0.2.1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
    (tmp_path / "unfinished").mkdir()
    hooks.write_versions(tmp_path)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [one["version"] for one in listed] == ["0.10", "0.9", "0.2.1", "dev"]
    assert [one["aliases"] for one in listed] == [["latest"], [], [], []]
    assert 'url=0.10/"' in (tmp_path / "index.html").read_text()
