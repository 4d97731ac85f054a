"""``outlive guard``, as the list of commands knows it.

The command itself never comes here: ``outlive.__main__`` dispatches it before anything of the command line is
imported, and its options are the guard's own. This entry is for help, completion and the reference, and for callers
that start the command line in another way.
"""

from __future__ import annotations

import typer

from outlive.guard.main import main

app = typer.Typer(rich_markup_mode=None)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def guard(context: typer.Context) -> None:
    """Empty this host when it cannot prove any more that it is alive: a small process beside the daemon.

    It feeds the hardware watchdog only while renewals are acknowledged, and does nothing until it is armed. Its options
    are in docs/operating/guard.md#options; of the guard that runs, `outlive guard --status` prints the state.
    """
    raise typer.Exit(main(context.args))
