"""``outlive failover certify`` and ``verify``: a claim about a state that somebody else can check, and the check.

The certificate's digest is of the very objects that were read: the whole state is read once, kept in memory, and
everything else is worked out from there. The check reads files and knows nothing of how the certificate was made.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive.base import ExitCode, Refused, collector_paused, count_of
from outlive.cli.access import Access, all_objects
from outlive.cli.output import Report, cut_table, format_omitted, make_table, show_progress
from outlive.cli.settings import effective_settings
from outlive.cli.snapshot import Config, Slots, take_snapshot
from outlive.cli.values import pattern_and_count
from outlive.cli.vm_names import VmColumns, vm_columns
from outlive.drivers import check_output, open_output, read_input, write_output
from outlive.resources import CoveredBy

if TYPE_CHECKING:
    from outlive.failover import CertifyResult
    from outlive.failover.verify import CaseLanding, CertificateVerdict

NAMED = 10
"""VMs or violations that are named to people; JSON names more."""


async def certify(
    access: Access,
    output: Report,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it there instead of to standard output.")
    ] = None,
    k: Slots = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Claim what can be claimed, even if some VMs need more.")
    ] = False,
    config: Config = None,
) -> ExitCode | None:
    """Certify that every VM survives as many host failures as it needs slots; exit code 1 if some VM does not."""
    from outlive.failover import encode_certificate

    check_output(out)
    result, named = await _make_certificate(access, k, config, partial=partial)
    if result.certificate is None:
        head = f"no certificate: {count_of(len(result.uncertified), 'VM')} cannot be certified for all that they need"
        tail = "with --partial everything that holds is certified"
        output.show(
            {"certified": False, "uncertified": result.uncertified},
            lambda: [head, *_uncertified_lines(result, named), tail],
        )
        return ExitCode.NO
    raw = encode_certificate(result.certificate)
    if out is None:
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
        return None
    write_output(out, raw)
    document = {
        "certified": True,
        "file": str(out),
        "stateDigest": result.certificate.state_digest,
        "k": result.certificate.k,
        "vms": len(result.certificate.vms),
        "slots": len(result.certificate.slots),
        "uncertified": result.uncertified,
    }
    output.show(document, lambda: _certificate_lines(result, out, named))
    return None


async def _make_certificate(
    access: Access, k: int | None, config: Path | None, *, partial: bool
) -> tuple[CertifyResult, VmColumns]:
    from outlive.failover import certify as decide
    from outlive.failover import certify_input
    from outlive.failover.analysis import units_by
    from outlive.recovery import covered_by_hosts

    async with access.open() as store:
        with show_progress("reading the cluster"):
            objects = await all_objects(store)
        settings = await effective_settings(access, store, config)
    gathered = await take_snapshot(access, access.memory_store(objects), config, k, settings=settings)
    if gathered.settings.upkeep.vm_source != "resources":
        raise Refused(
            "the VMs come from a database, so that there is no state for a certificate to be about",
            remedy="import them, and certify that state: outlive import database URL",
        )
    if gathered.observation.hosts:
        units_by(gathered.observation.hosts, gathered.settings.topology_choice.unit)
    with show_progress("certifying"):
        by_host = covered_by_hosts(objects, access.state_clock.now())
        given = certify_input(gathered, objects, partial=partial, covered_by=by_host)
        return decide(given), vm_columns(gathered.vms)


def _certificate_lines(result: CertifyResult, out: Path, named: VmColumns) -> list[Any]:
    made = result.certificate
    assert made is not None
    units = "hosts" if made.unit == "host" else f"failure domains {made.unit}"
    needing = sum(vm.need > 0 for vm in made.vms)
    lines: list[Any] = [
        f"{out}: {needing} of {len(made.vms)} VMs survive the failure of as many {units} as they need slots, "
        f"up to {made.k}",
        *_coverage_lines(Counter(vm.by.value for vm in made.vms if vm.by is not None)),
        f"about the state {made.state_digest}",
    ]
    if result.uncertified:
        lines += [
            f"{len(result.uncertified)} VMs are certified for less than they need:",
            *_uncertified_lines(result, named),
        ]
    return lines


def _coverage_lines(by: Mapping[str, int]) -> list[str]:
    """By what the VMs are covered."""
    said = ", ".join(f"{count_of(by[one.value], 'VM')} {one.text}" for one in CoveredBy if by.get(one.value))
    return [f"covered by what: {said}"] if said else []


def _uncertified_lines(result: CertifyResult, named: VmColumns) -> list[Any]:
    rows = [
        (
            *named.name_cells(one.vm),
            one.host,
            f"{one.certified} of {one.required}",
            one.reason.value,
            named.replace_ids(one.message, one.vm),
        )
        for one in result.uncertified[:NAMED]
    ]
    cut = format_omitted(len(result.uncertified), len(rows), wide=False)
    return [make_table((*named.column_titles(), "Host", "Holds", "Reason", "Why"), rows, advice=True), *cut]


async def verify(
    certificate: Annotated[Path, typer.Argument(metavar="CERT", help="The certificate; - for standard input.")],
    access: Access,
    output: Report,
    enumerate_: Annotated[
        bool, typer.Option("--enumerate", help="Also look at every set of failures, one by one.")
    ] = False,
    failures: Annotated[
        int | None,
        typer.Option("--failures", metavar="J", min=1, help="Enumerate sets of up to J failures, instead of all."),
    ] = None,
    landings: Annotated[
        Path | None,
        typer.Option(
            "--landings", metavar="FILE", help="Enumerate, and write who takes which slot in each case, as JSON lines."
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option("--require", metavar="PATTERN=N", help="VMs of such flavors must be certified for N failures."),
    ] = None,
    allow_partial: Annotated[
        bool,
        typer.Option("--allow-partial", help="Accept it although VMs have fewer slots than they need."),
    ] = False,
) -> ExitCode | None:
    """Check a certificate against a state, independently of the planner; exit code 1 if it is not accepted."""
    from outlive.failover.verify import VerifyOptions, read_certificate
    from outlive.failover.verify.check import check
    from outlive.resources import read_facts, state_facts

    wanted = enumerate_ or failures is not None or landings is not None
    options = VerifyOptions(
        require=dict(pattern_and_count(text, "--require") for text in require or ()),
        failures=(failures or 0) if wanted else None,
        allow_partial=allow_partial,
    )
    check_output(landings)
    stated = read_certificate(read_input(certificate), str(certificate))
    if access.state is None:
        async with access.open() as store:
            with show_progress("reading the cluster"):
                facts = state_facts(await all_objects(store))
    else:
        facts = read_facts(read_input(access.state), str(access.state))
    with collector_paused(), show_progress("checking"), ExitStack() as closing:
        file = closing.enter_context(open_output(landings)) if landings is not None else None

        def report(landing: CaseLanding) -> None:
            if file is not None:
                file.write(msgspec.json.encode(landing) + b"\n")

        verdict = check(facts, stated, options, report=report if file is not None else None)
    output.show(verdict, lambda: _verdict_lines(verdict))
    return None if verdict.accepted else ExitCode.NO


def _verdict_lines(verdict: CertificateVerdict) -> list[Any]:
    units = "hosts" if verdict.unit == "host" else f"failure domains {verdict.unit}"
    if verdict.accepted:
        claim = f"{verdict.needing} of {verdict.vms} VMs survive every failure of as many {units} as they need slots"
        lines: list[Any] = [f"accepted: {claim}, up to {verdict.k}; {verdict.hosts} hosts, {verdict.slots} slots"]
        lines += _coverage_lines(verdict.by)
        if verdict.shortfall:
            lines.append(f"partial: {verdict.shortfall.describe()}")
    else:
        assert verdict.violation is not None
        lines = [f"not accepted: {verdict.violation.code.value}: {verdict.violation.message}"]
        further = [(one.code.value, one.message) for one in verdict.further[: NAMED - 1]]
        lines += cut_table(("Code", "What"), further)
        total = sum(verdict.counts.values())
        if total > 1:
            counts = ", ".join(f"{code} {count}" for code, count in verdict.counts.items())
            lines += ["", f"{total} violations: {counts}"]
    seen = verdict.enumeration
    if seen is not None:
        lines.append(
            f"{seen.cases} sets of up to {seen.failures} failures: {seen.landed} times a VM found its slot, "
            f"{seen.lost} times it was lost, {seen.beyond} times it found none and its need did not cover the case"
        )
    return lines
