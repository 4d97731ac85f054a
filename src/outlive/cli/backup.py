"""``outlive backup`` and ``outlive restore``: the two halves of one thing (docs/how-to/state.md#backup).

A backup is made beside a running server, whose machine it is on, or asked of a server elsewhere with an administrator's
token. That one is whole but for its keys, which it has only where the server's own settings encrypt them: no token
reads the cluster's key.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from outlive.base import BadInput, OutliveError, Usage, count_of, join_parts, shown_time
from outlive.cli.access import Access, StoreKind, WriteAccess, check_store_exists
from outlive.cli.arguments import Yes, host_names, name_completer
from outlive.cli.output import Report, show_progress, write
from outlive.cli.questions import ask
from outlive.cli.settings import config_file, load

if TYPE_CHECKING:
    from outlive.drivers import BackupSource, KeyLock, KeyOpener, Manifest
    from outlive.runtime import BackupSettings
    from outlive.store.sqlite import Restored

IDENTITY_BYTES = 64 * 1024

PassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", metavar="FILE", help="Its first line is the passphrase of the keys."),
]


async def backup(
    access: WriteAccess,
    output: Report,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")],
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Ask for the passphrase with which the keys are encrypted.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    recipient: Annotated[
        str, typer.Option("--recipient", metavar="AGE1…", help="Encrypt the keys for this age recipient instead.")
    ] = "",
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings, instead of outlive.yaml.")
    ] = None,
) -> None:
    """Write everything that a lost server needs into one file, with or without a running server, and check it.

    Without a passphrase or recipient, here or in section backup of the settings, it has no keys.
    """
    from outlive.drivers import write_backup

    if access.state is not None:
        raise Usage("a state file is no state directory", place="--state", remedy="leave --state out")
    if access.direct and access.store is StoreKind.ZOOKEEPER:
        remedy = "copy what is there, the keys included: docs/how-to/zookeeper.md#backup"
        raise Usage("a store on ZooKeeper is backed up with its ensemble", place="--store zookeeper", remedy=remedy)
    if access.direct:
        remedy = "take a snapshot of etcd, and back the Secret outlive-keys up: docs/how-to/kubernetes.md"
        raise Usage("a Kubernetes store is backed up with its etcd", place="--store kubernetes", remedy=remedy)
    if access.server is not None:
        if passphrase or passphrase_file is not None or recipient:
            raise Usage(
                "a server encrypts its keys as its own settings say, and for nobody else",
                place="--server",
                remedy="set backup.recipient or backup.passphraseFile there, or run this on its machine",
            )
        manifest = await _fetch(access, file)
    else:
        directory = access.directory
        check_store_exists(directory)
        settings_file = config_file(config, directory)
        given = _choose_lock(passphrase, passphrase_file, recipient)
        lock = given or settings_lock(load(settings_file)["backup"], directory)
        with show_progress("copying the store"):
            manifest = write_backup(backup_source(directory, settings_file, lock), file, access.clock)
    document = {"file": str(file), "sizeBytes": file.stat().st_size, **msgspec.to_builtins(manifest)}
    output.show(document, lambda: _backup_lines(file, manifest))


def backup_source(directory: Path, settings_file: Path | None, lock: KeyLock | None) -> BackupSource:
    """What a backup of a state directory is made from."""
    from outlive import __version__
    from outlive.drivers import BackupSource

    return BackupSource(directory, settings_file, os.uname().nodename, __version__, lock)


def settings_lock(settings: BackupSettings, directory: Path) -> KeyLock | None:
    """What the settings encrypt keys with; ``None``: nothing, so that they are left out. ``BadInput`` and others."""
    from outlive.drivers import KeyLock, check_recipient, read_passphrase

    if settings.recipient:
        return check_recipient(settings.recipient, "backup.recipient")
    if settings.passphrase_file:
        return KeyLock(passphrase=read_passphrase(directory / settings.passphrase_file))
    return None


def _choose_lock(asks: bool, passphrase_file: Path | None, recipient: str) -> KeyLock | None:
    from outlive.drivers import KeyLock, check_recipient, parse_passphrase, read_passphrase

    if asks + (passphrase_file is not None) + bool(recipient) > 1:
        raise Usage(
            "the keys are encrypted in one way",
            place="--passphrase",
            remedy="give one of --passphrase, --passphrase-file, --recipient",
        )
    if recipient:
        return check_recipient(recipient, "--recipient")
    if passphrase_file is not None:
        return KeyLock(passphrase=read_passphrase(passphrase_file))
    if not asks:
        return None
    first = parse_passphrase(_ask_secret("Passphrase of the keys: "), "--passphrase")
    if _ask_secret("The same once more: ") != first:
        raise BadInput("the two are not the same", place="--passphrase", remedy="repeat")
    return KeyLock(passphrase=first)


def _ask_secret(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise Usage(
            "this asks for a passphrase, and nobody is there to answer",
            place="--passphrase",
            remedy="give --passphrase-file FILE",
        )
    return getpass.getpass(prompt)


async def _fetch(access: Access, file: Path) -> Manifest:
    """Have the server make one, and keep it once it is here and right."""
    from outlive.drivers import receive_backup
    from outlive.store import BACKUP_PATH, HttpStore

    async with access.open() as store:
        assert isinstance(store, HttpStore)
        with show_progress("waiting for the server"), receive_backup(file) as (stream, keep):
            await store.download(BACKUP_PATH, stream.write)
            return keep()


def _backup_lines(file: Path, manifest: Manifest) -> list[str]:
    from outlive.drivers import AUTHORITY_FILES, CONFIGURATION, KEY_FILE

    objects = sum(manifest.store.objects.values())
    largest = sorted(manifest.store.objects.items(), key=lambda one: (-one[1], one[0]))[:SHOWN_KINDS]
    kinds = ", ".join(f"{count} {kind}" for kind, count in largest)
    inside = ["the store (secrets sealed, tokens as digests)"]
    inside += [f"{CONFIGURATION}"] if manifest.has_part(CONFIGURATION) else []
    inside += [f"keys ({', '.join(manifest.key_files)}) for the holder of the {manifest.keys}"] if manifest.keys else []
    lines = [
        f"{file}: backup of {manifest.server}, {shown_time(manifest.made_at)}, {file.stat().st_size:,} bytes, checked",
        f"has:      {'; '.join(inside)}",
        f"objects:  {objects} at version {manifest.store.resource_version}: {kinds}",
    ]
    missing = ["the token of the state directory (a new one is made)", "the audit log"]
    missing += (
        ["files that outlive.yaml names"] if manifest.has_part(CONFIGURATION) else ["outlive.yaml: none was there"]
    )
    lines.append(f"has not:  {'; '.join(missing)}")
    if not manifest.keys:
        kept = ", ".join((KEY_FILE, *AUTHORITY_FILES[:2]))
        lines.append(
            f"NO KEYS:  keep {kept} apart from it, mode 600; without them secrets have to be set again and all hosts "
            "join again; or give --passphrase, --passphrase-file or --recipient"
        )
    return lines


SHOWN_KINDS = 6
"""Kinds whose numbers are shown, the largest."""


async def restore(
    access: WriteAccess,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="What outlive backup wrote; or a copy of store.db, or of its directory."),
    ] = None,
    passphrase_file: PassphraseFile = None,
    identity: Annotated[
        Path | None,
        typer.Option("--identity", metavar="FILE", help="The age identity for which the keys are encrypted."),
    ] = None,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Leave the keys in the directory as they are.")
    ] = False,
    lost: Annotated[
        list[str] | None,
        typer.Option(
            "--confirm",
            metavar="HOST,…",
            help="Afterwards, instead: these hosts, for which the cluster waits, are lost and run nothing.",
            autocompletion=name_completer("hypervisors"),
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Put a backup back into the state directory: the store, the settings, the keys. No server may run there.

    Everything is checked before the first change, and replaced files are kept. The cluster is paused until its
    hosts have registered what they run. With --confirm, once the server runs: end the pause although these hosts have
    not registered.
    """
    if (file is None) is (lost is None):
        raise Usage("restore what?", place="FILE", remedy="name a backup; or, afterwards, lost hosts by --confirm")
    if lost is not None:
        from outlive.node import confirm_lost

        hosts = host_names(lost)
        async with access.open(write=True) as store:
            ask(f"If {join_parts(hosts)} still run VMs, these will be corrupted. Are they off, by your own eyes?", yes)
            write(f"{await confirm_lost(store, access.clock, hosts)}\n")
        return
    assert file is not None, "it is named where no host is"
    await _restore(access, file, passphrase_file, identity, without_keys=without_keys, yes=yes)


