"""Arguments that several commands take: which VM, which hosts, which object. Their names are completed.

Hosts that a command acts on stand after it, with spaces or commas between them; an option for hosts takes commas, and
may be repeated. Completion asks the server that the command would ask, for at most ``COMPLETION_S``; where none answers
it completes nothing, and says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from outlive.base import OutliveError, Usage
from outlive.cli.access import Access
from outlive.cli.values import split_words

COMPLETION_S: Final = 1.5
"""How long completion waits for the server."""
_ACCESS: Final = ("state", "state_dir", "server", "token", "fingerprint", "insecure", "store")


def name_completer(kind: str) -> Callable[[typer.Context, str], list[str]]:
    """What completes names of objects of that kind, by its plural; of a list with commas the last one."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        head, comma, last = incomplete.rpartition(",")
        return [f"{head}{comma}{name}" for name in names_from_server(ctx, kind, last)]

    return complete


def names_from_server(ctx: typer.Context, plural: str, incomplete: str) -> list[str]:
    """Names that begin so; none where no server answers in time."""
    given: dict[str, Any] = {name: ctx.params.get(name) for name in _ACCESS}

    async def complete(access: Access) -> list[str]:
        from outlive.cli.commands import log_little
        from outlive.resources import PLURALS
        from outlive.store import complete_name

        if not access.address:
            return []
        log_little()
        async with asyncio.timeout(COMPLETION_S), access.open() as store:
            return await complete_name(store, PLURALS[plural], incomplete)

    with contextlib.suppress(OutliveError, OSError, TimeoutError, ValueError):
        return asyncio.run(complete(Access(**{**given, "insecure": bool(given["insecure"])})))
    return []


_hosts, _vms = name_completer("hypervisors"), name_completer("virtualmachines")

OneVm = Annotated[
    str,
    typer.Argument(metavar="VM", help="Its display name, project/name, or id.", autocompletion=_vms),
]
MaybeVm = Annotated[
    str | None,
    typer.Argument(metavar="[VM]", help="Its display name, project/name, or id.", autocompletion=_vms),
]
Vms = Annotated[
    list[str],
    typer.Argument(metavar="VM", help="Which VMs, by display name, project/name, or id.", autocompletion=_vms),
]
OneHost = Annotated[str, typer.Argument(metavar="HOST", help="Which host.", autocompletion=_hosts)]
MaybeHost = Annotated[str, typer.Argument(metavar="[HOST]", help="Which; else this machine.", autocompletion=_hosts)]
Hosts = Annotated[
    list[str],
    typer.Argument(metavar="HOST", help="Which hosts, with spaces or commas between them.", autocompletion=_hosts),
]
MaybeHosts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[HOST]", help="Which hosts, with spaces or commas between them.", autocompletion=_hosts),
]
VmOrHost = Annotated[
    str,
    typer.Argument(
        metavar="VM|HOST",
        help="A VM by display name, project/name or id; or a host.",
        autocompletion=lambda ctx, incomplete: [*_hosts(ctx, incomplete), *_vms(ctx, incomplete)],
    ),
]
ToHost = Annotated[
    str,
    typer.Option(
        "--to", "-t", metavar="HOST", help="Where to; otherwise the best host is chosen.", autocompletion=_hosts
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait", help="Report progress, and return when it is done.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason, kept in the record.")]
By = Annotated[str, typer.Option("--operator", metavar="NAME", help="Who asks; otherwise the login name.")]


def host_names(texts: list[str] | None) -> list[str]:
    """The hosts that the arguments name, each once; ``Usage`` where none is named."""
    found = split_words(*(texts or ()))
    if not found:
        raise Usage("no host is named", place="HOST", remedy="write hosts with spaces or commas between them")
    return found
