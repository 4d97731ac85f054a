"""``outlive vm tag``, and tags as options of other verbs: labels of VMs by which they are found."""

from __future__ import annotations

from typing import Annotated

import typer

from outlive.base import Usage
from outlive.cli.access import Access, WriteAccess
from outlive.cli.arguments import OneVm
from outlive.cli.commands import command, make_group
from outlive.cli.output import Output, make_table, write
from outlive.cli.values import split_words
from outlive.node.vm import PROTECTED, display_name_of, tag_labels, tag_vm, tags_of, untag_vm
from outlive.resources import VirtualMachine
from outlive.store import Selector, Term, find_vm

tag = make_group("Tags of VMs, by which outlive vm list --tag finds them.")

Tags = Annotated[list[str] | None, typer.Option("--tag", "-g", metavar="TAG,…", help="Tags of the VM.")]
ProtectedTags = Annotated[
    list[str] | None,
    typer.Option("--protected-tag", "-G", metavar="TAG,…", help="Its protected tags: removed with --force only."),
]
TagNames = Annotated[list[str], typer.Argument(metavar="TAG…", help="Names of tags.")]


def labels_of(user: list[str] | None, protected: list[str] | None) -> dict[str, str]:
    """The labels that the options for tags mean; each is protected that any says is. ``Usage``: no tag named."""
    plain = {} if user is None else tag_labels(_parse_names("--tag", user), protected=False)
    return plain | ({} if protected is None else tag_labels(_parse_names("--protected-tag", protected), protected=True))


def _parse_names(place: str, texts: list[str]) -> list[str]:
    names = split_words(*texts)
    if not names:
        raise Usage(
            f"{','.join(texts)[:80]!r} names no tag", place=place, remedy="write names with commas between them"
        )
    return names


def selector_of(user: list[str] | None, protected: list[str] | None) -> Selector | None:
    """Of VMs that have all the tags; ``None``: no tag is named."""
    terms = tuple(
        Term(key, "in", (PROTECTED,)) if kind == PROTECTED else Term(key, "exists")
        for key, kind in labels_of(user, protected).items()
    )
    return Selector(terms) if terms else None


@command(tag, "add")
async def add_tags(
    access: WriteAccess,
    vm: OneVm,
    names: TagNames,
    protected: Annotated[bool, typer.Option("--protected", help="Only --force removes them.")] = False,
) -> None:
    """Tag a VM; its other tags stay."""
    labels = tag_labels(_parse_names("TAG", names), protected=protected)
    async with access.open(write=True) as store:
        write(_tagged_line(await tag_vm(store, access.clock, await find_vm(store, vm), labels)))


@command(tag, "remove")
async def remove_tags(
    access: WriteAccess,
    vm: OneVm,
    names: TagNames,
    force: Annotated[bool, typer.Option("--force", help="Protected ones as well.")] = False,
) -> None:
    """Remove tags from a VM; none if one of them is protected or missing."""
    removed = _parse_names("TAG", names)
    async with access.open(write=True) as store:
        found = await find_vm(store, vm)
        write(_tagged_line(await untag_vm(store, access.clock, found, removed, force=force)))


def _tagged_line(vm: VirtualMachine) -> str:
    return f"{display_name_of(vm)}: {', '.join(tags_of(vm)) or 'no tags'}\n"


@command(tag, "list")
async def list_tags(access: Access, output: Output, vm: OneVm) -> None:
    """Tags of a VM, and which are protected."""
    async with access.open() as store:
        tags = tags_of(await find_vm(store, vm))
    output.show(tags, lambda: [make_table(("Tag", "Kind"), tags.items())])
