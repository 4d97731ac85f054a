"""``outlive decide``: the decisions of the controllers, on data from standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from outlive.base.errors import ExitCode, Usage
from outlive.cli.commands import single
from outlive.cli.output import json_text, write


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
    from outlive.roles.decisions import decision_table

    table = decision_table()
    if listed:
        write("".join(f"{each}\n" for each in table.names()))
        return None
    if schema is not None:
        write(json_text(table.schema(schema)))
        return None
    if name is None:
        raise Usage("which decision?", remedy="outlive decide --list shows all")
    return _decide(name, file)


def _decide(name: str, file: Path) -> ExitCode | None:
    from outlive.drivers.files import read_input
    from outlive.roles.decisions import decision_table
    from outlive.runtime.decisions import is_error

    table = decision_table()
    table.get(name)
    answer = table.decide_json(name, read_input(file))
    sys.stdout.buffer.write(answer + b"\n")
    sys.stdout.buffer.flush()
    return ExitCode.BAD_INPUT if is_error(answer) else None


app = single("decide", decide)
