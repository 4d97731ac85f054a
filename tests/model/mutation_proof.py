"""The mutation proof: for everything that can be left out, the world in which that is seen to go wrong.

Counterexamples are searched once (``scripts/model --prove``), stored as lists of sentences, and replayed by the tests:
each must end in its violation with the rule left out, and must not be possible, or end well, with all rules.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.model.catalogue import SEARCHED, SHORT_SEARCH, WORLDS
from tests.model.invariants import MEANING
from tests.model.rules import SHELL_RULES, STEPS, Rules, targets, without
from tests.model.search import Result, Space
from tests.mutations.record import recorded, table

FOLDER: Final = Path(__file__).parent / "counterexamples"
DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "safety-proof.md"

SHOWN_IN: Final[dict[str, str]] = {
    "safety.join.j0/no-record": "swap",
    "safety.join.j0/nothing-runs": "left-over",
    "safety.join.j0/never-a-member": "forgotten",
    "safety.join.j1/record": "forgotten",
    "safety.join.j1/same-machine": "swap",
    "safety.join.j1/new-boot": "restart",
    "safety.join.j1/nothing-runs": "restored-boot",
    "safety.join.j2/record": "forgotten",
    "safety.join.j2/same-boot": "swap",
    "safety.join.j2/not-revoked": "forgotten",
    "safety.join.j2/not-rolled-back": "restored-restart",
    "safety.join.j2/own-epoch-not-dead": "leave-late",
    "safety.join.j3/record": "forgotten",
    "safety.join.j3/same-boot": "swap",
    "safety.join.j3/own-epoch-not-dead": "contradicted",
    "safety.join.j3/not-rolled-back": "restored-restart",
    "safety.join.j3/not-isolated": "cut",
    "safety.join.j4/not-isolated": "cut-armed",
    "safety.join.j4/record": "forgotten",
    "safety.join.j4/same-boot": "replaced",
    "safety.join.j4/own-epoch-dead": "restored-restart",
    "safety.join.j4/nothing-runs": "contradicted",
    "safety.self-clean/held-by-me": "intruder",
    "safety.self-clean/later-epoch": "comes-back",
    "safety.self-clean/nothing-left": "rejoin",
    "safety.renew/held": "again",
    "safety.renew/my-nonce": "intruder",
    "safety.leave/held-by-me": "leave",
    "safety.leave/nothing-runs": "leave-running",
    "safety.leave/nothing-held": "leave",
    "safety.hold/assigned-to-me": "start",
    "safety.hold/wanted": "start",
    "safety.hold/membership-held": "watchdog-start",
    "safety.hold/gate-open": "watchdog-start",
    "safety.hold/nothing-here": "start",
    "safety.hold/not-paused": "restored",
    "safety.hold/not-deleted": "deleted-first",
    "safety.hold/deletion-waits": "deleted-first",
    "safety.hold/name-not-running": "name-runs",
    "safety.hold/others-fenced": "start",
    "safety.create/entry-acknowledged": "start",
    "safety.create/membership-still-held": "watchdog-start",
    "safety.create/gate-still-open": "watchdog-start",
    "safety.create/same-store": "restored",
    "safety.release/domain-absent": "start",
    "safety.release/no-create-under-way": "start",
    "safety.rehold/runs-here": "rejoin",
    "safety.rehold/entry-still-mine": "recreated",
    "safety.rehold/membership-held": "rejoin-twice",
    "safety.move.enter/target-is-me": "move-elsewhere",
    "safety.move.enter/membership-held": "move-here",
    "safety.move.enter/gate-open": "move-to-armed",
    "safety.move.enter/source-lives": "move",
    "safety.move.enter/nothing-here": "move",
    "safety.move.enter/not-paused": "restored-move",
    "safety.move.enter/not-deleted": "deleted-move",
    "safety.move.enter/no-third-holder": "stranger",
    "safety.move.send/source-is-me": "move",
    "safety.move.send/membership-held": "move-fence",
    "safety.move.send/target-entered": "move",
    "safety.move.send/not-paused": "restored-move",
    "safety.move.send/no-third-holder": "stranger-after",
    "safety.move.adopt/runs-here": "move",
    "safety.move.adopt/membership-held": "move-here",
    "safety.move.adopt/held-here": "move-here",
    "safety.move.resume/membership-held": "resume",
    "safety.move.resume/held-here": "resume-cut",
    "safety.move.resume/target-never-ran": "move",
    "safety.condemn/held": "silence",
    "safety.condemn/silent": "silence",
    "safety.condemn/no-hold": "maintenance",
    "safety.take-over/revoked": "two-fencers",
    "safety.take-over/fencer-silent": "two-powers",
    "safety.attempt/revoked": "two-powers",
    "safety.attempt/mine": "two-powers",
    "safety.prove.power/that-epoch": "another-power",
    "safety.prove.power/trusted": "distrusted-power",
    "safety.prove.power/identity": "foreign-power",
    "safety.prove.power/rehearsed": "unrehearsed",
    "safety.prove.power/off-twice": "glitch",
    "safety.prove.power/after-the-command": "stale-power",
    "safety.prove.watchdog/that-epoch": "back-and-condemned",
    "safety.prove.watchdog/trusted": "distrusted-watchdog",
    "safety.prove.watchdog/armed": "unarmed",
    "safety.prove.watchdog/same-store": "restored-armed",
    "safety.prove.watchdog/waited": "watchdog",
    "safety.prove.cut/that-epoch": "cut-and-lift",
    "safety.prove.cut/not-paused": "restored-lift",
    "safety.prove.cut/written": "cut-and-lift",
    "safety.prove.cut/read-back": "cut",
    "safety.prove.operator/that-epoch": "another-operator",
    "safety.prove.operator/trusted": "distrusted-operator",
    "safety.prove.operator/this-fence": "another-operator",
    "safety.prove.operator/named": "operator-nameless",
    "safety.isolate/that-epoch": "another-cut",
    "safety.isolate/not-paused": "restored-lift",
    "safety.isolate/trusted": "distrusted-cut",
    "safety.lift-cut/booted-since": "cut-lift",
    "safety.lift-cut/not-paused": "restored-lift",
    "safety.attest/named": "attested-nameless",
    "safety.attest/lost": "attested-present",
    "safety.attest/waited-for": "attested",
    "safety.attest/not-missed": "attested-in-part",
    "safety.attest/figures-there": "attested-unheard",
    "safety.attest/not-seen-there": "attested-seen",
    "safety.attest/room": "attested-crowd",
    "safety.claim/promised": "not-promised",
    "safety.claim/unclaimed": "slot-taken",
    "safety.claim/host-lives": "slot-host-condemned",
    "safety.assign/wanted": "takeover",
    "safety.assign/not-paused": "restored-fence",
    "safety.assign/holders-fenced": "takeover",
    "safety.assign/slot-claimed": "takeover",
    "safety.drop/not-paused": "restored-drop",
    "safety.drop/not-wanted": "takeover",
    "safety.drop/holders-fenced": "takeover",
    "safety.remove/no-holder": "deleted",
    "safety.remove/not-paused": "deleted-restored",
    "shell/cas-on-the-version-seen": "start",
    "shell/beat-counts-from-sending": "watchdog",
    "shell/entry-before-create": "start",
    "shell/create-announced-to-the-guard": "watchdog-start",
    "shell/creates-count-as-domains": "start",
    "shell/creates-of-earlier-daemons-count": "restart-while-starting",
    "shell/guard-counts-the-larger": "slewed",
    "shell/fencer-counts-the-smaller": "slewed",
    "shell/wait-for-a-dying-guard": "guard-dies",
    "shell/wait-for-crystals": "crystals",
    "shell/wait-for-a-reset": "guard-dies",
    "shell/own-first-sight-after-take-over": "another-freeze",
    "shell/sight-of-exactly-that-version": "freeze",
    "shell/remember-before-use": "restored-restart",
    "shell/ports-count-in-a-cut": "cut-disk",
    "shell/isolation-announced-before-it-is-ordered": "cut",
    "shell/lift-names-its-epoch": "cut-and-lift",
    "shell/destroy-verified-before-rejoin": "contradicted",
    "shell/no-hold-after-leave": "leave",
    "shell/unknown-run-reported-before-registered": "name-runs",
}
"""Where each is searched."""

ARGUED: Final[dict[str, str]] = {
    "shell/run-ids-are-new": "nothing: versions order all writes. It makes logs and locks tell runs apart",
    "shell/fresh-read-before-send": "nothing: who listens has an entry, and a run that ended hears nothing. "
    "It spares a transfer in vain",
}
"""What no world of this size can show, and why it stays."""


class Counterexample(msgspec.Struct, frozen=True, kw_only=True):
    """A stored one."""

    target: str
    world: str
    violation: str
    states: int
    """States that were looked at before it was found."""
    story: tuple[str, ...]
    documents: tuple[str, ...]
    """What the documents say after each sentence, where it changed."""


def path_of(target: str) -> Path:
    """Where a counterexample is stored."""
    return FOLDER / (target.removeprefix("safety.").replace("/", "--") + ".json")


def search(target: str, states: int) -> Result:
    """Look for the shortest one."""
    return Space(without(target), WORLDS[SHOWN_IN[target]]).search(states=states)


def stored(target: str, result: Result) -> Counterexample:
    """A search's result as it is kept."""
    told = [""] + [
        _changed(before[1], after[1]) for before, after in zip(result.history, result.history[1:], strict=False)
    ]
    return Counterexample(
        target=target,
        world=SHOWN_IN[target],
        violation=result.violation,
        states=result.states,
        story=tuple(said for said, _ in result.history[1:]),
        documents=tuple(told[1:]),
    )


