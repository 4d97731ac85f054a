"""The file of a backup: written, checked, and unpacked again (docs/how-to/state.md#backup).

A tar archive that ``tar`` reads. ``manifest.json`` comes first and names every other part with its size and digest:
``store.db``, as SQLite copies it while others write; ``outlive.yaml``, the configuration; ``keys.age``, a tar of the
files of ``KEY_FILES``, encrypted with a passphrase or for an age recipient, so that ``age -d`` opens it. Nothing is
believed of an archive that its manifest does not say: other members, names with folders, and links are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Final, Literal

import msgspec
import pyrage

from outlive.base import BadInput, Clock, InUse, NotFound, as_datetime, as_instant, limits, read_private
from outlive.commitments import Offload
from outlive.drivers import age_passphrase
from outlive.drivers.files import check_output, open_input, read_input, translate_write_errors
from outlive.drivers.secrets import KEY_FILE, ClusterKey, SealingKey
from outlive.runtime import NAME, BackupCopy
from outlive.store.sqlite import DATABASE_FILE, StoreFacts, Unpack, check_store, copy_store, sync_directory

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
CONFIGURATION: Final = "outlive.yaml"
KEYS: Final = "keys.age"
AUTHORITY_FILES: Final = ("ca.pem", "ca.key", "ca-next.pem", "ca-next.key", "server.pem", "server.key")
KEY_FILES: Final = (KEY_FILE, *AUTHORITY_FILES)
"""Files of a state directory that are kept in ``keys.age``."""
MANIFEST_BYTES: Final = 64 * 1024
CONFIGURATION_BYTES: Final = 1024 * 1024
KEY_BYTES: Final = 64 * 1024
"""The largest file of ``KEY_FILES``."""
KEYS_BYTES: Final = 1024 * 1024
PASSPHRASE_BYTES: Final = 1024
PASSPHRASE_LEAST: Final = 8
PART_BYTES: Final = 1024 * 1024
"""What is copied at once."""
HEAD_BYTES: Final = 4096
"""What is looked at to tell what a file is."""
_LIMITS: Final[Mapping[str, int]] = {
    DATABASE_FILE: limits.STORE_BYTES,
    CONFIGURATION: CONFIGURATION_BYTES,
    KEYS: KEYS_BYTES,
}
"""Parts that there may be, in their order, and their largest sizes."""
_AGAIN: Final = "use another backup"


class BackupPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One file of a backup."""

    name: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a backup says of itself."""

    format: int = FORMAT
    outlive: str
    """The version that wrote it."""
    made_at: datetime
    """The store is in it as it was then, or a moment later."""
    server: str
    """The machine that wrote it."""
    store: StoreFacts
    keys: Literal["", "passphrase", "recipient"] = ""
    """What opens ``keys.age``; empty: it has none."""
    key_files: tuple[str, ...] = ()
    """What is in ``keys.age``."""
    parts: tuple[BackupPart, ...] = ()

    def has_part(self, name: str) -> bool:
        """Whether it has this part."""
        return any(part.name == name for part in self.parts)


@dataclass(frozen=True, slots=True)
class KeyLock:
    """What the keys of a backup are encrypted with: one of the two."""

    passphrase: str = ""
    recipient: str = ""
    """An age recipient (``age1…``)."""

    def encrypt(self, raw: bytes) -> bytes:
        """Age's format; ``BadInput`` for what is no recipient."""
        if self.passphrase:
            return age_passphrase.encrypt(raw, self.passphrase)
        return pyrage.encrypt(raw, [_parse_recipient(self.recipient)])  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class KeyOpener:
    """What opens the keys of a backup: one of the two."""

    passphrase: str = ""
    identity: str = ""
    """What an age identity file holds (``AGE-SECRET-KEY-1…``)."""

    def decrypt(self, sealed: bytes, place: str) -> bytes:
        """``BadInput`` where it is the wrong one, or the file was changed."""
        try:
            if self.passphrase:
                return age_passphrase.decrypt(sealed, self.passphrase)
            return pyrage.decrypt(sealed, _parse_identities(self.identity))  # type: ignore[no-any-return]
        except (pyrage.DecryptError, BadInput) as error:
            what = "passphrase" if self.passphrase else "identity"
            why = error.message if isinstance(error, BadInput) else str(error).rstrip(".")
            raise BadInput(
                f"{KEYS} does not open with this {what}: {why}",
                place=place,
                remedy=f"give the {what} with which it was made, or restore without the keys (--without-keys)",
            ) from None


