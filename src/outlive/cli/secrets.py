"""``outlive secret``: set, list and delete secrets, and change the key that they are sealed for.

A value comes from standard input or a file, never from the command line, and is sealed in this process
(docs/how-to/secrets.md).
"""

from __future__ import annotations

import contextlib
import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from outlive.base import BadInput, NotFound, Refused, Usage, count_of, join_parts
from outlive.cli.access import Access, WriteAccess
from outlive.cli.arguments import Yes
from outlive.cli.commands import command, make_group
from outlive.cli.output import ObjectOutput, write
from outlive.cli.questions import ask
from outlive.drivers import KEY_FILE, STDIN, VALUE_BYTES, ClusterKey, SealingKey, read_input
from outlive.resources import CLUSTER, Cluster, ClusterStatus, Hypervisor, ObjectMeta, Secret, SecretSpec
from outlive.store import change_spec, change_status, compare_and_swap, list_all, read

if TYPE_CHECKING:
    from outlive.base import Clock
    from outlive.store import Store

secret = make_group("Credentials that only coordinators can read, such as those of BMCs.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Which secret.")]


@command(secret, "set")
async def set_secret(
    access: WriteAccess,
    name: Name,
    username: Annotated[str | None, typer.Option("--username", help="Who the value is the password of.")] = None,
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="FILE", help="Holds the value; else standard input.")
    ] = STDIN,
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="ADDRESS", help="A BMC that may see it; else any."),
    ] = None,
) -> None:
    """Create a secret, or give it another value."""
    if file == STDIN and sys.stdin.isatty():
        value = getpass.getpass(f"Value of secret {name}: ").encode()
    else:  # without the end of its line
        value = read_input(file, limit=VALUE_BYTES + 2).removesuffix(b"\n").removesuffix(b"\r")
    async with access.open(write=True) as store:
        key = await sealing_key(store)

        def change(old: Secret | None) -> Secret:
            kept = old if old is not None else Secret(metadata=ObjectMeta(name=name))
            user = username if username is not None else kept.spec.username
            addresses = tuple(address) if address is not None else kept.spec.addresses
            sealed = key.seal(name, value, user, addresses)
            return msgspec.structs.replace(kept, spec=SecretSpec(username=user, addresses=addresses, sealed=sealed))

        await compare_and_swap(store, Secret, name, change, half="spec", clock=access.clock)
    write(f"secret/{name} set\n")


async def sealing_key(store: Store) -> SealingKey:
    """The public half of the cluster's key."""
    try:
        text = (await store.get(Cluster, CLUSTER, fresh=True)).status.sealing_key
    except NotFound:
        text = ""
    if not text:
        raise Refused("the cluster has no key to seal secrets with yet", remedy="start outlive up once")
    return SealingKey.parse(text)


@command(secret, "list")
async def list_secrets(access: Access, output: ObjectOutput) -> None:
    """All secrets, without their values."""
    async with access.open() as store:
        output.print_objects([one async for one in list_all(store, Secret)], empty="there are no secrets")


@command(secret, "delete")
async def delete_secret(access: WriteAccess, name: Name, yes: Yes = False) -> None:
    """Delete a secret, and ask before; devices that need it become unreachable."""
    async with access.open(write=True) as store:
        found = await store.get(Secret, name, fresh=True)
        ask(f"Delete secret {name}? What uses it, such as a BMC, cannot be reached any more.", yes)
        await store.delete(found.ref, uid=found.metadata.uid)
    write(f"secret/{name} deleted\n")


