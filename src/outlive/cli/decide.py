"""``outlive decide``: the decisions of the controllers, on data from a file. ``outlive config``: settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive.base import ExitCode, Usage
from outlive.cli.access import WriteAccess
from outlive.cli.commands import command, make_group
from outlive.cli.output import Report, json_text, make_table, write
from outlive.cli.settings import all_sections, config_file, host_sections, load, served_sections
from outlive.drivers import read_input

if TYPE_CHECKING:
    from outlive.runtime import DecisionTable


def decide(
    name: Annotated[str | None, typer.Argument(help="Which decision, such as failover.plan.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the names of all decisions.")] = False,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="Print schemas of in- and output.")
    ] = None,
    file: Annotated[Path, typer.Option("--file", "-f", help="Input, - for standard input.")] = Path("-"),
) -> ExitCode | None:
    """Replay a decision: outlive decide NAME < in.json > out.json.

    Input that is refused gives {"error": code} and exit code 3.
    """
    table = decision_table()
    if listed:
        write("".join(f"{each}\n" for each in table.list_names()))
        return None
    if schema is not None:
        write(json_text(table.build_schema(schema)))
        return None
    if name is None:
        raise Usage("which decision?", remedy="outlive decide --list shows all")
    from outlive.runtime import is_error

    table.get(name)
    answer = table.decide_json(name, read_input(file))
    sys.stdout.buffer.write(answer + b"\n")
    sys.stdout.buffer.flush()
    return ExitCode.BAD_INPUT if is_error(answer) else None


def decision_table() -> DecisionTable:
    """The decisions of every part."""
    from outlive.commitments import decisions as commitments
    from outlive.drivers import COMMAND_RESULT
    from outlive.failover import decisions as failover
    from outlive.network import decisions as network
    from outlive.node import decisions as node
    from outlive.placement import decisions as placement
    from outlive.recovery import plan as recovery
    from outlive.runtime import DecisionTable
    from outlive.runtime import schema_decisions as schema
    from outlive.storage import decisions as storage

    return DecisionTable(
        (
            COMMAND_RESULT,
            *commitments.DECISIONS,
            *failover.DECISIONS,
            *network.DECISIONS,
            *node.DECISIONS,
            *node.SAFETY_STEPS,
            *placement.DECISIONS,
            *recovery.DECISIONS,
            *schema.DECISIONS,
            *storage.DECISIONS,
        )
    )


config = make_group("Show the effective settings, or the reference of all settings.")

Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings, instead of outlive.yaml.")]
HIDDEN = "(hidden)"
_IN_QUERY = re.compile(r"([?&]password=)[^&]*", re.IGNORECASE)


@command(config, "show")
async def show(access: WriteAccess, output: Report, file: Config = None) -> None:
    """The settings that outlive up would start with here, with defaults filled in; of --server, by which it plans."""
    from outlive.runtime import encode_unit

    if file is None and access.server:
        async with access.open() as store:
            served = await served_sections(store)
        head = f"by which {access.source} plans; it keeps secrets and how it listens to itself"
        output.show(served, lambda: _settings_lines(head, served))
        return
    file = config_file(file, access.directory)
    sections = _load_effective(file)
    document = {name: msgspec.to_builtins(section, enc_hook=encode_unit) for name, section in sections.items()}
    upkeep = document["failoverUpkeep"]
    upkeep["databaseUrl"] = _without_password(upkeep["databaseUrl"])
    upkeep["dataSources"] = {name: _without_password(address) for name, address in upkeep["dataSources"].items()}
    upkeep["schedulerToken"] = HIDDEN if upkeep["schedulerToken"] else ""
    output.show(document, lambda: _settings_lines(f"from {file}" if file else "defaults and environment", document))


def _load_effective(file: Path | None) -> dict[str, Any]:
    """All sections, with what failover and the scheduler take where nothing is given."""
    from outlive.roles import role_settings

    sections = load(file)
    settings = role_settings(sections)
    return {**sections, "failover": settings.failover, "scheduler": settings.scheduler}


def _settings_lines(head: str, document: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    rows = [
        (f"{name}.{key}", _format_value(value)) for name, section in document.items() for key, value in section.items()
    ]
    return [head, make_table(("key", "value"), rows)]


@command(config, "reference")
def print_reference() -> None:
    """The reference of all settings, as Markdown."""
    from outlive.runtime import reference_page

    write(reference_page(all_sections(), host_sections()))


@command(config, "timings")
async def show_timings(access: WriteAccess, output: Report, file: Config = None) -> None:
    """All intervals and limits of time: fixed ones, those of profiles, and settings as config show has them."""
    from outlive.cli.timings import list_timings, timing_rows

    hosts = {name: section() for name, section in host_sections().items()}
    timings = list_timings(_load_effective(config_file(file, access.directory)), hosts)
    document = [
        {"topic": one.topic, "name": one.name, "seconds": one.seconds, "kind": one.kind, "meaning": one.meaning}
        for one in timings
    ]
    output.show(document, lambda: [make_table(("topic", "name", "value", "kind", "meaning"), timing_rows(timings))])


def _without_password(address: str) -> str:
    scheme, separator, rest = _IN_QUERY.sub(rf"\1{HIDDEN}", address).partition("://")
    if "@" not in rest:
        return f"{scheme}{separator}{rest}"
    user, _, host = rest.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{':' + HIDDEN if ':' in user else ''}@{host}"


def _format_value(value: Any) -> str:
    if value == "":
        return ""
    if isinstance(value, dict | list | tuple):
        return msgspec.json.encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)
