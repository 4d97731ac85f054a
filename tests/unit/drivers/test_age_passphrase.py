"""What is encrypted with a passphrase is what others who know age's format write and read."""

from __future__ import annotations

import os

import pyrage
import pytest

from outlive.base import BadInput
from outlive.drivers import LOG_WORK_MOST, age_passphrase, decrypt, encrypt


@pytest.fixture(autouse=True)
def _little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(age_passphrase, "LOG_WORK", 10)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_another_implementation_opens_it(size: int) -> None:
    raw = os.urandom(size)
    sealed = encrypt(raw, "correct horse")
    assert pyrage.passphrase.decrypt(sealed, "correct horse") == raw
    assert decrypt(sealed, "correct horse") == raw


@pytest.mark.slow
def test_it_opens_what_another_implementation_wrote() -> None:
    assert decrypt(pyrage.passphrase.encrypt(b"keys" * 50_000, "a ü passphrase"), "a ü passphrase") == b"keys" * 50_000


def test_another_passphrase_opens_nothing() -> None:
    with pytest.raises(BadInput, match="the passphrase is another one"):
        decrypt(encrypt(b"x", "correct horse"), "correct horsf")


def test_what_was_changed_or_cut_off_anywhere_is_refused() -> None:
    sealed = encrypt(b"k" * 70_000, "correct horse")
    for at in (0, 30, 60, 100, 150, 170, 190, 300, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(BadInput):
            decrypt(bytes(changed), "correct horse")
    payload = sealed.index(b"\n---") + 5 + 43 + 1
    for size in (0, 10, payload, payload + 16, payload + 16 + 65_552, len(sealed) - 1):
        with pytest.raises(BadInput):
            decrypt(sealed[:size], "correct horse")


def test_work_without_end_is_refused_before_it_is_done() -> None:
    sealed = encrypt(b"x", "correct horse").replace(b" 10\n", b" %d\n" % (LOG_WORK_MOST + 1), 1)
    with pytest.raises(BadInput, match=r"asks for work of 2\^23"):
        decrypt(sealed, "correct horse")