def write(one: Counterexample) -> None:
    """Keep it."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(msgspec.to_builtins(one), indent=1, ensure_ascii=False)
    path_of(one.target).write_text(text + "\n", encoding="utf-8")


def read(target: str) -> Counterexample | None:
    """The stored one, if there is one."""
    path = path_of(target)
    return msgspec.json.decode(path.read_bytes(), type=Counterexample) if path.exists() else None


def replay(one: Counterexample, rules: Rules) -> tuple[int, str]:
    """How many of its sentences can happen under these rules, and the violation that they end in."""
    space = Space(rules, WORLDS[one.world])
    states = {space.first()}
    for number, sentence in enumerate(one.story):
        following, wrong = set(), ""
        for state in sorted(states):
            for said, note, new in space.after(state):
                if said != sentence:
                    continue
                following.add(new)
                if note and note.split(":")[0] in space.world.judges:
                    wrong = wrong or note
                wrong = wrong or space.violation(new)
        if wrong or not following:
            return number + bool(following), wrong
        states = following
    return len(one.story), ""


def _changed(before: tuple[Any, ...], after: tuple[Any, ...]) -> str:
    names = ("Membership/kvm-1", "Membership/kvm-2", "v", "slot-1")
    told = [f"{name}: {_document(new)}" for name, old, new in zip(names, before, after, strict=False) if old != new]
    return "; ".join(one for one in told if one)


def _document(doc: Any) -> str:
    if hasattr(doc, "record"):
        record = doc.record
        if record is None:
            return "gone"
        words = [f"version {doc.version}", record.state, f"epoch {record.epoch}", f"dead through {record.dead_through}"]
        words += (
            [f"fence {record.fence.phase} for epoch {record.fence.epoch} by {record.fence.by}"]
            if record.fence.id
            else []
        )
        words += [f"cut off through {record.cut.through}"] if record.cut.through else []
        return ", ".join(words)
    if hasattr(doc, "holders"):
        held = ", ".join(
            f"{one.hypervisor} epoch {one.epoch} {one.run_id}" + (f" {one.role}" if one.role else "")
            for one in doc.holders
        )
        where = doc.assigned.hypervisor if doc.assigned else "nobody"
        return (
            f"version {doc.version}, assigned to {where}, held by {held or 'nobody'}"
            + ("" if doc.wanted else ", unwanted")
            + (", deleted" if doc.deleted else ", gone" if doc.gone else "" if doc.guarded else ", without finalizer")
        )
    return f"version {doc.version}, consumer {doc.consumer.vm if doc.consumer else 'none'}"


# --- the page


def page() -> str:
    """``docs/safety-proof.md`` from what is stored."""
    lines = [
        "# What each rule of the safety protocol is for",
        "",
        "*Generated by `scripts/model --prove`; a test says whether it is current.*",
        "",
        "A model checker explores small worlds: two hosts, one or two fencers, recovery, one VM with one promised",
        "slot, one move. It runs the product's own protocol steps, and lets every message be late or lost, daemons",
        "die, hosts crash, freeze and come back, and BMCs be slow, wrong, or wired to another host.",
        "With all rules, none of these worlds has a violation, as far as it was searched. With one rule left out,",
        "the history below is a shortest one that ends badly in its world. Each is replayed by the tests, which",
        "also see that it does not end badly with the rule in place. What surrounds the steps, such as the order",
        "in which a daemon writes and waits, is restated in the model, as the rules named `shell`; that daemons",
        "keep them is for the simulation to show.",
        "",
        "## What counts as bad",
        "",
        "| judge | what it says |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in MEANING.items()),
        "",
        "The judges down to `writer` are safety. `watched`, `survivor`, `promise` and `sense` are what an operator is",
        "woken for: nothing runs twice without those rules. `undefined`: the step says nothing at all without it.",
        "",
        "## What is assumed",
        "",
        "* What an operator asserts is true when it is asserted. Nothing protects from a false assertion.",
        "* A BMC that was rehearsed is not wrong twice in a row after a command.",
        "* An isolation does not end by itself: the fencer that ordered it renews it until the epoch is dead.",
        "* Storage says of a host whether it is isolated.",
        "* Boot ids are unique, run ids are unique, libvirt has at most one domain of a VM, and starts none by itself.",
        "* A restored backup is noticed at once by its new incarnation, which pauses the cluster until both hosts have",
        "  registered; it contains every host's Membership.",
        "* One lock admits one daemon to a host (`intruder` worlds drop this).",
        "",
        "A host that falls silent on purpose, because its VMs have lost their storage and cannot be ended",
        "(`withhold`), has no rule of its own here. It only leaves renewals out, and sends no write that others do",
        "not send. Nothing in a world has to happen, and no proof rests on why a host is silent: so every history of",
        "such a host is one of a host whose renewals come late or never, and all worlds with a fencer contain those.",
        "",
        "## How far the worlds were searched",
        "",
        f"The tests look at the nearest {SHORT_SEARCH:,} states of each of the {len(WORLDS)} worlds, and see",
        f"{len(WORLDS) - len(SEARCHED)} of them whole. Of the others the following was seen without a violation;",
        "`scripts/model WORLD` searches on.",
        "",
        "| world | states | steps within which all were seen | |",
        "|---|---|---|---|",
        *(
            f"| {name} | {one.states:,} | {one.depth} | {'whole' if one.whole else ''} |"
            for name, one in sorted(SEARCHED.items())
        ),
        "",
        "## The rules",
        "",
        "| step | without | goes wrong | steps | world |",
        "|---|---|---|---|---|",
    ]
    stories = []
    for target in targets():
        step, name = target.split("/")
        one = read(target)
        if one is None:
            lines.append(f"| `{step}` | `{name}` | {ARGUED.get(target, 'not shown')} | – | – |")
            continue
        link = target.replace("/", "-").replace(".", "")
        wrong = _meaning(one.violation)
        lines.append(f"| `{step}` | [`{name}`](#{link}) | {wrong} | {len(one.story)} | {one.world} |")
        stories.append((link, target, one))
    lines += ["", "Rules under `shell` live in what surrounds the steps:", ""]
    lines += [f"* `{name}`: {says}." for name, says in SHELL_RULES.items()]
    lines += [
        "",
        "## Mistakes in the source",
        "",
        "`scripts/mutate` makes each of these mistakes in a copy of the source and runs the checks until one fails",
        "that does not fail without it: the histories below (*history*), the worlds (*world*), the stories of",
        "`tests/scenarios` (*scenario*), files of tests (*test*), and seeds (*seed*). The last column is how long that",
        "check takes.",
        "",
        *table(recorded(), SHOWN_IN),
    ]
    lines += ["", "## The histories", ""]
    for link, target, one in stories:
        lines += _story(link, target, one)
    return "\n".join(lines).rstrip() + "\n"


def _meaning(violation: str) -> str:
    judge, _, rest = violation.partition(":")
    return f"`{judge}` {rest.strip() or MEANING[judge]}"


def _story(link: str, target: str, one: Counterexample) -> list[str]:
    step, name = target.split("/")
    doc = STEPS[step].doc if step in STEPS else SHELL_RULES[name]
    lines = [
        f'<a id="{link}"></a>',
        f"### `{target}`",
        "",
        f"{doc}. World *{one.world}*: {WORLDS[one.world].says}. Without it, {_meaning(one.violation)}:",
        "",
    ]
    for number, (said, told) in enumerate(zip(one.story, one.documents, strict=True), 1):
        lines.append(f"{number}. {said}." + (f" *({told})*" if told else ""))
    return [*lines, ""]
