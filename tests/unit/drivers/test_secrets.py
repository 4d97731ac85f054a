"""Secrets: sealed with the public half of the cluster's key, opened with the private one, and with nothing else."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.loops import run_real

from outlive.base import BadInput, Forbidden, LoopClock, NotFound, OutliveError, Random, SeededIds, Unavailable
from outlive.drivers import KEYS_LIMIT, ClusterKey, KeyCopy, SealingKey, Secrets
from outlive.drivers.libvirt import DiskThread
from outlive.resources import ObjectMeta, Secret, SecretSpec
from outlive.store import MemoryStore

pytestmark = pytest.mark.real_loop

KEY = ClusterKey.generate()


def secret(sealed: str, name: str = "rack-3") -> Secret:
    return Secret(metadata=ObjectMeta(name=name), spec=SecretSpec(username="outlive", sealed=sealed))


@given(st.binary(min_size=1, max_size=200))
def test_what_is_sealed_is_opened_by_the_private_half_alone(value: bytes) -> None:
    sealed = SealingKey.parse(KEY.public.text).seal("rack-3", value, "outlive")
    assert KEY.unseal(secret(sealed)) == value
    assert len(value) < 8 or value not in sealed.encode()
    with pytest.raises(Unavailable, match="which this host does not have"):
        ClusterKey.generate().unseal(secret(sealed))


def test_a_sealed_value_is_worth_nothing_under_another_name_or_changed() -> None:
    sealed = KEY.public.seal("rack-3", b"x" * 20, "outlive")
    for other in (secret(sealed, "rack-4"), secret(sealed[:-2] + ("AA" if sealed[-2:] != "AA" else "BB"))):
        with pytest.raises(Unavailable, match="damaged, or sealed under another name, user or address"):
            KEY.unseal(other)
    for text in (
        "",
        "four-words",
        f"v1.{KEY.public.id}",
        f"v1.{KEY.public.id}.",
        f"v1.{KEY.public.id}.%%",
        f"v2.{KEY.public.id}.AAAA",
        f"v3.{KEY.public.id}.AAAA",
    ):
        with pytest.raises(Unavailable):
            KEY.unseal(secret(text))


def test_a_sealed_value_is_worth_nothing_with_another_user_or_for_another_controller() -> None:
    sealed = KEY.public.seal("rack-3", b"one", "outlive", ["10.0.0.1", "10.0.0.2"])
    spec = SecretSpec(username="outlive", addresses=("10.0.0.1", "10.0.0.2"), sealed=sealed)
    kept = Secret(metadata=ObjectMeta(name="rack-3"), spec=spec)
    assert KEY.unseal(kept) == b"one"
    for other in ({"username": "root"}, {"addresses": ("10.6.6.6",)}, {"addresses": ()}):
        with pytest.raises(Unavailable, match="another name, user or address"):
            KEY.unseal(replace(kept, spec=replace(spec, **other)))


def test_what_an_older_version_has_sealed_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.drivers.secrets.VERSION", "v1")
    sealed = KEY.public.seal("rack-3", b"one")
    monkeypatch.undo()
    assert sealed.startswith("v1.")
    assert KEY.unseal(secret(sealed)) == b"one"
    with pytest.raises(Unavailable):
        KEY.unseal(secret(f"v2{sealed[2:]}"))


def test_a_value_is_neither_empty_nor_too_long() -> None:
    for value in (b"", b"x" * 5000):
        with pytest.raises(BadInput, match="the value is"):
            KEY.public.seal("rack-3", value)


def test_a_new_key_opens_what_was_sealed_for_the_older_ones() -> None:
    sealed = KEY.public.seal("rack-3", b"old", "outlive")
    newer = ClusterKey.generate(KEY)
    assert newer.unseal(secret(sealed)) == b"old"
    assert newer.public.id != KEY.public.id
    assert newer.ids == (newer.public.id, KEY.public.id)
    with pytest.raises(Unavailable):
        newer.without_older().unseal(secret(sealed))
    many = KEY
    for _ in range(2 * KEYS_LIMIT):
        many = ClusterKey.generate(many)
    assert ClusterKey.parse(many.text, "there") == many


def test_a_key_file_is_read_only_where_nobody_else_can(tmp_path: Path) -> None:
    path = tmp_path / "cluster-key"
    with pytest.raises(NotFound, match="no secret can be read here"):
        ClusterKey.read(path)
    made = ClusterKey.ensure(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert ClusterKey.ensure(path) == ClusterKey.read(path) == made
    assert [one.name for one in tmp_path.iterdir()] == ["cluster-key"]
    path.chmod(0o640)
    with pytest.raises(Forbidden, match="chmod 600"):
        ClusterKey.read(path)
    path.chmod(0o600)
    for text in ("", "# nothing\n", "x25519-private:AAAA\n", made.text + "rubbish\n"):
        path.write_text(text)
        with pytest.raises(BadInput, match="is no key of a cluster"):
            ClusterKey.read(path)


def test_neither_keys_nor_credentials_are_shown() -> None:
    assert "x25519" not in repr(KEY)
    assert str(KEY.keys[0]) not in repr(KEY)


async def test_credentials_are_read_when_they_are_used_and_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster-key"
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    source = Secrets(store, path)
    lines = [await line(source, "rack-3")]
    await store.create(secret(KEY.public.seal("rack-3", b"one", "outlive")))
    lines.append(await line(source, "rack-3"))
    KEY.write(path)
    found = await source.read_credential("rack-3")
    assert (found.username, found.password) == ("outlive", "one")
    assert "one" not in repr(found)
    await store.create(secret(KEY.public.seal("binary", b"\xff", "outlive"), "binary"))
    lines.append(await line(source, "binary"))
    assert "does not exist" in lines[0]
    assert "is not there" in lines[1]
    assert "holds no text" in lines[2]


async def test_a_credential_is_known_while_the_store_does_not_answer(tmp_path: Path) -> None:
    KEY.write(tmp_path / "cluster-key")
    store = Silent(MemoryStore(LoopClock(), SeededIds(Random(1))))
    source = Secrets(store, tmp_path / "cluster-key")
    await store.create(secret(KEY.public.seal("rack-3", b"one", "outlive")))
    assert (await source.read_credential("rack-3")).password == "one"
    store.silent = True
    assert (await source.read_credential("rack-3")).password == "one"
    with pytest.raises(Unavailable):
        await source.read_credential("rack-4")
    store.silent = False
    await store.delete((await store.get(Secret, "rack-3")).ref)
    with pytest.raises(NotFound):
        await source.read_credential("rack-3")
    store.silent = True
    with pytest.raises(Unavailable):
        await source.read_credential("rack-3")


class Silent:
    """A store that may answer nothing."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.silent = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def get(self, *given, **named):
        if self.silent:
            raise Unavailable("no answer")
        return await self._store.get(*given, **named)