async def _restore(
    access: Access,
    file: Path,
    passphrase_file: Path | None,
    identity: Path | None,
    *,
    without_keys: bool,
    yes: bool,
) -> None:
    from outlive.base import SystemIds
    from outlive.drivers import KEY_FILES, is_store_copy, make_unpack, open_keys, read_manifest
    from outlive.store.sqlite import DATABASE_FILE, LOCK_FILE, DirectoryLock, copy_of
    from outlive.store.sqlite.restore import restore as put_back

    copied = is_store_copy(file)
    manifest = None if copied else read_manifest(file)
    keys: dict[str, bytes] = {}
    if manifest is not None and manifest.keys and not without_keys:
        keys = open_keys(file, _make_opener(manifest, passphrase_file, identity))
    directory = access.directory
    if directory.is_dir():  # ``InUse`` while a process works there, before the question
        DirectoryLock.take(directory, LOCK_FILE).release()
    if (directory / DATABASE_FILE).exists():
        what = f"the backup of {shown_time(manifest.made_at)}" if manifest is not None else str(file)
        ask(f"{what} takes the place of the store in {directory}, which is kept beside it. Go on?", yes)
    with show_progress("checking the backup"):
        done = await put_back(
            copy_of(file) if copied else make_unpack(file, keys),
            directory,
            clock=access.clock,
            ids=SystemIds(),
            leaves=KEY_FILES if keys else (),
        )
    for line in _restored_lines(directory, manifest, done):
        write(f"{line}\n")