def check_recipient(text: str, place: str) -> KeyLock:
    """The lock for an age recipient; ``BadInput``."""
    try:
        _parse_recipient(text)
    except BadInput as error:
        raise BadInput(error.message, place=place, remedy=error.remedy) from None
    return KeyLock(recipient=text)


def read_passphrase(path: Path) -> str:
    """The first line of a file that nobody else can read, which is the passphrase of keys."""
    return parse_passphrase(read_private(path, limit=PASSPHRASE_BYTES).decode(errors="replace"), str(path))


def parse_passphrase(text: str, place: str) -> str:
    """The passphrase in a text, without the end of its line; ``BadInput`` for one that is too short."""
    first = (text.splitlines() or [""])[0]
    if len(first) < PASSPHRASE_LEAST:
        raise BadInput(
            f"holds a passphrase of {len(first)} characters",
            place=place,
            remedy=f"write one of at least {PASSPHRASE_LEAST} characters in its first line",
        )
    return first


@dataclass(frozen=True, slots=True)
class BackupSource:
    """Where a backup is made from."""

    directory: Path
    """The state directory; a server may run on it."""
    configuration: Path | None
    """The file with the settings; ``None``: there is none."""
    server: str
    version: str
    lock: KeyLock | None
    """``None``: the keys are left out."""


def write_backup(source: BackupSource, target: Path, clock: Clock) -> Manifest:
    """Write a backup to ``target``, and check it before it takes that name. Blocks; about twice the store's size is
    needed beside the target meanwhile. An earlier file of that name stays until then, and after any error.

    ``NotFound`` without a store, ``BadInput`` for a damaged one, ``Unavailable`` where the disk is full.
    """
    check_output(target)
    with (
        translate_write_errors(target),
        tempfile.TemporaryDirectory(prefix=f".{target.name[:40]}.", dir=target.parent) as name,
    ):
        folder = Path(name)
        made_at = as_datetime(clock.now())
        copy_store(source.directory / DATABASE_FILE, folder / DATABASE_FILE)
        facts = check_store(folder / DATABASE_FILE)
        if source.configuration is not None:
            _write(folder / CONFIGURATION, read_input(source.configuration, limit=CONFIGURATION_BYTES))
        key_files = _pack_keys(source, folder / KEYS, facts)
        manifest = Manifest(
            outlive=source.version,
            made_at=made_at,
            server=source.server,
            store=facts,
            keys=("passphrase" if source.lock.passphrase else "recipient") if source.lock and key_files else "",
            key_files=key_files,
            parts=tuple(_describe_part(folder / part) for part in _LIMITS if (folder / part).exists()),
        )
        archive = folder / "archive"
        _pack(folder, manifest, archive)
        check_backup(archive)
        archive.replace(target)
        sync_directory(target.parent)
    return manifest