async def line(source: Secrets, name: str) -> str:
    with pytest.raises(OutliveError) as error:
        await source.read_credential(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_copy_is_never_given_up_for_keys_that_do_not_open_what_is_sealed(tmp_path: Path) -> None:
    old, file = ClusterKey.generate(), tmp_path / "cluster-key"
    old.write(file)
    new = ClusterKey.generate(old)
    handed = {"key": ClusterKey.generate()}

    async def fetch() -> str:
        return handed["key"].text

    copy = KeyCopy(fetch, file)
    with pytest.raises(Unavailable, match="the server hands over"):
        run_real(copy.update(handed["key"].ids, old.public.text))
    with pytest.raises(Unavailable, match="the server hands over"):
        run_real(copy.update(new.ids, old.public.text))
    assert run_real(copy.list_ids()) == old.ids
    handed["key"] = new
    run_real(copy.update(new.ids, old.public.text))
    assert run_real(copy.list_ids()) == new.ids
    assert file.stat().st_mode & 0o077 == 0


async def test_the_loop_does_not_wait_for_the_disk_with_the_key(tmp_path: Path) -> None:
    """A pipe that nobody reads is a disk that hangs; the loop renews the membership of the host meanwhile."""
    file = tmp_path / "cluster-key"
    os.mkfifo(file, 0o600)
    asked = asyncio.ensure_future(DiskThread(file).call(lambda: ClusterKey.parse(file.read_text(), "it").ids))
    handle = await opened(file)
    assert not asked.done()
    os.write(handle, KEY.text.encode())
    os.close(handle)
    assert await asked == KEY.ids


async def opened(file: Path) -> int:
    """The end of a pipe to write to, once somebody reads from it."""
    while True:
        try:
            return os.open(file, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            await asyncio.sleep(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of others")
def test_a_key_that_root_changes_stays_readable_by_the_service_that_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "cluster-key"
    os.chown(tmp_path, 4242, 4242)
    ClusterKey.generate().write(file)
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (4242, 0o600), "as its folder"
    os.chown(file, 4243, 4243)
    ClusterKey.generate().write(file)
    assert file.stat().st_uid == 4243, "as before"


def test_a_link_that_waits_where_a_key_is_written_is_not_written_through(tmp_path: Path) -> None:
    """The folder belongs to a service, and root writes there: a user who controls the service must not get at other
    files."""
    file, other = tmp_path / "cluster-key", tmp_path / "other"
    other.write_text("of root")
    (tmp_path / f".{file.name}.{os.getpid()}").symlink_to(other)
    file.symlink_to(other)
    owner = other.stat().st_uid
    if os.geteuid() == 0:
        os.chown(tmp_path, 4242, 4242)
        os.chown(file, 4242, 4242, follow_symlinks=False)
    key = ClusterKey.generate()
    key.write(file)
    assert (other.read_text(), other.stat().st_uid) == ("of root", owner)
    assert not file.is_symlink()
    assert ClusterKey.read(file) == key
