"""The small worlds that are searched: who takes part, what may go wrong, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlive.node.membership import RememberedMembership
from outlive.resources import Assigned, Consumer, FormerMembership, GuardRecord, Holder, MemberRecord, Proof
from tests.model.state import (
    HOSTS,
    SCOPE,
    SLOT,
    VM,
    Daemon,
    Doc,
    Domain,
    Fencer,
    Host,
    Outside,
    Recovery,
    Slot,
    Vm,
    replace,
)

State = tuple[object, ...]

CROWD = tuple(f"uid-w{number}" for number in range(32))
"""Lost Memberships of the first host that other VMs name."""

SAFETY = ("S1a", "S1b", "S2", "proof", "monotone", "entry", "writer")
"""What must hold in every world whose assumptions are true."""
NO_ENTRY = ("S1a", "S1b", "S2", "proof", "monotone", "writer")
"""As ``SAFETY``, where the store itself lost the entries."""
ORDER = ("promise", "sense", "watched", "undefined")
"""What availability and order need: nothing runs twice without them, but somebody is woken at night."""
NO_ENTRY_ORDER = (*NO_ENTRY, *ORDER)
"""All that is judged where the store was restored."""


@dataclass(frozen=True)
class World:
    """One of them. Ticks that nobody may spend stand still; a fault counts for any process that commits it."""

    name: str
    says: str
    faults: int = 1
    ticks: int = 0
    kinds: tuple[str, ...] = ("lose", "crash", "reboot")
    """Of faults: ``lose`` an answer or a message, ``crash`` of a daemon, fencer or recovery, ``reboot`` of a host,
    ``delete`` (of the VM, of whose name another one may then be made on the second host as soon as that is free),
    ``pause``, ``glitch`` (one wrong reading), ``swap`` (another machine under the name), ``guest`` (it ends by
    itself), ``unwanted``, ``abort`` of a move, ``restore`` of a backup, ``disarm`` of the guard, ``intruder`` (a
    second daemon), ``guard`` (it dies), ``late`` (a command that arrives late), ``fail`` (a create that the
    hypervisor refuses), ``leave``, ``forget`` (a Membership is deleted), ``recreate`` (the VM is deleted and made
    anew, elsewhere)."""
    timeout: int = 2
    watchdog: int = 1
    reset: int = 0
    """Ticks that a reset takes."""
    clock_error: float = 0.0
    """How far crystals are off: that of hosts too slow, that of fencers too fast."""
    host_slew: float = 1.0
    """How many times faster than its crystal a time service has the other clock of hosts run."""
    fencer_slew: float = 1.0
    """The same for fencers."""
    silence: int = 0
    armed: bool = False
    armed_host: int = 0
    source: int = 0
    """The host on which the VM begins, and from which it moves."""
    target: str = ""
    """Where the move goes, if not to the other of the two."""
    stranger: bool = False
    """A third host has an entry as well."""
    renewals: int = 0
    renewing: int = 0
    """The host that may renew so often."""
    fencers: int = 1
    proofs: tuple[str, ...] = ("power",)
    bmc: str = "ok"
    """``ok``, ``foreign`` (wired to the second host), ``cached`` (says off until it gets a command),
    ``liar`` (always off, and does nothing), ``slow`` (takes a command long before it obeys)."""
    rehearsed: bool = True
    distrusted: tuple[str, ...] = ()
    guard_works: bool = True
    operator: str = "true"
    """``true``, or ``false``: asserts what is not so."""
    operator_name: str = "ann"
    cut_works: bool = True
    recovery: bool = True
    start: str = "runs"
    """``runs`` (on its host), ``new`` (assigned there, not started), ``moving`` (a move is asked for), ``entered``
    (and its target listens), ``left-over`` (a domain, and no membership), ``down`` (as ``runs``, without a daemon),
    ``missed`` (as ``runs``, in a restored store that knows only an earlier membership of it), ``back`` (as ``runs``,
    and its membership is another one by now), ``unknown`` (as ``runs``, in a restored store that lacks the VM, whose
    name is free)."""
    guarded: bool = True
    """Whether the VM has our finalizer from the beginning."""
    slot_taken: bool = False
    promised: bool = True
    scope: tuple[str, ...] = SCOPE
    second_daemon: bool = True
    judges: tuple[str, ...] = SAFETY + ORDER
    condemns: bool = True
    epochs: int = 1
    """The last epoch of the first host that is condemned."""
    runs: int = 2
    """The most runs that a host begins."""
    maintenance: bool = False
    take_over: int = 0
    demanded: int = 1
    moves: bool = False
    cuts: bool = False
    attested: str = ""
    """What an operator speaks for: the uid of a Membership, or ``all`` that the first host lost; empty: for nothing."""
    careless: bool = False
    """Whether they have not looked whether the host is off."""
    missed: bool = False
    """Whether the first host said that a restored store does not know it."""
    figures: bool = True
    """Whether it has said what is on it."""
    crowd: int = 0
    """So many lost Memberships of it are named by other VMs."""
    depth: int = 80


def unfenced(name: str, says: str, **how: Any) -> World:
    """One in which no fencer condemns a host or proves anything, and nobody recovers."""
    return World(name, says, condemns=False, proofs=(), recovery=False, **how)


def first_state(world: World) -> State:
    """Where the search begins."""
    guard = GuardRecord(armed=world.armed, timeout_s=world.timeout, watchdog_s=world.watchdog)
    records = []
    for number, host in enumerate(HOSTS, 1):
        record = MemberRecord(
            machine_id=f"machine-{number}",
            boot_id=f"{host}.boot-1",
            epoch=1,
            seq=0,
            nonce=f"d{number}.1",
            guard=guard if number - 1 == world.armed_host else GuardRecord(),
            distrusted=world.distrusted if number == 1 else (),
            incarnation="1",
        )
        records.append(Doc(version=1, uid=f"uid-{number}", record=record))
    at = world.source
    running = world.start in ("runs", "moving", "entered", "down", "unknown")
    holder = Holder(hypervisor=HOSTS[at], member_uid=f"uid-{at + 1}", epoch=1, run_id=f"run-{at + 1}.1")
    domain = Domain(run=f"run-{at + 1}.1", epoch=1)
    stranger = (Holder(hypervisor="kvm-3", member_uid="uid-3", epoch=1, run_id="run-3.1", role="incoming"),)
    vm = Vm(
        version=1,
        assigned=Assigned(hypervisor=HOSTS[at]),
        holders=((holder,) if running else ()) + (stranger if world.stranger else ()),
        move="m1" if world.start in ("moving", "entered") else "",
        guarded=world.guarded,
    )
    slot = Slot(version=1, consumer=Consumer(vm="w", fence="earlier") if world.slot_taken else None)
    arriving = Holder(
        hypervisor=HOSTS[1 - at], member_uid=f"uid-{2 - at}", epoch=1, run_id=f"run-{2 - at}.1", role="incoming"
    )
    listening = Domain(run=f"run-{2 - at}.1", epoch=1, state="incoming")
    if world.start == "entered":
        vm = replace(vm, holders=(*vm.holders, arriving))
    hosts, daemons = [], []
    for number in (1, 2):
        has = number - 1 == at and running
        hosts.append(
            Host(
                machine=f"machine-{number}",
                domain=domain if has else listening if world.start == "entered" else None,
                remembered=RememberedMembership(uid=f"uid-{number}", epoch=1),
                used=RememberedMembership(uid=f"uid-{number}", epoch=1),
                armed=world.armed and number - 1 == world.armed_host,
                runs=1 if has or world.start == "entered" else 0,
                daemons=1,
            )
        )
        daemons.append(
            Daemon(
                phase="member",
                boot=1,
                nonce=f"d{number}.1",
                epoch=1,
                held=True,
                known=records[number - 1],
                renewals=world.renewals if number - 1 == world.renewing else 0,
            )
        )
    if world.start in ("down", "left-over"):
        daemons[0] = Daemon()
    if world.start == "left-over":
        records[0] = Doc(version=0, uid="", record=None)
        hosts[0] = Host(machine="machine-1", domain=Domain(run="run-0.1", epoch=1), daemons=1, runs=1)
    if world.start in ("missed", "back"):
        daemons[0] = Daemon(phase="refused")
        earlier = Holder(hypervisor=HOSTS[0], member_uid="uid-0", epoch=1, run_id="run-0.1")
        vm = replace(vm, holders=(earlier,))
        run = "run-1.1" if world.start == "missed" else "run-0.1"
        hosts[0] = replace(hosts[0], domain=Domain(run=run, epoch=1), runs=1)
    if world.start == "missed":
        records[0] = Doc(version=0, uid="", record=None)
    if world.crowd:
        proof = Proof(kind="operator", evidence="ann: unplugged", epoch=1, by="ann")
        former = tuple(FormerMembership(uid=uid, dead_through=1, proof=proof) for uid in CROWD[: world.crowd])
        assert records[0].record is not None
        records[0] = replace(records[0], record=replace(records[0].record, former=former))
    if world.start == "unknown":
        vm = Vm(version=1, gone=True, guarded=False)
        records[at] = replace(records[at], record=replace(records[at].record, incarnation="0"))
        daemons[at] = replace(daemons[at], known=records[at])
    if not world.second_daemon:
        daemons[1] = Daemon(phase="refused")
    return (
        records[0],
        records[1],
        vm,
        slot,
        hosts[0],
        hosts[1],
        daemons[0],
        daemons[1],
        Fencer(),
        Fencer(),
        Recovery(),
        (),
        Outside(faults=world.faults, ticks=world.ticks),
    )


__all__ = ["NO_ENTRY", "NO_ENTRY_ORDER", "ORDER", "SAFETY", "SLOT", "VM", "State", "World", "first_state", "unfenced"]
