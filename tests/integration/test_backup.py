"""``outlive backup`` and ``outlive restore`` as commands, beside a server and from elsewhere."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Server, outlive, spawned, up

from outlive.drivers import ClusterKey, check_backup, decrypt
from outlive.resources import NOT_DUMPED, Secret, decode_as

PASSPHRASE = "correct horse battery"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server with the example, a secret and a token, and its state directory."""
    state = tmp_path_factory.mktemp("backup") / "state"
    with up(state, "--example") as server:
        spawned("secret", "set", "rack-3", "--username", "root", "--state-dir", state, stdin=b"four-words")
        assert spawned("token", "create", "grafana", "--role", "viewer", "--state-dir", state).code == 0
        yield server, state


@pytest.fixture
def passphrase(tmp_path: Path) -> Path:
    file = tmp_path / "passphrase"
    file.write_text(PASSPHRASE)
    file.chmod(0o600)
    return file


def counts(state: Path) -> dict[str, list[str]]:
    found = {}
    for kind in ("virtualmachines", "hypervisors", "secrets", "tokens"):
        said = outlive("get", kind, "--state-dir", state, "-o", "json")
        found[kind] = sorted(one["metadata"]["name"] for one in json.loads(said.out)["items"])
    return found


def test_a_backup_beside_a_server_has_everything_and_comes_back_into_an_empty_directory(
    running: tuple[Server, Path], passphrase: Path, tmp_path: Path
) -> None:
    _, state = running
    file, new = tmp_path / "b.tar", tmp_path / "new"
    done = outlive("backup", file, "--passphrase-file", passphrase, "--state-dir", state)
    assert done.code == 0, done.err
    assert "checked" in done.out
    assert "cluster-key, ca.pem, ca.key" in done.out
    assert "has not:  the token of the state directory" in done.out
    assert "NO KEYS" not in done.out
    back = outlive("restore", file, "--passphrase-file", passphrase, "--state-dir", new)
    assert back.code == 0, back.err
    steps = [line for line in back.out.splitlines() if line[:2] in ("1.", "2.", "5.")]
    assert [step[3:].split()[:2] for step in steps] == [["outlive", "up"], ["wait", "until"], ["outlive", "backup"]]
    assert counts(new) == counts(state)
    assert counts(new)["tokens"] == ["grafana"]
    assert len(counts(new)["virtualmachines"]) == 600
    document = json.loads(outlive("get", "secrets", "rack-3", "--state-dir", new, "-o", "json").out)
    secret = decode_as(Secret, json.dumps(document).encode())
    assert ClusterKey.read(new / "cluster-key").unseal(secret) == b"four-words"
    assert (new / "ca.pem").read_bytes() == (state / "ca.pem").read_bytes()
    assert (new / "outlive.yaml").read_bytes() == (state / "outlive.yaml").read_bytes()
    assert not (new / "token").exists()
    cluster = json.loads(outlive("get", "cluster", "default", "--state-dir", new, "-o", "json").out)
    assert "since" in cluster["status"]["pause"]


def test_a_server_sends_one_to_an_administrator(running: tuple[Server, Path], tmp_path: Path) -> None:
    server, state = running
    where = ("--server", server.url, "--token", f"@{state / 'token'}")
    file = tmp_path / "b.tar"
    done = outlive("backup", file, *where)
    assert done.code == 0, done.err
    assert "NO KEYS:  keep cluster-key, ca.pem, ca.key apart" in done.out
    assert check_backup(file).store.objects["VirtualMachine"] == 600
    assert file.stat().st_mode & 0o777 == 0o600
    refused = outlive("backup", tmp_path / "c.tar", *where, "--passphrase")
    assert refused.code == 2
    assert "set backup.recipient or backup.passphraseFile there" in refused.line

    assert [path.name for path in state.iterdir() if path.name.startswith(".")] == [], "nothing is left of it"


@pytest.mark.parametrize("role", ["operator", "viewer", "scheduler", "controller", "liquid"])
def test_other_roles_get_no_backup(running: tuple[Server, Path], tmp_path: Path, role: str) -> None:
    server, state = running
    said = outlive("token", "create", f"as-{role}", "--role", role, "--state-dir", state, "-o", "json")
    request = urllib.request.Request(
        f"{server.url}/backup", headers={"Authorization": f"Bearer {json.loads(said.out)['token']}"}
    )
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=30)
    assert raised.value.code == 403
    raised.value.close()


def test_what_cannot_be_restored_is_said_before_anything_is_changed(
    running: tuple[Server, Path], passphrase: Path, tmp_path: Path
) -> None:
    server, state = running
    file, new = tmp_path / "b.tar", tmp_path / "new"
    assert outlive("backup", file, "--passphrase-file", passphrase, "--state-dir", state).code == 0
    torn, dump, wrong = tmp_path / "torn.tar", tmp_path / "state.json", tmp_path / "wrong"
    torn.write_bytes(file.read_bytes()[:100_000])
    dump.write_text(outlive("dump", "--state-dir", state).out)
    wrong.write_text("another passphrase")
    wrong.chmod(0o600)
    for words, code, said in (
        ((torn, "--without-keys"), 3, "is torn, or was changed"),
        ((dump,), 3, "is what outlive dump, or outlive get, wrote"),
        ((file, "--passphrase-file", wrong), 3, "does not open with this passphrase"),
        ((file,), 2, "the keys in this backup are encrypted with a passphrase"),
        ((tmp_path / "none",), 4, "no such file"),
    ):
        done = spawned("restore", *words, "--state-dir", new)
        assert (done.code, said in done.line) == (code, True), done.err
        assert not (new / "store.db").exists()
    assert outlive("restore", file, "--without-keys", "--state-dir", state).code == 5
    assert server.process.poll() is None


