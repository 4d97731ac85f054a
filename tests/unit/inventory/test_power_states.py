"""Words of sources for whether a VM runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import Usage
from outlive.inventory import GuestPower, parse_status_map, power_state


@pytest.mark.parametrize(
    "word",
    ["poweredOff", "Powered Off", "shut off", "SHUTOFF", "Halted", "Down", "ADMIN_down", "crashed", "suspended", "Off",
     "Saved", "Stopped", "SHELVED_OFFLOADED", "Succeeded", "POWEROFF", "USER_down", "vanished"],
)  # fmt: skip
def test_words_for_a_vm_that_does_not_run_are_known(word: str) -> None:
    assert power_state(word, {}) is GuestPower.STOPPED


@pytest.mark.parametrize(
    "word",
    ["poweredOn", "ACTIVE", "running", "up", "blocked", "in shutdown", "ERROR_down", "HARD_REBOOT", "prelaunch",
     "CrashLoopBackOff", "Powering_Up", "", "-"],
)  # fmt: skip
def test_words_for_a_vm_that_runs_are_known_and_no_word_is_one(word: str) -> None:
    assert power_state(word, {}) is GuestPower.RUNNING


def test_a_paused_vm_has_its_memory_on_its_host() -> None:
    assert power_state("Paused", {}) is power_state("pmsuspended", {}) is GuestPower.PAUSED


def test_a_word_that_nobody_knows_is_not_guessed_at() -> None:
    assert power_state("frobnicated", {}) is None
    assert power_state("frobnicated", parse_status_map(["Frobnicated=stopped"])) is GuestPower.STOPPED


def test_what_the_user_says_of_a_word_counts_more_than_the_table() -> None:
    assert power_state("suspended", parse_status_map(["suspended=paused,off=stopped"])) is GuestPower.PAUSED


@pytest.mark.parametrize("text", ["off", "off=", "=stopped", "off=gone"])
def test_a_malformed_map_is_a_wrong_command_line(text: str) -> None:
    with pytest.raises(Usage, match="STATE"):
        parse_status_map([text])


@given(
    word=st.sampled_from(["powered off", "shut off", "soft_deleted"]), sign=st.sampled_from(" _-."), up=st.booleans()
)
def test_case_and_signs_between_words_do_not_matter(word: str, sign: str, up: bool) -> None:
    written = word.replace(" ", sign).replace("_", sign)
    assert power_state(written.upper() if up else written, {}) is GuestPower.STOPPED