def _make_opener(manifest: Manifest, passphrase_file: Path | None, identity: Path | None) -> KeyOpener:
    """What opens the keys; on a terminal a passphrase is asked for."""
    from outlive.base import read_private
    from outlive.drivers import KeyOpener, read_passphrase

    if manifest.keys == "recipient":
        if identity is None:
            raise Usage(
                "the keys in this backup are encrypted for an age recipient",
                place="--identity",
                remedy="name the file of its identity, or leave the keys out (--without-keys)",
            )
        return KeyOpener(identity=read_private(identity, limit=IDENTITY_BYTES).decode(errors="replace"))
    if passphrase_file is not None:
        return KeyOpener(passphrase=read_passphrase(passphrase_file))
    if not sys.stdin.isatty():
        raise Usage(
            "the keys in this backup are encrypted with a passphrase",
            place="--passphrase-file",
            remedy="name a file that has it, or leave the keys out (--without-keys)",
        )
    return KeyOpener(passphrase=getpass.getpass("Passphrase of the keys: "))


def _restored_lines(directory: Path, manifest: Manifest | None, done: Restored) -> list[str]:
    """What was put back, and what is to be done now, in order."""
    lines = [f"{done.objects} objects restored as store {done.incarnation}: {', '.join(done.files)} in {directory}"]
    if done.kept:
        lines.append(f"what was replaced is kept there as {', '.join(done.kept)}")
    at = shown_time(manifest.made_at) if manifest is not None else "the copy was made"
    lines.append(f"Lost is what changed after {at}. Now, in this order:")
    steps = [
        *_key_steps(directory, done),
        f"outlive up --state-dir {directory}, at the address where the hosts look for it",
        f"wait until all hosts ({count_of(done.hosts, 'membership')} in the backup) registered again, by themselves "
        "and with their VMs running: outlive status. Nothing is started, moved or recovered until then",
        "a host whose token is refused (it joined since, or renewed its token twice) joins again: outlive token create "
        "--join --host HOST, then outlive node join there",
        "a host that stays away: see that it is off and runs nothing, then: outlive restore --confirm HOST",
        "outlive backup FILE",
    ]
    return [*lines, *(f"{number}. {step}" for number, step in enumerate(steps, 1))]


def _key_steps(directory: Path, done: Restored) -> list[str]:
    """What is missing of the keys; nothing where they are there and fit."""
    from outlive.drivers import AUTHORITY_FILES, KEY_FILE, ClusterKey, SealingKey

    steps, path = [], directory / KEY_FILE
    if done.sealing_key:
        wanted = SealingKey.parse(done.sealing_key).id
        try:
            fits = wanted in ClusterKey.read(path).ids
        except OutliveError:
            fits = False
        if not fits:
            steps.append(
                f"copy key {wanted} of the cluster from a coordinator (/etc/outlive/{KEY_FILE}) to {path}, mode 600; "
                f"{count_of(done.secrets, 'secret')} cannot be opened without it"
            )
    if lacking := [name for name in AUTHORITY_FILES[:2] if not (directory / name).exists()]:
        steps.append(
            f"put {join_parts(lacking)} back into {directory} if you have them; with a new authority every "
            "host that pins "
            "the old one joins again"
        )
    return steps
