"""The command tree keeps the rules of docs/design/commands.md."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tests.support.pages import ShownCommand, command_tree

from outlive.cli.host import SAME_AS

TREE: Final = {one.path: one for one in command_tree() if one.path != "guard"}
LETTERS: Final = {
    "-f": "--file",
    "-k": "--slots",
    "-l": "--selector",
    "-n": "--lines",
    "-o": "--output",
    "-w": "--watch",
    "-y": "--yes",
}
TWO_FORMS: Final = {"--status"}
"""Of ``commitments request`` a state of LIQUID, whose word it is; of ``apply`` as kubectl has it for a subresource."""


def words(command: ShownCommand) -> set[str]:
    return {word for option in command.options for word in (*option.opts, *option.secondary_opts)}


def test_a_letter_is_one_option_everywhere_and_an_option_has_its_letter_everywhere() -> None:
    meanings: defaultdict[str, set[str]] = defaultdict(set)
    spelt: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    for command in TREE.values():
        for option in command.options:
            letters = tuple(sorted(one for one in option.opts if not one.startswith("--")))
            long = next(one for one in option.opts if one.startswith("--"))
            spelt[long].add(letters)
            for letter in letters:
                meanings[letter].add(long)
    assert {letter: found for letter, found in meanings.items() if len(found) > 1} == {}
    assert {long: found for long, found in spelt.items() if len(found) > 1} == {}
    assert {letter: meanings[letter] for letter in LETTERS} == {letter: {long} for letter, long in LETTERS.items()}


def test_an_option_is_a_flag_everywhere_or_takes_a_value_everywhere() -> None:
    forms: defaultdict[str, set[bool]] = defaultdict(set)
    for command in TREE.values():
        for option in command.options:
            forms[option.opts[0]].add(bool(getattr(option, "is_flag", False)))
    assert {word for word, found in forms.items() if len(found) > 1} == TWO_FORMS


def test_a_command_writes_unless_it_is_a_dry_run_or_answers_unless_it_applies_and_none_does_both() -> None:
    assert [path for path, one in TREE.items() if {"--dry-run", "--apply"} <= words(one)] == []
    assert [path for path, one in TREE.items() if "--dry-run" in words(one)] == [
        "import csv",
        *(f"import {form}" for form in ("proxmox", "libvirt", "rvtools", "kubevirt", "ganeti")),
        "import openstack",
        "import database",
        "commitments request",
        "group move",
        "apply",
    ]
    assert [path for path, one in TREE.items() if "--apply" in words(one)] == [
        "failover plan",
        "commitments check",
        "rebalance",
    ]
    assert not [path for path, one in TREE.items() if words(one) & {"--repair", "--execute", "--check-only"}]


def test_hosts_stand_after_the_command_that_acts_on_them() -> None:
    several = {path for path, one in TREE.items() for part in one.parameters if _is_list_of_hosts(part)}
    assert several == {
        "survive",
        "whatif drain",
        "whatif remove-host",
        "maintenance on",
        "maintenance off",
        "drain",
        "ready",
        "arm",
        "disarm",
        "host drain",
        "host ready",
        "host arm",
        "host disarm",
        "host promote",
        "host demote",
    }
    assert [path for path, one in TREE.items() if "--hosts" in words(one)] == ["import csv", "import database"]  # files


def _is_list_of_hosts(parameter: object) -> bool:
    is_argument = getattr(parameter, "param_type_name", "") == "argument"
    return is_argument and getattr(parameter, "nargs", 1) == -1 and "HOST]" in f"{getattr(parameter, 'metavar', '')}]"


def test_a_command_of_hosts_is_the_same_without_its_noun() -> None:
    for verb, same in SAME_AS.items():
        assert [p.opts for p in TREE[f"host {verb}"].parameters] == [p.opts for p in TREE[same].parameters]


ASKING: Final = {
    "restore",
    "delete",
    "arm",
    "disarm",
    "host arm",
    "host disarm",
    "host fence",
    "host trust",
    "fence host",
    "fence release",
    "maintenance on",
    "commitments delete",
    "vm stop",
    "vm disable",
    "vm flush-locks",
    "vm detach",
    "vm undefine",
    "secret delete",
    "secret rotate-key",
    "token revoke",
    "tls rotate",
}
"""What loses a guest's work or a credential, or lets VMs run twice, and cannot be undone by its opposite."""
WORDS_OF_LOSS: Final = {"delete", "revoke", "undefine", "stop", "detach", "release", "restore", "rotate-key"}
EXCEPT: Final = {"host release"}
"""It lets a host out of its quarantine: nothing is lost."""


def test_what_cannot_be_undone_asks_and_takes_yes() -> None:
    assert {path for path, one in TREE.items() if "--yes" in words(one)} == ASKING
    assert {path for path in TREE if path.split()[-1] in WORDS_OF_LOSS} - EXCEPT <= ASKING


def test_words_that_went_are_gone() -> None:
    assert "request" not in TREE
    assert "commitments what-if" not in TREE