def test_what_a_restore_replaces_is_asked_for_and_kept(passphrase: Path, tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "b.tar"
    with up(state):
        pass
    assert outlive("backup", file, "--passphrase-file", passphrase, "--state-dir", state).code == 0
    old = ClusterKey.generate()
    old.write(state / "cluster-key")
    words = ("restore", file, "--passphrase-file", passphrase, "--state-dir", state)
    assert (spawned(*words).code, ClusterKey.read(state / "cluster-key")) == (2, old), "nobody is there to answer"
    done = spawned(*words, "--yes")
    assert done.code == 0, done.err
    (kept,) = state.glob("cluster-key.replaced-*")
    assert (ClusterKey.read(kept), ClusterKey.read(state / "cluster-key") == old) == (old, False)
    assert len([one for one in state.glob("store.db.replaced-*") if not one.name.endswith(("-wal", "-shm"))]) == 1
    with up(state) as server:
        assert "does not hold the cluster's key" not in "".join(server.said)


def test_without_keys_the_restore_says_what_to_bring_and_from_where(
    running: tuple[Server, Path], tmp_path: Path
) -> None:
    _, state = running
    file, new = tmp_path / "b.tar", tmp_path / "new"
    assert outlive("backup", file, "--state-dir", state).code == 0
    said = outlive("restore", file, "--state-dir", new).out
    first, second = (line for line in said.splitlines() if line.startswith(("1. ", "2. ")))
    assert "from a coordinator (/etc/outlive/cluster-key)" in first
    assert "1 secret cannot be opened without it" in first
    assert "put ca.pem and ca.key back" in second
    shutil.copy(state / "cluster-key", new / "cluster-key")
    again = outlive("restore", file, "--state-dir", new, "--yes")
    assert "from a coordinator" not in again.out


def test_the_keys_are_a_tar_encrypted_by_age(running: tuple[Server, Path], passphrase: Path, tmp_path: Path) -> None:
    """``tar xOf b.tar keys.age | age -d | tar x``: age's format, and a tar in it."""
    _, state = running
    file = tmp_path / "b.tar"
    assert outlive("backup", file, "--passphrase-file", passphrase, "--state-dir", state).code == 0
    with tarfile.open(file) as archive:
        stream = archive.extractfile("keys.age")
        assert stream is not None
        sealed = stream.read()
    assert sealed.startswith(b"age-encryption.org/v1\n-> scrypt ")
    with tarfile.open(fileobj=io.BytesIO(decrypt(sealed, PASSPHRASE))) as keys:
        assert "cluster-key" in keys.getnames()


def test_status_says_how_old_the_newest_backup_is(tmp_path: Path, passphrase: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "outlive.yaml").write_text(f"backup: {{directory: kept, passphraseFile: {passphrase}}}\n")
    with up(state) as server:
        assert f"none in {state}/kept yet" in outlive("status", "--state-dir", state).out
        backup(state, "outlive-20260101T000000Z.tar")
        server.stop()
    with up(state):
        said: dict[str, Any] = json.loads(outlive("status", "--state-dir", state, "-o", "json").out)["backup"]
        assert (said["newest"]["name"], said["newest"]["keys"]) == ("outlive-20260101T000000Z.tar", True)
        assert 0 <= said["newest"]["ageS"] < 300
        assert "with keys" in outlive("status", "--state-dir", state).out


def backup(state: Path, name: str) -> None:
    (state / "kept").mkdir(exist_ok=True)
    done = outlive("backup", state / "kept" / name, "--state-dir", state)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ("{recipient: age1nonsense}", "backup.recipient"),
        ("{passphraseFile: missing}", "missing"),
        ("{keep: 0}", "backup"),
    ],
)
def test_a_server_with_settings_that_make_no_backup_does_not_start(tmp_path: Path, settings: str, place: str) -> None:
    (tmp_path / "outlive.yaml").write_text(f"backup: {settings}\n")
    done = spawned("up", "--state-dir", tmp_path, "--listen", "127.0.0.1:0")
    assert done.code in (3, 4)
    assert place in done.line


def test_a_dump_says_in_its_first_line_what_it_leaves_out_and_is_read_all_the_same(
    running: tuple[Server, Path], tmp_path: Path
) -> None:
    _, state = running
    file = tmp_path / "state.json"
    file.write_text(outlive("dump", "--state-dir", state).out)
    first = json.loads(file.read_text().splitlines()[0] + "]}")
    assert first["leavesOut"] == [kind.kind() for kind in NOT_DUMPED]
    assert {"Secret", "Token"} < set(first["leavesOut"])
    assert outlive("get", "hypervisors", "--state", file).code == 0
    assert outlive("apply", "-f", file, "--dry-run", "--state-dir", tmp_path / "new").code == 0
