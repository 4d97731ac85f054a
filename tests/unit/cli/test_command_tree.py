"""The command tree keeps the rules of docs/design/commands.md."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.command import outlive
from tests.support.pages import ShownCommand, command_tree

from outlive.cli import SAME_AS, Access

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
        "import ports",
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
    "restored",
    "migrate-store",
    "delete",
    "arm",
    "disarm",
    "host arm",
    "host disarm",
    "schema restore",
    "schema upgrade",
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


HOST: Final = "apiVersion: outlive.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: h1}\nspec: {}\n"
GIVEN: Final = {
    "import csv": ("--hosts", "h.csv"),
    "import database": ("sqlite:///none.db",),
    "whatif require": ("*=2",),
    "failover explain": ("--fleet",),
    "commitments explain": ("x",),
    "commitments whatif": ("--any-host",),
    "assess": ("csv", "--hosts", "h.csv", "--vms", "v.csv"),
    "apply": ("-f", "h1.yaml"),
    "group move": ("x", "h1"),
}
"""What reaches the state, where one word for each argument does not."""
BEFORE: Final = {
    f"import {form}"
    for form in ("database", "openstack", "ports", "proxmox", "libvirt", "rvtools", "kubevirt", "ganeti")
}
"""They read what their source prints first, and write as ``import csv`` does."""
STATELESS: Final = {"get", "config show", "config timings", "assess", "failover verify"}
"""They answer without any state, where it is not needed."""


def test_no_command_has_an_option_for_a_state_file_and_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("h.csv").write_text("name,cpu,memory\nh1,8,64Gi\n")
    Path("v.csv").write_text("id,cpu,memory,host\nv1,4,8Gi,h1\n")
    Path("h1.yaml").write_text(HOST)
    assert outlive("import", "csv", "--hosts", "h.csv", "--vms", "v.csv", "--state-dir", "dir").code == 0
    Path("state.json").write_text(outlive("dump", "--state-dir", "dir").out)
    writes: list[bool] = []
    opened = Access._open

    async def open_and_count(access: Access, write: bool, or_empty: bool) -> Any:
        writes.append(write)
        return await opened(access, write, or_empty)

    monkeypatch.setattr(Access, "_open", open_and_count)
    for path, one in TREE.items():
        if "--state" not in words(one):
            continue
        writes.clear()
        given = GIVEN.get(path) or [word for part in one.parameters if (word := _some_word(part))]
        dry = ["--dry-run"] if "--dry-run" in words(one) else []
        result = outlive(*path.split(), *given, *dry, "--state", "state.json")
        assert True not in writes, (path, result)
        assert "a state file is" not in result.err, (path, result)
        assert writes or path in STATELESS | BEFORE, (path, result)


def _some_word(parameter: Any) -> str:
    """A word for an argument; none for an option."""
    if parameter.param_type_name != "argument":
        return ""
    name = parameter.metavar or parameter.name.upper()
    return "h1" if "HOST" in name else "v1"
