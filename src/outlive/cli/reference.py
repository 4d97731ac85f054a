"""The pages of docs/reference that are made from the code: ``python -m outlive.cli.reference docs/reference``.

``configuration.md`` is made as a whole; in ``cli.md`` everything below the marker is. A test shows that both are what
this makes, so that an option or a setting never exists without its page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from outlive.cli.main import COMMANDS, app
from outlive.cli.settings import all_sections
from outlive.runtime.config import reference_page

MARKER: Final = "<!-- Generated from the code below this line; do not edit. -->\n"


def commands_text() -> str:
    """All commands with their options, as Markdown."""
    parts = ["\n## Commands\n"]
    root = typer.main.get_command(app)
    parts.extend(_sections(root, "outlive", listed=tuple(COMMANDS)))
    for name, entry in COMMANDS.items():
        parts.extend(_sections(entry.load(), f"outlive {name}"))
    return "\n".join(parts)


def _sections(command: Any, path: str, *, listed: tuple[str, ...] = ()) -> Iterator[str]:
    """The section of a command, and of those below it."""
    context = command.make_context(path, [], resilient_parsing=True)
    anchor = "-".join(path.split())
    yield f'### <a id="{anchor}"></a>`{path}`\n'
    yield f"{_plain(command.help or '')}\n"
    below = getattr(command, "commands", {})
    if listed:
        yield "".join(f"- [`outlive {name}`](#outlive-{name}): {COMMANDS[name].help}\n" for name in listed)
    yield f"```\n{_usage(command, context)}\n```\n"
    records = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
    if records:
        rows = [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in records]
        yield "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"
    if not listed:
        for name, part in below.items():
            yield from _sections(part, f"{path} {name}")


def _usage(command: Any, context: Any) -> str:
    return " ".join(command.get_usage(context).removeprefix("Usage: ").split())


def _plain(text: str) -> str:
    return re.sub(r"[ \t]*\n(?!\n)[ \t]*", " ", text.strip()).replace("  ", "\n\n")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def cli_page(before: str) -> str:
    """``cli.md``: what people wrote above the marker, and the commands below it."""
    head, marker, _ = before.partition(MARKER)
    if not marker:
        raise ValueError("cli.md has lost its marker")
    return head + MARKER + commands_text()


def configuration_page() -> str:
    """``configuration.md``."""
    return reference_page(all_sections())


def write_pages(folder: Path) -> None:
    """Bring both pages up to date."""
    page = folder / "cli.md"
    page.write_text(cli_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "configuration.md").write_text(configuration_page(), encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
