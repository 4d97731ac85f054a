"""``outlive why``: the chain of proofs from the last renewal seen to the VM running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlive.base import ExitCode
from outlive.cli.access import Access
from outlive.cli.arguments import VmOrHost
from outlive.cli.liveness import read_sight
from outlive.cli.output import Output, cut_table
from outlive.cli.vm_names import VmColumns, columns_of, uuids_in
from outlive.recovery.why import explain
from outlive.resources import Hypervisor, VirtualMachine
from outlive.store import find_subject, list_all, names_by_id

if TYPE_CHECKING:
    from outlive.recovery.why import WhyAnswer


async def why(
    access: Access,
    output: Output,
    name: VmOrHost,
) -> ExitCode | None:
    """Explain where a VM runs and why, or why a host counts as dead; exit code 1 while something is left to do."""
    async with access.open() as store:
        hosts = {one.name: one async for one in list_all(store, Hypervisor)} if access.state is not None else {}
        answer = await explain(store, await find_subject(store, name), await read_sight(store, access, hosts))
        texts = (answer.summary, answer.remedy, *(link.text for link in answer.chain))
        named = columns_of(await names_by_id(store, VirtualMachine, [answer.subject, *uuids_in(texts)]))
    output.show(answer, lambda: explanation_lines(answer, named, wide=output.wide))
    return None if answer.settled else ExitCode.NO


def explanation_lines(answer: WhyAnswer, named: VmColumns = VmColumns(), *, wide: bool) -> list[Any]:
    """The answer for people: the summary, the chain in order, what helps, and by which decisions."""
    lines: list[Any] = [f"{named.replace_ids(answer.summary)}."]
    chain = [
        (f"{link.at:%Y-%m-%d %H:%M:%S}" if link.at else "", named.replace_ids(link.text, answer.subject))
        for link in answer.chain
    ]
    lines += cut_table(("When", "What"), chain, advice=True)
    if answer.remedy:
        lines += ["", f"What helps: {named.replace_ids(answer.remedy, answer.subject)}."]
    if answer.decisions:
        decided = [(f"{one.at:%H:%M:%S}", one.decision, one.subject, one.by, one.name) for one in answer.decisions]
        lines += cut_table(("At", "Decision", "About", "By", "Record"), decided)
        if wide:
            for one in answer.decisions:
                lines += ["", f"{one.decision} on", bytes(one.input).decode(), "answered", bytes(one.output).decode()]
        else:
            lines.append("inputs and outputs: -o wide or -o json; outlive decide NAME repeats one")
    return lines
