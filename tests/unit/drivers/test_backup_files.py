"""The file of a backup: the store as of one moment, checked when it is made; what was changed in it is refused."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyrage
import pytest
from tests.support.loops import run_real

from outlive.base import BadInput, NotFound, OutliveError, SystemClock, SystemIds
from outlive.drivers import (
    CONFIGURATION,
    KEY_FILE,
    KEYS,
    MANIFEST,
    BackupSource,
    ClusterKey,
    KeyLock,
    KeyOpener,
    Manifest,
    check_backup,
    check_recipient,
    make_unpack,
    open_keys,
    read_manifest,
    read_passphrase,
    write_backup,
)
from outlive.resources import Cluster, ClusterStatus, Hypervisor, ObjectMeta
from outlive.store.sqlite import DATABASE_FILE, SqliteStore, check_store

KEY = ClusterKey.generate()
IDENTITY = pyrage.x25519.Identity.generate()
LOCK = KeyLock(recipient=str(IDENTITY.to_public()))
OPENER = KeyOpener(identity=f"# made by age-keygen\n{IDENTITY}\n")


async def opened(directory: Path) -> SqliteStore:
    return await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds())


def state_directory(directory: Path, *, hosts: int = 1) -> Path:
    """As a server leaves it: a store with the cluster and hosts, the settings, the keys."""

    async def write() -> None:
        store = await opened(directory)
        status = ClusterStatus(sealing_key=KEY.public.text)
        made = await store.create(Cluster(metadata=ObjectMeta(name="default")))
        await store.replace_status(msgspec.structs.replace(made, status=status))
        for number in range(hosts):
            await store.create(Hypervisor(metadata=ObjectMeta(name=f"h{number}")))
        await store.close()

    run_real(write())
    KEY.write(directory / KEY_FILE)
    (directory / "ca.pem").write_text("authority")
    (directory / "ca.key").write_text("its key")
    (directory / "ca.key").chmod(0o600)
    (directory / CONFIGURATION).write_text("backup: {keep: 3}\n")
    return directory


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return state_directory(tmp_path / "state")


def made(state: Path, name: str = "b.tar", lock: KeyLock | None = LOCK) -> Path:
    target = state.parent / name
    write_backup(BackupSource(state, state / CONFIGURATION, "here", "1.0", lock), target, SystemClock())
    return target


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {one.name: stream.read() for one in archive if (stream := archive.extractfile(one)) is not None}


def rebuilt(path: Path, parts: dict[str, bytes], name: str = "other.tar") -> Path:
    """Another archive with these members."""
    target = path.with_name(name)
    with tarfile.open(target, "w") as archive:
        for each, raw in parts.items():
            member = tarfile.TarInfo(each)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return target


def test_a_backup_has_the_store_the_settings_and_the_keys_and_says_so(state: Path) -> None:
    path = made(state)
    manifest = check_backup(path)
    assert [part.name for part in manifest.parts] == [DATABASE_FILE, CONFIGURATION, KEYS]
    assert manifest.store.objects == {"Cluster": 1, "Hypervisor": 1}
    assert manifest.key_files == (KEY_FILE, "ca.pem", "ca.key")
    assert (manifest.keys, manifest.server, manifest.store.sealing_key) == ("recipient", "here", KEY.public.text)
    assert path.stat().st_mode & 0o777 == 0o600
    assert KEY.text.encode() not in path.read_bytes()
    assert [one.name for one in state.parent.iterdir() if one.name.startswith(".")] == [], "nothing is left beside it"


def test_it_comes_back_as_it_was_with_files_that_nobody_else_can_read(state: Path, tmp_path: Path) -> None:
    path, folder = made(state), tmp_path / "folder"
    folder.mkdir()
    make_unpack(path, open_keys(path, OPENER))(folder)
    assert ClusterKey.read(folder / KEY_FILE) == KEY
    assert check_store(folder / DATABASE_FILE) == read_manifest(path).store
    assert (folder / CONFIGURATION).read_text() == "backup: {keep: 3}\n"
    assert {one.stat().st_mode & 0o777 for one in folder.iterdir()} == {0o600}


@pytest.mark.slow
def test_keys_are_opened_by_their_passphrase_and_by_no_other(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_text("correct horse\nbattery\n")
    file.chmod(0o600)
    path = made(state, lock=KeyLock(passphrase=read_passphrase(file)))
    assert open_keys(path, KeyOpener(passphrase="correct horse"))[KEY_FILE] == KEY.text.encode()
    with pytest.raises(BadInput, match="does not open with this passphrase"):
        open_keys(path, KeyOpener(passphrase="correct horsf"))
    with pytest.raises(BadInput, match="does not open with this identity"):
        open_keys(path, OPENER)
    file.write_text("short\n")
    with pytest.raises(BadInput, match="a passphrase of 5 characters"):
        read_passphrase(file)


def test_without_a_lock_no_key_is_in_it(state: Path) -> None:
    manifest = check_backup(made(state, lock=None))
    assert (manifest.keys, manifest.key_files, manifest.has_part(KEYS)) == ("", (), False)


def test_what_is_no_recipient_or_identity_is_refused_before_anything_is_done() -> None:
    with pytest.raises(BadInput, match="is no age recipient") as raised:
        check_recipient("age1nonsense", "backup.recipient")
    assert raised.value.place == "backup.recipient"
    for text in ("", "AGE-SECRET-KEY-1NONSENSE"):
        with pytest.raises(BadInput, match="holds no age identity"):
            KeyOpener(identity=text).decrypt(b"", "keys")


def test_a_key_of_another_cluster_is_not_backed_up_and_not_brought_back(state: Path) -> None:
    good = made(state)
    ClusterKey.generate().write(state / KEY_FILE)
    with pytest.raises(BadInput, match="sealed for key"):
        made(state, "second.tar")
    assert not good.with_name("second.tar").exists()
    parts = members(good)
    foreign = io.BytesIO()
    with tarfile.open(fileobj=foreign, mode="w") as archive:
        for name, raw in ((KEY_FILE, ClusterKey.generate().text.encode()), ("ca.pem", b""), ("ca.key", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    parts[KEYS] = LOCK.encrypt(foreign.getvalue())
    with pytest.raises(BadInput, match="sealed for key"):
        open_keys(rebuilt(good, consistent(parts)), OPENER)


def consistent(parts: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    """These members, with a manifest that fits them."""
    manifest = msgspec.json.decode(parts[MANIFEST])
    for part in manifest["parts"]:
        raw = parts[part["name"]]
        part |= {"sizeBytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    return {**parts, MANIFEST: msgspec.json.encode({**manifest, **changes})}


Change = Callable[[dict[str, bytes]], dict[str, bytes]]
CHANGES: dict[str, tuple[Change, str]] = {
    "a byte of the store": (lambda parts: {**parts, DATABASE_FILE: b"X" + parts[DATABASE_FILE][1:]}, "was changed"),
    "a part less": (lambda parts: {name: raw for name, raw in parts.items() if name != KEYS}, "keys.age is not where"),
    "a member more": (lambda parts: {**parts, "../../etc/passwd": b"root"}, "which manifest.json does not name"),
    "another order": (lambda parts: dict(sorted(parts.items(), reverse=True)), "has no manifest.json"),
    "no manifest": (lambda parts: {name: raw for name, raw in parts.items() if name != MANIFEST}, "has no manifest"),
    "a newer format": (lambda parts: consistent(parts, format=2), "of format 2, and this Outlive reads format 1"),
    "a manifest of nonsense": (lambda parts: {**parts, MANIFEST: b'{"format": 1'}, "manifest.json: "),
    "a manifest without parts": (lambda parts: consistent(parts) | {MANIFEST: without_parts(parts)}, "names no parts"),
}


def without_parts(parts: dict[str, bytes]) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(parts[MANIFEST]), "parts": []})


@pytest.mark.parametrize("change", CHANGES)
def test_a_backup_that_was_changed_is_refused(state: Path, change: str) -> None:
    path = made(state)
    alter, words = CHANGES[change]
    other = rebuilt(path, alter(members(path)))
    with pytest.raises(BadInput, match=words):
        check_backup(other)


def test_a_backup_that_was_cut_off_anywhere_is_refused(state: Path) -> None:
    path = made(state)
    raw, torn = path.read_bytes(), path.with_name("torn.tar")
    end = len(raw.rstrip(b"\0"))
    for size in (0, 1, 511, 512, 600, 1024, 4096, end // 2, end - 1):
        torn.write_bytes(raw[:size])
        with pytest.raises(BadInput):
            check_backup(torn)


def test_a_link_in_place_of_a_part_is_refused(state: Path) -> None:
    path = made(state, lock=None)
    target = path.with_name("link.tar")
    parts = members(path)
    with tarfile.open(target, "w") as archive:
        manifest = tarfile.TarInfo(MANIFEST)
        manifest.size = len(parts[MANIFEST])
        archive.addfile(manifest, io.BytesIO(parts[MANIFEST]))
        link = tarfile.TarInfo(DATABASE_FILE)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/shadow"
        archive.addfile(link)
    with pytest.raises(BadInput):
        check_backup(target)


def test_a_damaged_store_makes_no_backup_and_the_earlier_one_stays(state: Path) -> None:
    path = made(state)
    before = path.read_bytes()
    raw = bytearray((state / DATABASE_FILE).read_bytes())
    at = raw.index(b'"h0"')
    raw[at + 1 : at + 3] = b"XX"
    (state / DATABASE_FILE).write_bytes(raw)
    with pytest.raises(BadInput, match="wrong checksum"):
        made(state)
    assert path.read_bytes() == before
    with pytest.raises(NotFound):
        made(state.parent)


def test_what_is_no_backup_is_told_apart(state: Path, tmp_path: Path) -> None:
    for content, words in (
        (b'{"apiVersion":"outlive.dev/v1","kind":"State"', "outlive dump, or outlive get, wrote"),
        (b"apiVersion: outlive.dev/v1\nkind: List\n", "outlive dump, or outlive get, wrote"),
        (b"anything else", "is no backup"),
    ):
        file = tmp_path / "file"
        file.write_bytes(content)
        with pytest.raises(BadInput, match=words):
            check_backup(file)


def test_a_backup_while_others_write_is_the_store_as_it_was_at_one_moment(tmp_path: Path) -> None:
    """Writers count up two objects, the second after the first: no backup has the second ahead of the first."""
    state = state_directory(tmp_path / "state", hosts=2)

    async def story() -> list[Manifest]:
        store, done = await opened(state), asyncio.Event()

        wrote = asyncio.Event()

        async def write() -> None:
            number = 0
            while not done.is_set():
                number += 1
                for name in ("h0", "h1"):
                    host = await store.get(Hypervisor, name)
                    labels = {**host.metadata.labels, "count": f"{number}"}
                    meta = msgspec.structs.replace(host.metadata, labels=labels)
                    await store.replace(msgspec.structs.replace(host, metadata=meta))
                wrote.set()

        writer = asyncio.create_task(write())
        for file in range(5):
            await asyncio.to_thread(made, state, f"{file}.tar", None)
            for _ in range(2):  # so that something is written before the next one
                wrote.clear()
                await wrote.wait()
        done.set()
        await writer
        await store.close()
        return [read_manifest(tmp_path / f"{file}.tar") for file in range(5)]

    manifests = run_real(story())
    versions = [one.store.resource_version for one in manifests]
    assert versions == sorted(set(versions)), "each is newer than the one before"
    for number in range(5):
        folder = tmp_path / f"of-{number}"
        folder.mkdir()
        make_unpack(tmp_path / f"{number}.tar", {})(folder)
        first, second = run_real(_counts(folder))
        assert first in (second, second + 1)


async def _counts(folder: Path) -> list[int]:
    store = await opened(folder)
    counts = [int((await store.get(Hypervisor, name)).metadata.labels.get("count", 0)) for name in ("h0", "h1")]
    await store.close()
    return counts


def test_an_error_is_never_anything_else_for_any_byte_that_changes(state: Path) -> None:
    path = made(state, lock=None)
    raw, other = path.read_bytes(), path.with_name("flipped.tar")
    for at in range(0, len(raw), 997):
        flipped = bytearray(raw)
        flipped[at] ^= 0xFF
        other.write_bytes(flipped)
        try:
            manifest = check_backup(other)
        except OutliveError:
            continue
        assert manifest.parts == read_manifest(path).parts, "what passes has the same parts"
