"""``outlive node join``: exchange a join token for this host's own, and write down where the cluster is.

What can be wrong on this host, also with its configuration, is looked at before the token is used, because that is
good for once. Written are the server's authority, the host's token and, on a coordinator, the cluster's key, the last
two readable by root alone; then the section ``server`` of the host's configuration, whose other lines stay as they are.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import msgspec
import typer

from outlive.base import BadInput, Forbidden, NotFound, Refused, SystemClock, Unavailable, Unknown, Usage
from outlive.cli.access import read_token
from outlive.cli.node_settings import SECTIONS, check_clock, host_name, load_node, node_file
from outlive.cli.output import write
from outlive.drivers import forget_former, read_input, write_output, write_private
from outlive.store import JOIN_PATH, check_address, fetch_authority, make_client_context, parse_fingerprint

TOKEN_FILE: Final = "node.token"  # noqa: S105 - the name of a file
AUTHORITY_FILE: Final = "ca.pem"
CLUSTER_KEY_FILE: Final = "cluster-key"
"""All three beside the configuration."""
CONFIG_BYTES: Final = 1 << 20
SECRET_BYTES: Final = 64 * 1024
ANSWER_S: Final = 60.0
AGAIN: Final = "outlive token create --join"


class JoinReply(msgspec.Struct, frozen=True, rename="camel"):
    """What the server answers."""

    host: str
    role: str
    token: str
    cluster_key: str = ""


class _Problem(msgspec.Struct, frozen=True):
    message: str = ""
    remedy: str = ""


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the server, such as https://ctl.example:8443.")],
    token: Annotated[
        str, typer.Option("--token", metavar="TOKEN", envvar="OUTLIVE_TOKEN", help="The join token; @FILE reads it.")
    ],
    fingerprint: Annotated[
        str, typer.Option("--fingerprint", metavar="SHA256", help="Of the server's authority, as outlive up prints it.")
    ] = "",
    authority: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="Authority (PEM) of a server that uses a certificate you provided."),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Instead of the machine's short host name.")] = "",
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Instead of /etc/outlive/node.yaml.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send the tokens over plain HTTP, now and later, if need be.")
    ] = False,
) -> None:
    """Join a cluster: exchange a join token for this host's own, and write both into the host's configuration."""
    from outlive.cli.commands import log_little

    log_little()
    check_address(url, insecure=insecure)
    if fingerprint and authority is not None:
        raise Usage(
            "a fingerprint is of the server's own authority, and an authority in a file is believed with the name of "
            "the server",
            place="--fingerprint, --ca",
            remedy="give the --fingerprint that outlive up prints, or the --ca of the operator's certificate",
        )
    if fingerprint:
        parse_fingerprint(fingerprint)
    if token.startswith("@"):
        token = read_token(Path(token[1:]))
    file = node_file(config)
    text = _text_of(file)
    host, machine_id = _find_identity(file, text, name)
    everything = {"host": {"name": host, "mode": "coordinator"}, "server": {"url": url, "keyFile": CLUSTER_KEY_FILE}}
    add_join_settings(text, everything, file)  # whether it can be written down is known before the join token is used
    pem = _find_authority(url, fingerprint, authority)
    folder = file.parent
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot be made: {error.strerror}", place=str(folder), remedy="join as root") from None
    if pem:
        write_output(folder / AUTHORITY_FILE, pem.encode())
    probe = folder / f".{TOKEN_FILE}.probe"  # whether it can be kept is known before the join token is used
    write_private(probe, bytes(SECRET_BYTES))
    probe.unlink()
    trust = make_client_context(pem, pinned=fingerprint) if pem else None
    joined = asyncio.run(_exchange(url, token, {"host": host, "machineId": machine_id}, trust))
    forget_former(folder / TOKEN_FILE, folder / AUTHORITY_FILE)
    write_private(folder / TOKEN_FILE, joined.token.encode() + b"\n")
    if joined.cluster_key:
        write_private(folder / CLUSTER_KEY_FILE, joined.cluster_key.encode())
    server: dict[str, Any] = {"url": url, "tokenFile": str(folder / TOKEN_FILE)}
    server |= {"caFile": str(folder / AUTHORITY_FILE)} if pem else {}
    server |= {"fingerprint": parse_fingerprint(fingerprint)} if fingerprint else {}
    server |= {"keyFile": str(folder / CLUSTER_KEY_FILE)} if joined.cluster_key else {}
    server |= {"insecure": True} if insecure and url.startswith("http://") else {}
    own: dict[str, Any] = {"name": host} if name else {}
    own |= {"mode": "coordinator"} if joined.role == "coordinator" else {}
    text = add_join_settings(text, {"host": own, "server": server}, file)
    write_output(file, text.encode())
    load_node(file)
    what = "coordinator" if joined.role == "coordinator" else "host"
    write(f"outlive: {host} has joined {url} as a {what}; start it: systemctl enable --now outlive-node\n")


def _text_of(file: Path) -> str:
    try:
        return read_input(file, limit=CONFIG_BYTES).decode()
    except NotFound:
        return ""
    except UnicodeDecodeError:
        raise BadInput("is no text", place=str(file), remedy="put the configuration back, or remove it") from None


def _find_identity(file: Path, text: str, name: str) -> tuple[str, str]:
    """The host's name and the machine's id, as its daemon will say them; what is wrong with either is said here."""
    from outlive.drivers import LinuxMachine
    from outlive.runtime import load_settings

    check_clock(SystemClock())
    settings = load_settings(SECTIONS, file=file if text else None, environ={}, flags={})["host"]
    if name and settings.name not in ("", name):
        raise BadInput(
            f"this host is called {settings.name} there, and --name says {name}",
            place=f"{file}: host.name",
            remedy="leave --name out, or change it there",
        )
    host = name or host_name(settings)
    machine = LinuxMachine(settings, host)
    machine.prepare()
    return host, machine.machine_id()


def _find_authority(url: str, fingerprint: str, file: Path | None) -> str:
    """The authority to believe (PEM); empty for those of the system."""
    if not url.startswith("https://"):
        return ""
    if file is not None:
        pem = read_input(file, limit=SECRET_BYTES).decode("ascii", "replace")
        make_client_context(pem)
        return pem
    return asyncio.run(fetch_authority(url, fingerprint)) if fingerprint else ""


async def _exchange(url: str, token: str, wish: dict[str, str], trust: ssl.SSLContext | None) -> JoinReply:
    where = url.rstrip("/") + JOIN_PATH
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session,
            session.post(where, json=wish, headers=headers, ssl=trust or True, allow_redirects=False) as answer,
        ):
            raw = await answer.content.read(SECRET_BYTES)
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
        remedy = "give the --fingerprint that outlive up printed there, or the authority with --ca"
        raise Unavailable(f"{url} is not believed: {error}", remedy=remedy) from None
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL, ValueError) as error:
        remedy = "check the address, and that outlive up runs there"
        raise Unavailable(f"{url} cannot be reached: {error}", remedy=remedy) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        what = f"the answer of {url} was lost: {error or type(error).__name__}"
        raise Unknown(
            what, remedy=f"the join token may be used up: create another one ({AGAIN} --host {wish['host']})"
        ) from None
    if answer.status == 200:
        try:
            return msgspec.json.decode(raw, type=JoinReply)
        except msgspec.MsgspecError:
            raise Unavailable(
                f"{url} does not answer as a server of Outlive does", remedy="check the address"
            ) from None
    try:
        problem = msgspec.json.decode(raw, type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem()
    message = problem.message or f"the server answered {answer.status}"
    if answer.status == 401:
        raise Forbidden(message, remedy=f"create another join token: {AGAIN}")
    kind = Forbidden if answer.status in (401, 403) else Unavailable if answer.status >= 500 else Refused
    raise kind(message, remedy=problem.remedy or "see the server's log")


# The configuration as text: what people wrote stays


def add_join_settings(text: str, sections: dict[str, dict[str, Any]], file: Path) -> str:
    """The configuration of a host that has joined: these keys in section ``host``, and this section ``server``.

    ``BadInput`` where lines cannot be put into the file so that it says this and what it said before.
    """
    from outlive.runtime import parse_settings

    before, _ = parse_settings(text.encode(), str(file))
    own = sections["host"]
    wanted = {**before, "server": sections["server"]}
    if own:
        wanted["host"] = {**(before.get("host") or {}), **own}
    try:
        new = with_section(text, "server", sections["server"])
        new = with_keys(new, "host", own) if own else new
        after, _ = parse_settings(new.encode(), str(file))
    except BadInput:
        after = None
    if after != wanted:
        raise BadInput(
            "it is not written in lines, so that the server cannot be added to it",
            place=str(file),
            remedy="write each section as its name and ':', and its keys below it, indented (no JSON)",
        )
    return new


def with_section(text: str, section: str, values: dict[str, Any]) -> str:
    """The configuration with this section, in place of one of that name."""
    lines = text.splitlines()
    made = [f"{section}:", *(f"  {key}: {_dump_scalar(value)}" for key, value in values.items())]
    found = _find_section(lines, section)
    if found is None:
        gap = [""] if lines and lines[-1].strip() else []
        return "\n".join([*lines, *gap, *made]) + "\n"
    return "\n".join([*lines[: found[0]], *made, *lines[found[1] :]]) + "\n"


def with_keys(text: str, section: str, values: dict[str, Any]) -> str:
    """The configuration with these keys in a section; ``BadInput`` where that is not written in lines."""
    lines = text.splitlines()
    found = _find_section(lines, section)
    if found is None:
        return with_section(text, section, values)
    begin, end = found
    if lines[begin].partition("#")[0].strip() != f"{section}:":
        raise BadInput(f"section {section} is not written in lines", remedy=f"write {section}: and its keys below it")
    block = lines[begin + 1 : end]
    indent = next((line[: len(line) - len(line.lstrip())] for line in block if line.strip()), "  ")
    for key, value in values.items():
        wanted = f"{indent}{key}: {_dump_scalar(value)}"
        at = next((index for index, line in enumerate(block) if line.startswith(f"{indent}{key}:")), None)
        if at is None:
            block.insert(0, wanted)
        else:
            block[at] = wanted
    return "\n".join([*lines[: begin + 1], *block, *lines[end:]]) + "\n"


def _find_section(lines: list[str], section: str) -> tuple[int, int] | None:
    """Where a section of the file begins and ends; blank lines and comments behind it belong to what follows."""
    begin = next((index for index, line in enumerate(lines) if line.startswith(f"{section}:")), None)
    if begin is None:
        return None
    rest = range(begin + 1, len(lines))
    end = next((index for index in rest if lines[index][:1] not in ("", " ", "\t", "#")), len(lines))
    while end > begin + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1
    return begin, end


def _dump_scalar(value: Any) -> str:
    return msgspec.json.encode(value).decode()