class BackupFolder:
    """The directory of the backups that a server makes. ``source`` is called before each, in the thread that writes
    it, since it reads the passphrase."""

    def __init__(self, folder: Path, source: Callable[[], BackupSource], clock: Clock, offload: Offload) -> None:
        self._folder = folder
        self._source = source
        self._clock = clock
        self._offload = offload

    async def list_copies(self) -> list[BackupCopy]:
        """See ``BackupDirectory``."""
        return await self._offload(self._list_copies)

    async def make(self, name: str) -> BackupCopy:
        """See ``BackupDirectory``."""
        return await self._offload(partial(self._make, name))

    async def delete(self, names: Iterable[str]) -> None:
        """See ``BackupDirectory``."""
        await self._offload(partial(self._delete, list(names)))

    def _list_copies(self) -> list[BackupCopy]:
        found = []
        for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else []:
            if NAME.match(path.name):
                with contextlib.suppress(BadInput, NotFound):
                    found.append(_copy_of(path, read_manifest(path)))
        return found

    def _make(self, name: str) -> BackupCopy:
        with translate_write_errors(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in self._folder.glob(".outlive-*.tar.*"):
                shutil.rmtree(path, ignore_errors=True)  # of a process that was killed while it made one
        target = self._folder / name
        return _copy_of(target, write_backup(self._source(), target, self._clock))

    def _delete(self, names: Sequence[str]) -> None:
        with translate_write_errors(self._folder):
            for name in names:
                (self._folder / name).unlink(missing_ok=True)


class BackupDownload:
    """Backups that are made to be sent away: each is a file without a name, which goes once it is closed."""

    def __init__(self, source: Callable[[], BackupSource], clock: Clock, offload: Offload) -> None:
        self._source = source
        self._clock = clock
        self._offload = offload
        self._busy = False

    async def open(self) -> IO[bytes]:
        """Make one; ``InUse`` while another one is made, and the errors of ``write_backup``."""
        if self._busy:
            raise InUse("a backup is being made for somebody else", remedy="try again in a minute")
        self._busy = True
        return await self._offload(self._make_backup)

    def _make_backup(self) -> IO[bytes]:
        try:
            source = self._source()
            with (
                translate_write_errors(source.directory),
                tempfile.TemporaryDirectory(prefix=".backup-", dir=source.directory) as at,
            ):
                path = Path(at) / "sent.tar"
                write_backup(source, path, self._clock)
                return path.open("rb")
        finally:
            self._busy = False


@contextlib.contextmanager
def receive_backup(target: Path) -> Iterator[tuple[IO[bytes], Callable[[], Manifest]]]:
    """A file to write what a server sends to, and a function that checks it, has it take the name ``target``, and
    returns what it says of itself. Until then, and after any error, an earlier file of that name stays."""
    check_output(target)
    with (
        translate_write_errors(target),
        tempfile.TemporaryDirectory(prefix=f".{target.name[:40]}.", dir=target.parent) as name,
    ):
        draft = Path(name) / "archive"
        with _create_file(draft) as stream:

            def keep() -> Manifest:
                stream.flush()
                os.fsync(stream.fileno())
                manifest = check_backup(draft)
                draft.replace(target)
                sync_directory(target.parent)
                return manifest

            yield stream, keep


def _copy_of(path: Path, manifest: Manifest) -> BackupCopy:
    made_at, size = as_instant(manifest.made_at), path.stat().st_size
    return BackupCopy(name=path.name, made_at=made_at, size_bytes=size, keys=manifest.has_part(KEYS))


def _pack_keys(source: BackupSource, target: Path, facts: StoreFacts) -> tuple[str, ...]:
    """Write ``keys.age``; the names of what is in it. ``BadInput`` where the key is that of another cluster."""
    if source.lock is None:
        return ()
    found = {
        name: read_private(source.directory / name, limit=KEY_BYTES)
        if name.endswith("key")
        else read_input(source.directory / name, limit=KEY_BYTES)
        for name in KEY_FILES
        if (source.directory / name).exists()
    }
    if not found:
        return ()
    check_cluster_key(found, facts, str(source.directory / KEY_FILE))
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, raw in found.items():
            archive.addfile(_tar_member(name, len(raw), None), io.BytesIO(raw))
    sealed = source.lock.encrypt(kept.getvalue())
    if source.lock.passphrase:
        KeyOpener(passphrase=source.lock.passphrase).decrypt(sealed, str(source.directory))
    _write(target, sealed)
    return tuple(found)


def check_cluster_key(files: Mapping[str, bytes], facts: StoreFacts, place: str) -> None:
    """``BadInput`` where the cluster's key in these files does not open the secrets of this store."""
    if KEY_FILE not in files or not facts.sealing_key:
        return
    key, wanted = ClusterKey.parse(files[KEY_FILE].decode(errors="replace"), place), SealingKey.parse(facts.sealing_key)
    if wanted.id not in key.ids:
        raise BadInput(
            f"holds key {' and '.join(key.ids)}, and the secrets of the store are sealed for key {wanted.id}",
            place=place,
            remedy=f"this {KEY_FILE} is of another cluster: copy it from a coordinator (/etc/outlive/{KEY_FILE})",
        )


def read_manifest(path: Path) -> Manifest:
    """What a backup says of itself, without a look at the rest; ``BadInput`` for what is no backup."""
    with _open_archive(path) as archive:
        return _read_first_manifest(archive, path)


def check_backup(path: Path) -> Manifest:
    """Read the whole backup and return what it says of itself; ``BadInput`` where a part is missing, was changed or is
    not named."""
    with _open_archive(path) as archive:
        manifest = _read_first_manifest(archive, path)
        _read_parts(archive, manifest, path)
    return manifest


def open_keys(path: Path, opener: KeyOpener) -> dict[str, bytes]:
    """The files of ``keys.age``, checked against the store beside them; nothing is written anywhere."""
    kept = io.BytesIO()
    with _open_archive(path) as archive:
        manifest = _read_first_manifest(archive, path)
        _read_parts(archive, manifest, path, lambda name: contextlib.nullcontext(kept) if name == KEYS else _NOWHERE)
    return _untar_keys(opener.decrypt(kept.getvalue(), str(path)), manifest, path)


def make_unpack(path: Path, keys: Mapping[str, bytes]) -> Unpack:
    """Writes the store and the configuration of a backup, and these files of its keys, into a folder, all of mode 600;
    everything is checked."""

    def unpack(folder: Path) -> None:
        with _open_archive(path) as archive:
            manifest = _read_first_manifest(archive, path)
            wanted = (DATABASE_FILE, CONFIGURATION)
            _read_parts(
                archive, manifest, path, lambda name: _create_file(folder / name) if name in wanted else _NOWHERE
            )
        if check_store(folder / DATABASE_FILE) != manifest.store:
            raise _torn_error(path, f"{DATABASE_FILE} is not the store that {MANIFEST} describes")
        for name, raw in keys.items():
            _write(folder / name, raw)

    return unpack


_NOWHERE: Final = contextlib.nullcontext(None)


def _read_first_manifest(archive: tarfile.TarFile, path: Path) -> Manifest:
    member = archive.next()
    if member is None or member.name != MANIFEST or member.size > MANIFEST_BYTES:
        raise BadInput(f"is no backup: it has no {MANIFEST}", place=str(path), remedy=_REMEDY)
    raw = _open_member(archive, member, path).read()
    try:
        number = msgspec.json.decode(raw, type=_FormatOnly).format
        if number != FORMAT:
            raise BadInput(
                f"is a backup of format {number}, and this Outlive reads format {FORMAT}",
                place=str(path),
                remedy="use the Outlive that wrote it, or a newer one; nothing was changed",
            )
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise _torn_error(path, f"{MANIFEST}: {error}") from None


class _FormatOnly(msgspec.Struct, frozen=True):
    format: int


_REMEDY: Final = "name a file that outlive backup wrote, or a copy of store.db"
_SQLITE: Final = b"SQLite format 3\0"


def is_store_copy(path: Path) -> bool:
    """Whether this is a copy of ``store.db``, or a directory (which may have one), rather than a backup."""
    if path.is_dir():
        return True
    with open_input(path, limit=limits.STORE_BYTES * 2) as (stream, _):
        return stream.read(len(_SQLITE)) == _SQLITE


@contextlib.contextmanager
def _open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """The archive; ``BadInput`` for what is none, and says what it is instead where that is seen."""
    with open_input(path, limit=limits.STORE_BYTES * 2) as (stream, _):
        begin = stream.read(HEAD_BYTES)
        stream.seek(0)
        if begin.lstrip()[:1] == b"{" or b"apiVersion:" in begin:
            raise BadInput(
                "is what outlive dump, or outlive get, wrote: it has no tokens, no secrets and no history",
                place=str(path),
                remedy="restore a file that outlive backup wrote; only without one: start outlive up on an empty "
                "directory, then outlive apply -f",
            )
        try:
            archive = tarfile.open(fileobj=stream, mode="r:")  # noqa: SIM115 - closed below
        except (tarfile.TarError, EOFError) as error:
            raise BadInput(f"is no backup: {error}", place=str(path), remedy=_REMEDY) from None
        try:
            with archive:
                yield archive
        except tarfile.TarError as error:
            raise _torn_error(path, str(error)) from None


Sink = contextlib.AbstractContextManager[IO[bytes] | None]


def _read_parts(
    archive: tarfile.TarFile, manifest: Manifest, path: Path, sink: Callable[[str], Sink] = lambda _: _NOWHERE
) -> None:
    """Read all parts, each into what ``sink`` opens for its name; ``BadInput`` as in ``check_backup``."""
    names = [part.name for part in manifest.parts]
    if names != [name for name in _LIMITS if name in names] or DATABASE_FILE not in names:
        raise _torn_error(path, f"{MANIFEST} names {', '.join(names) or 'no parts'}")
    if manifest.has_part(KEYS) != bool(manifest.keys):
        raise _torn_error(path, f"{MANIFEST} contradicts itself about {KEYS}")
    for part in manifest.parts:
        member = archive.next()
        if member is None or (member.name, member.size) != (part.name, part.size_bytes):
            raise _torn_error(path, f"{part.name} is not where {MANIFEST} says")
        if part.size_bytes > _LIMITS[part.name]:
            raise _torn_error(path, f"{part.name} is larger than {_LIMITS[part.name]} bytes")
        digest, stream = hashlib.sha256(), _open_member(archive, member, path)
        with sink(part.name) as target:
            while chunk := stream.read(PART_BYTES):
                digest.update(chunk)
                if target is not None:
                    target.write(chunk)
        if digest.hexdigest() != part.sha256:
            raise _torn_error(path, f"{part.name} was changed: its digest is another one")
    if (further := archive.next()) is not None:
        raise _torn_error(path, f"it has {further.name[:80]!r}, which {MANIFEST} does not name")


def _open_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> IO[bytes]:
    stream = archive.extractfile(member) if member.isreg() else None
    if stream is None:
        raise _torn_error(path, f"{member.name[:80]!r} is no ordinary file")
    return stream


def _torn_error(path: Path, why: str) -> BadInput:
    return BadInput(f"is torn, or was changed: {why}", place=str(path), remedy=_AGAIN)


def _untar_keys(raw: bytes, manifest: Manifest, path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            for member in archive:
                if member.name not in KEY_FILES or not member.isreg() or member.size > KEY_BYTES:
                    raise _torn_error(path, f"{KEYS} has {member.name[:80]!r}")
                found[member.name] = _open_member(archive, member, path).read()
    except tarfile.TarError as error:
        raise _torn_error(path, f"{KEYS}: {error}") from None
    if set(found) != set(manifest.key_files):
        raise _torn_error(path, f"{KEYS} has {', '.join(found)}, and not what {MANIFEST} says")
    check_cluster_key(found, manifest.store, f"{path}: {KEYS}: {KEY_FILE}")
    return found


def _pack(folder: Path, manifest: Manifest, target: Path) -> None:
    with _create_file(target) as out:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            raw = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
            archive.addfile(_tar_member(MANIFEST, len(raw), manifest.made_at), io.BytesIO(raw))
            for part in manifest.parts:
                with (folder / part.name).open("rb") as stream:
                    archive.addfile(_tar_member(part.name, part.size_bytes, manifest.made_at), stream)
        out.flush()
        os.fsync(out.fileno())


def _tar_member(name: str, size: int, at: datetime | None) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(at.timestamp()) if at is not None else 0
    return member


def _describe_part(path: Path) -> BackupPart:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return BackupPart(name=path.name, size_bytes=path.stat().st_size, sha256=digest)


@contextlib.contextmanager
def _create_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file of mode 600 to write to."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
        yield stream


def _write(path: Path, raw: bytes) -> None:
    with _create_file(path) as stream:
        stream.write(raw)


def _parse_recipient(text: str) -> pyrage.x25519.Recipient:
    try:
        return pyrage.x25519.Recipient.from_str(text.strip())
    except pyrage.RecipientError as error:
        raise BadInput(
            f"{text[:80]!r} is no age recipient: {error}", remedy="give one as age-keygen prints it: age1…"
        ) from None


def _parse_identities(text: str) -> list[pyrage.x25519.Identity]:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        found = [pyrage.x25519.Identity.from_str(line) for line in lines]
    except pyrage.IdentityError as error:
        raise BadInput(f"holds no age identity: {error}", place="--identity", remedy=_IDENTITY) from None
    if not found:
        raise BadInput("holds no age identity", place="--identity", remedy=_IDENTITY)
    return found


_IDENTITY: Final = "name the file that age-keygen wrote, with a line AGE-SECRET-KEY-1…"
