"""The ``age`` program opens the keys of a backup, by passphrase and by identity, without anything of Outlive."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.support.command import outlive, up

from outlive.base import write_whole

pytestmark = pytest.mark.component("age")
PASSPHRASE = "correct horse battery staple"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("state") / "state"
    with up(directory):
        pass
    return directory


def keys_in(backup: Path, folder: Path) -> Path:
    """The encrypted keys of the backup, unpacked."""
    with tarfile.open(backup) as packed:
        (name,) = [one for one in packed.getnames() if one.endswith("keys.age")]
        packed.extract(name, folder, filter="data")
    return folder / name


def typed(words: list[str | Path], passphrase: str) -> int:
    """The exit code of a program that asks for a passphrase on its terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(str(words[0]), [str(one) for one in words])
    asked = b""
    while b"passphrase" not in asked:
        asked += os.read(terminal, 1024)
    os.write(terminal, f"{passphrase}\n".encode())
    try:
        while os.read(terminal, 1024):
            pass
    except OSError:  # the terminal of a program that has ended
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_keys(opened: bytes, state: Path) -> None:
    assert (state / "cluster-key").read_bytes().strip() in opened


def test_a_passphrase_opens_them(state: Path, tmp_path: Path) -> None:
    write_whole(tmp_path / "passphrase", PASSPHRASE.encode())
    made = tmp_path / "outlive.tar"
    done = outlive("backup", made, "--passphrase-file", tmp_path / "passphrase", "--state-dir", state)
    assert done.code == 0, done
    keys = keys_in(made, tmp_path)
    assert typed(["age", "--decrypt", "--output", tmp_path / "wrong", keys], "another") == 1
    assert typed(["age", "--decrypt", "--output", tmp_path / "opened", keys], PASSPHRASE) == 0
    check_keys((tmp_path / "opened").read_bytes(), state)


def test_an_identity_opens_them(state: Path, tmp_path: Path) -> None:
    keygen = shutil.which("age-keygen")
    assert keygen is not None
    subprocess.run([keygen, "-o", tmp_path / "identity"], check=True, capture_output=True)
    (recipient,) = re.findall(r"age1[0-9a-z]+", (tmp_path / "identity").read_text())
    made = tmp_path / "outlive.tar"
    done = outlive("backup", made, "--recipient", recipient, "--state-dir", state)
    assert done.code == 0, done
    words = ["age", "--decrypt", "--identity", tmp_path / "identity", keys_in(made, tmp_path)]
    check_keys(subprocess.run(words, check=True, capture_output=True).stdout, state)
