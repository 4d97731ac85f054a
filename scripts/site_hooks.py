"""Hooks of mkdocs for the manual (mkdocs.yml).

They make pages of three files from outside of docs/, give lists the depth that the site's parser reads, refuse a page
that reads otherwise than its file or that loads something from another server, and write the list of versions."""

from __future__ import annotations

import json
import logging
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

LOG: Final = logging.getLogger("mkdocs.hooks")
"""Its warnings end a strict build, after all pages."""
ROOT: Final = Path(__file__).resolve().parent.parent
BESIDE: Final = {"CHANGELOG.md": "changelog.md", "bench/RESULTS.md": "results.md", "bench/SEEDS.md": "seeds.md"}
"""Files outside of docs/ that are pages of the site, with their names there."""
LINK: Final = re.compile(r"(?<=\]\()([^)\s:#]+)((?:#[\w./-]+)?\))")
FENCE: Final = re.compile(r"^```.*?^```", re.S | re.M)
FIRST_FOUND: Final = re.compile(r"(start|how-to|concepts|evaluate)/|glossary")
NOT_FOUND: Final = re.compile(r"bugs|safety-proof|seeds|results|changelog|design/[a-z]+-decisions")
"""Pages that the search puts first, and those that it leaves out: lists for developers."""
ITEM: Final = re.compile(r"(?:[*-]|\d+\.) +")
LOADED: Final = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\"'\s>]+")
FRONT: Final = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={0}/">
<a href="{0}/">{0}</a>
"""


def page_of(file: str) -> str | None:
    """The page of the site that a file of the project becomes; None if it becomes none."""
    return BESIDE.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else None)


def link_in_site(link: str, file: str, page: str) -> str | None:
    """A link of a file as its page has it; None if its target is no part of the site."""
    target = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(file), link)))
    return None if target is None else posixpath.relpath(target, posixpath.dirname(page) or ".")


def text_in_site(text: str, file: str, page: str) -> str:
    """The text of a file as its page has it: links to files of the project become links to their pages."""
    kept: list[str] = []

    def put_aside(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    def follow(match: re.Match[str]) -> str:
        link = link_in_site(match[1], file, page)
        return match[0] if link is None else link + match[2]

    linked = LINK.sub(follow, FENCE.sub(put_aside, text))
    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], linked)


def indent_lists(text: str) -> str:
    """The text with four spaces for each level of its lists: the site's parser knows no other depth, and the files have
    the one that their markers need."""
    lines, offsets, fence = list[str](), list[int](), False
    after_blank, after_item, loose = True, False, False  # loose: the item has more than one paragraph
    for line in text.split("\n"):
        body = line.lstrip(" ")
        indent, item = len(line) - len(body), None if fence else ITEM.match(body)
        if body and not fence and (item or after_blank or (indent == 0 and body.startswith("#"))):
            while offsets and indent < offsets[-1]:
                offsets.pop()
        if item and not after_blank and (loose or (not offsets and not after_item)):
            lines.append("")
        inside = indent - offsets[-1] if offsets else indent
        lines.append(" " * (4 * len(offsets) + max(inside, 0)) + body if body else "")
        if item:
            offsets.append(indent + len(item[0]))
        fence ^= body.startswith("```")
        after_blank, after_item = not body, bool(offsets)
        loose = not item and (loose or not body or body.startswith("```"))
    return "\n".join(lines)


def structure(html: str) -> Counter[str]:
    """How often a page has each element that its parser could mistake."""
    return Counter(re.findall(r"<(ul|ol|li|table|tr|pre|h[1-6])\b", html))


def remote_loads(html: str) -> Iterator[str]:
    """Elements of a page that have a browser load something from another server."""
    return (match[0] for match in LOADED.finditer(html) if 'rel="canonical"' not in match[0])


def version_order(version: str) -> tuple[bool, list[int], str]:
    """Numbers by their parts; names, as of a branch, come before all of them."""
    numbers = re.findall(r"\d+", version) if version[:1].isdigit() else []
    return bool(numbers), [int(one) for one in numbers], version


def list_versions(folder: Path) -> list[dict[str, Any]]:
    """The versions that lie in a folder, the newest first, as the theme's selector reads them."""
    found = sorted((one.parent.name for one in folder.glob("*/index.html")), key=version_order, reverse=True)
    return [{"version": one, "title": one, "aliases": ["latest"] if one == found[0] else []} for one in found]


def write_versions(folder: Path) -> None:
    """Write ``versions.json``, and a front page that leads to the newest version."""
    versions = list_versions(folder)
    (folder / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
    (folder / "index.html").write_text(FRONT.format(versions[0]["version"]))


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # only the environment of the manual has it

    for name, page in BESIDE.items():
        files.append(File.generated(config, page, content=text_in_site((ROOT / name).read_text(), name, page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    page.meta["search"] = {"exclude": True} if NOT_FOUND.match(uri) else {"boost": 2 if FIRST_FOUND.match(uri) else 1}
    return indent_lists(markdown if uri in BESIDE.values() else text_in_site(markdown, f"docs/{uri}", uri))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Refuse a page that reads otherwise on the site than as a file."""
    from markdown_it import MarkdownIt

    file, site = structure(MarkdownIt("commonmark").enable("table").render(page.file.content_string)), structure(html)
    if file != site:
        uri = page.file.src_uri
        LOG.warning("%s has %s only as a file, %s only on the site", uri, dict(file - site), dict(site - file))
    return html


def on_post_page(output: str, page: Any, **_: Any) -> str:
    if loads := sorted(set(remote_loads(output))):
        LOG.warning("%s loads from another server: %s", page.file.src_uri, ", ".join(loads))
    return output


def on_post_build(config: Any) -> None:
    if os.environ.get("OUTLIVE_DOCS_VERSION"):
        write_versions(Path(config.site_dir).parent)
