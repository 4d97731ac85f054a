"""``outlive simulate``: what happens when hosts fail, played by the product itself in virtual time.

Either a scenario (a folder with a failure story) or an inventory of which something fails. Nothing real is
touched: hosts, BMCs, disks, networks and the store are virtual.
"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base import BadInput, ExitCode, NotFound, Random, SeededIds, SystemClock, Usage, duration_of_flag
from outlive.cli.access import all_objects
from outlive.cli.commands import log_little
from outlive.cli.output import Form, Output, Report, show_progress
from outlive.cli.why import explanation_lines
from outlive.drivers import read_input

if TYPE_CHECKING:
    from outlive.resources import Resource
    from outlive.simulation import PlayedStory, Scenario
    from outlive.simulation.kubernetes import StorageEnded

EXAMPLE = "example"
PROPOSED = "expect.proposed.yaml"
AT, FOR = "10s", "60s"
LONGEST_S = 24 * 3600.0
"""The longest run of an inventory, in virtual seconds."""


def simulate(
    output: Report,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A scenario: README, cluster, timeline, expect.")
    ] = None,
    inventory: Annotated[
        str | None,
        typer.Option("--inventory", metavar="FILE", help="Instead: a state file (see outlive dump), or example."),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option("--fail", metavar="KIND=NAME", help="What loses power: host=kvm-7, zone=z1, rack=r3."),
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help=f"When it does; {AT}.")] = None,
    run_for: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help=f"Virtual time that passes in all; {FOR}.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="The same seed gives the same run; 1.")
    ] = None,
    why: Annotated[
        str, typer.Option("--why", metavar="VM|HOST", help="Show at the end how it came to run there, or to be dead.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Show each event, also equal ones and asides.")] = False,
    write_expect: Annotated[
        bool, typer.Option("--write-expect", help=f"Write what came out to {PROPOSED}, for review.")
    ] = False,
) -> ExitCode | None:
    """Play a failure in virtual time, and show what happens to every VM.

    Exit code 1 if a promise was broken, or a scenario ended otherwise than it expects.
    """
    log_little()
    if (folder is None) == (inventory is None):
        raise Usage("name either a folder or --inventory", remedy="outlive simulate --inventory example --fail rack=r1")
    if folder is not None:
        if fail or at or run_for:
            raise Usage("--fail, --at and --for go with --inventory", remedy="write them into timeline.yaml")
        return _simulate_folder(output, folder, seed, why, everything=everything, write_expect=write_expect)
    if write_expect:
        raise Usage("--write-expect goes with a folder", remedy="leave it out")
    assert inventory is not None
    return _simulate_inventory(
        output, inventory, fail or [], at or AT, run_for or FOR, seed or 0, why, everything=everything
    )


def _simulate_folder(
    output: Output,
    folder: Path,
    seed: int | None,
    why: str,
    *,
    everything: bool,
    write_expect: bool,
) -> ExitCode | None:
    from outlive.simulation import CLUSTER, EXPECT, format_proposal, read_scenario, read_value
    from outlive.simulation.kubernetes import is_storage_cluster

    if folder.is_dir() and is_storage_cluster(read_value(folder / CLUSTER)):
        return _simulate_storage(output, folder, seed, why, everything=everything, write_expect=write_expect)
    scenario = read_scenario(folder, expected=not write_expect)
    if why and why not in scenario.names:
        raise _unknown_name(why)
    chosen = scenario.spec.seed if seed is None else seed
    ended = _play(scenario, chosen, _replay(folder, seed), why=why, everything=everything)
    if write_expect:
        _propose(output, folder, format_proposal(ended), EXPECT)
    return _answer(output, scenario.line, ended, (), everything=everything)


def _simulate_storage(
    output: Output, folder: Path, seed: int | None, why: str, *, everything: bool, write_expect: bool
) -> ExitCode | None:
    """A story about storage: nodes and pods instead of hosts and VMs."""
    from outlive.runtime import run_virtual
    from outlive.simulation import EXPECT, collect_rarely
    from outlive.simulation.kubernetes import read_storage_scenario, storage_proposal, storage_story

    if why:
        raise Usage("--why is for VMs and hosts", remedy="use --all, which shows each event")
    scenario = read_storage_scenario(folder, expected=not write_expect)
    chosen = scenario.spec.seed if seed is None else seed

    with show_progress("virtual seconds", int(scenario.until_s)) as bar, collect_rarely() as collect:

        def tick(second: int) -> None:
            bar.advance_to(second)
            collect(second)

        async def play() -> StorageEnded:
            return await storage_story(
                scenario, seed=chosen, replay=_replay(folder, seed), tick=tick, everything=everything
            ).play()

        ended = run_virtual(play())
    if write_expect:
        _propose(output, folder, storage_proposal(ended), EXPECT)
    return _answer(output, scenario.line, ended, (), everything=everything)


def _replay(folder: Path, seed: int | None) -> str:
    again = f" --seed {seed}" if seed is not None else ""
    return f"outlive simulate {shlex.quote(str(folder))}{again}"


def _propose(output: Output, folder: Path, text: str, name: str) -> None:
    place = folder / PROPOSED
    place.write_text(text)
    if output.form in (Form.TABLE, Form.WIDE):
        output.print_text(f"{place} is what came out; read it, correct it, and rename it to {name}")


def _simulate_inventory(
    output: Output, inventory: str, fail: list[str], at: str, run_for: str, seed: int, why: str, *, everything: bool
) -> ExitCode | None:
    from outlive.simulation import build_virtual, inventory_scenario

    if inventory == EXAMPLE:
        objects = asyncio.run(example_objects())
    else:
        from outlive.resources import decode_state

        path = Path(inventory)
        objects = decode_state(read_input(path), str(path)).objects
    virtual = build_virtual(objects, fail)
    seed = seed or 1
    at_s, until_s = _parse_seconds("--at", at), _parse_seconds("--for", run_for)
    if at_s >= until_s:
        raise Usage(f"it would end at {run_for}, before anything fails at {at}", remedy="give more time with --for")
    scenario = inventory_scenario(inventory, virtual.spec, virtual.build_acts(at_s), until_s)
    if why and why not in scenario.names:
        raise _unknown_name(why)
    failing = "".join(f" --fail {shlex.quote(text)}" for text in fail)
    again = f"outlive simulate --inventory {shlex.quote(inventory)}{failing} --at {at} --for {run_for} --seed {seed}"
    ended = _play(scenario, seed, again, virtual.objects, why=why, everything=everything)
    return _answer(output, scenario.line, ended, virtual.notes, everything=everything)


def _unknown_name(name: str) -> NotFound:
    return NotFound(f"there is no VM and no host {name[:80]!r}", place="--why", remedy="name one that is in the story")


def _parse_seconds(flag: str, text: str) -> float:
    seconds = duration_of_flag(flag, text)
    if not 0 <= seconds <= LONGEST_S:
        raise BadInput(f"{text} is out of range", place=flag, remedy="write 0 to 24h")
    return seconds


async def example_objects() -> tuple[Resource, ...]:
    """The shipped example, imported."""
    from outlive.cli.inventory import import_example
    from outlive.store import MemoryStore

    store = MemoryStore(SystemClock(), SeededIds(Random(0)))
    await import_example(store)
    return tuple(await all_objects(store))


def _play(
    scenario: Scenario,
    seed: int,
    replay: str,
    objects: tuple[Resource, ...] = (),
    *,
    why: str = "",
    everything: bool = False,
) -> PlayedStory:
    from outlive.runtime import run_virtual
    from outlive.simulation import Story, collect_rarely

    with show_progress("virtual seconds", int(scenario.until_s)) as bar, collect_rarely() as collect:

        def tick(second: int) -> None:
            bar.advance_to(second)
            collect(second)

        async def play_story() -> PlayedStory:
            story = Story(
                scenario, seed=seed, replay=replay, inventory=objects, tick=tick, why=why, everything=everything
            )
            return await story.play()

        return run_virtual(play_story())


def _answer(
    output: Output, line: str, ended: PlayedStory | StorageEnded, notes: tuple[str, ...], *, everything: bool
) -> ExitCode | None:
    from outlive.simulation import lines_of

    chain = getattr(ended, "why", None)

    def render_lines() -> list[Any]:
        lines: list[Any] = [line, *(f"assumed: {note}" for note in notes), ""]
        lines += [*lines_of(ended.events, everything=everything), "", *ended.summary.format_lines()]
        # What was violated stands in the summary already.
        lines += [f"NOT AS EXPECTED  {one}" for one in ended.failed if not one.startswith("violated: ")]
        return lines + (["", *explanation_lines(chain, wide=output.wide)] if chain is not None else [])

    document = {**ended.summary.to_document(ended.failed), "assumed": list(notes)}
    output.show({**document, "why": chain} if chain is not None else document, render_lines)
    return ExitCode.NO if ended.failed or ended.summary.violations else None