@command(secret, "rotate-key")
async def rotate_key(
    access: WriteAccess,
    finish: Annotated[
        bool, typer.Option("--finish", help="Every coordinator has the new key: seal all secrets for it alone.")
    ] = False,
    leave: Annotated[
        list[str] | None,
        typer.Option("--leave", metavar="HOST", help="Finish without this coordinator, which may be off for long."),
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", metavar="FILE", help="Instead of the one in the state directory.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Make a new key, in two steps: no coordinator is ever without the key of a secret. Runs beside outlive up.

    Coordinators fetch it from outlive up automatically. The second step gives up the old key, and asks before.
    """
    path = key_file or access.directory / KEY_FILE
    key = ClusterKey.read(path)
    async with access.open(write=True) as store:
        if (cluster := await read(store, Cluster, CLUSTER)) is not None and cluster.status.replicated:
            raise Refused(
                "several controllers share this key, and none of them replaces it alone",
                remedy="docs/how-to/kubernetes.md#authority",
            )
        published = (await sealing_key(store)).id
        if published not in key.ids:
            what = f"secrets are sealed for key {published}, which is not in it"
            raise BadInput(what, place=str(path), remedy="name the key file of this cluster")
        went_on = await publish(store, access.clock, key, sealing=False)  # an earlier command may have ended before it
        if not finish:
            if published == key.ids[0]:
                key = ClusterKey.generate(key)
                key.write(path)
                await publish(store, access.clock, key, sealing=False)
            elif not went_on:
                raise Refused(
                    "a new key is there already", place=str(path), remedy="outlive secret rotate-key --finish"
                )
            write(f"new key in {path}\nonce every coordinator has fetched it: outlive secret rotate-key --finish\n")
            return
        if published == key.ids[0] and len(key.keys) == 1:
            if not went_on:
                raise Usage("there is no new key", place="--finish", remedy="first: outlive secret rotate-key")
            write(f"secrets are sealed for key {published}; the old key is not in {path} any more\n")
            return
        await _check_coordinators(store, key, leave or [])
        ask(f"Give up the old key in {path}? Copies of the store that are sealed for it cannot be opened then.", yes)
        await publish(store, access.clock, key)
        count = 0
        async for one in list_all(store, Secret):
            count += await _reseal(store, access.clock, one.name, key)
        key = key.without_older()
        key.write(path)
        await publish(store, access.clock, key)
    write(f"{count_of(count, 'secret')} sealed for key {key.ids[0]}; the old key is not in {path} any more\n")


async def _reseal(store: Store, clock: Clock, name: str, key: ClusterKey) -> int:
    """How many were: one, or none where it is sealed for the newest key, or gone."""
    done = 0

    def seal_again(found: Secret) -> SecretSpec | None:
        nonlocal done
        if found.spec.key == key.ids[0]:
            return None
        done = 1
        sealed = key.public.seal(name, key.unseal(found), found.spec.username, found.spec.addresses)
        return msgspec.structs.replace(found.spec, sealed=sealed)

    await change_spec(store, Secret, name, seal_again, clock=clock)
    return done


async def _check_coordinators(store: Store, key: ClusterKey, left: list[str]) -> None:
    """``Refused`` while a coordinator has not fetched the newest key."""
    without = [
        host.name
        async for host in list_all(store, Hypervisor)
        if host.spec.mode == "coordinator" and key.ids[0] not in host.status.key_ids and host.name not in left
    ]
    if without:
        raise Refused(
            f"{join_parts(sorted(without))} {'has' if len(without) == 1 else 'have'} not fetched key {key.ids[0]} yet",
            remedy="start the daemon there, or see the fault cluster-key-old; "
            f"or go on without (--leave {sorted(without)[0]}): then it opens no secret until it has fetched the key",
        )


async def publish(store: Store, clock: Clock, key: ClusterKey, *, sealing: bool = True) -> bool:
    """Say which keys there are, and have everybody seal for the newest; whether something else was said before."""
    other = False

    def set_keys(cluster: Cluster) -> ClusterStatus | None:
        nonlocal other
        status = msgspec.structs.replace(cluster.status, key_ids=key.ids)
        if sealing:
            status = msgspec.structs.replace(status, sealing_key=key.public.text)
        other = status != cluster.status
        return status if other else None

    await change_status(store, Cluster, CLUSTER, set_keys, clock=clock)
    return other


async def ensure_key(store: Store, clock: Clock, path: Path) -> str:
    """A cluster that has no key yet gets one, and everybody learns its public half. What is wrong with it, if anything.

    A key that was lost is never replaced: coordinators still have it, and everything that is sealed is sealed for it.
    """
    try:
        text = (await store.get(Cluster, CLUSTER, fresh=True)).status.sealing_key
    except NotFound:
        return ""
    if not text:
        await publish(store, clock, ClusterKey.ensure(path))
        return ""
    published = SealingKey.parse(text).id
    with contextlib.suppress(NotFound):
        key = ClusterKey.read(path)
        if published in key.ids:
            await publish(store, clock, key, sealing=False)
            return ""
    return f"{path} does not hold the cluster's key {published}; copy it from a coordinator (/etc/outlive/{KEY_FILE})"
