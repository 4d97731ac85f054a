"""A whole document: one file that needs nothing else, loads nothing, and runs only what stands in it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from outlive.failover.pictures.markup import Child, Markup, tag
from outlive.failover.pictures.model import Fleet

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16' "
    "rx='3' fill='%23146b5a'/%3E%3Cpath d='M4 8.5l3 3 5-7' fill='none' stroke='white' stroke-width='2'/%3E%3C/svg%3E"
)


def document(title: str, fleet: Fleet, sections: Sequence[Child]) -> bytes:
    """The page as UTF-8."""
    script, style = _part("report.js"), _part("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'{tag("title", f"{title} – Outlive")}<link rel="icon" href="{ICON}"><style>{style}</style>'
    )
    about = f"As of {fleet.when}, from {fleet.source}." if fleet.when else f"From {fleet.source}."
    header = tag("header", tag("h1", title), tag("p", about))
    footer = tag("footer", "Made by Outlive from exactly the state named above; it does not follow changes.")
    body = f"{header}{tag('main', *sections, footer)}<script>{script}</script>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'.encode()


def section(title: str, *children: Child, about: str = "") -> Markup:
    """A part of the page with its heading."""
    return tag("section", tag("h2", title), tag("p", about, class_="soft") if about else None, *children)


def verdict(good: bool, says: str, *more: str) -> Markup:
    """The answer, in large letters."""
    word = tag("span", "yes" if good else "no", class_="word good" if good else "word bad")
    return tag(
        "section",
        tag(
            "div",
            tag("strong", says),
            tag("p", word, Markup(" "), " ".join(more)),
            class_="verdict" if good else "verdict bad",
        ),
    )


def cards(figures: Sequence[tuple[str, str, str, str]]) -> Markup:
    """Figures as (what, value, remark, ``good``, ``bad`` or nothing)."""
    return tag(
        "dl",
        *(
            tag(
                "div",
                tag("dt", what),
                tag("dd", value, class_=f"big {kind}".strip()),
                tag("dd", remark) if remark else None,
            )
            for what, value, remark, kind in figures
        ),
        class_="cards",
    )


def _part(name: str) -> str:
    return (files("outlive.failover.pictures") / name).read_text(encoding="utf-8")
