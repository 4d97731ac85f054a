"""Run the benchmarks: ``python -m bench [PART…] [--record]``.

Each part runs in a process of its own. The table compares every figure with its bar and with the last
recorded one (``bench/RESULTS.md``); ``--record`` writes the new figures there, with the machine that they
were measured on. Machines are noisy: figures are medians, and the ratio to the last record is what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from bench.figures import Figure

PARTS = (
    "store",
    "kubernetes",
    "zookeeper",
    "schema",
    "runtime",
    "placement",
    "commitments",
    "changes",
    "kills",
    "failover",
    "packing",
    "exposure",
    "survive",
    "proof",
    "explain",
    "whatif",
    "api",
    "liquid",
    "startup",
    "backup",
    "fencing",
    "simulation",
    "daemon",
    "moves",
    "lab",
    "lab_kubernetes",
    "storage_agent",
    "network",
    "network_controller",
    "network_moves",
    "handover",
    "functions",
)
RESULTS = Path(__file__).with_name("RESULTS.md")
ROW_CELLS = 7


def main() -> int:
    """Measure, print, compare, and on request record."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all when absent")
    parser.add_argument("--record", action="store_true", help="write the figures to bench/RESULTS.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        figures = import_module(f"bench.{arguments.child}").measure()
        print("FIGURES " + json.dumps([asdict(figure) for figure in figures]))
        return 0
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: one of {', '.join(PARTS)}")
    before = recorded()
    measured: dict[str, list[Figure]] = {}
    for part in arguments.parts or PARTS:
        print(f"measuring {part} …", file=sys.stderr)
        measured[part] = run_part(part)
    print(table(measured, before))
    if arguments.record:
        record(measured, before)
    missed = [figure.what for figures in measured.values() for figure in figures if figure.met is False]
    if missed:
        print(f"\nmissed: {'; '.join(missed)}")
    return 1 if missed else 0


def run_part(part: str) -> list[Figure]:
    """The figures of one part, measured in a child process."""
    child = subprocess.run(
        [sys.executable, "-m", "bench", "--child", part], stdout=subprocess.PIPE, text=True, check=False, timeout=1800
    )
    lines = [line for line in child.stdout.splitlines() if line.startswith("FIGURES ")]
    if child.returncode or not lines:
        raise SystemExit(f"bench: part {part} failed with exit code {child.returncode}")
    return [Figure(**figure) for figure in json.loads(lines[-1].removeprefix("FIGURES "))]


def recorded() -> dict[tuple[str, str], list[str]]:
    """The rows of ``RESULTS.md`` by part and figure."""
    rows: dict[tuple[str, str], list[str]] = {}
    if RESULTS.exists():
        for line in RESULTS.read_text().splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == ROW_CELLS and cells[0] in PARTS:
                rows[cells[0], cells[1]] = cells
    return rows


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(f"{abs(value):e}".split("e")[1]))
    return f"{value:,.{digits}f}"


def row(part: str, figure: Figure, before: list[str] | None) -> list[str]:
    """One line of the table: part, figure, value, bar, verdict, ratio to the last record, note."""
    sign = "≤" if figure.better == "lower" else "≥"
    bar = "–" if figure.bar is None else f"{sign} {number(figure.bar)} {figure.unit}"
    verdict = {None: "–", True: "met", False: "**missed**"}[figure.met]
    ratio = ""
    if before is not None:
        old = float(before[2].split()[0].replace(",", ""))
        ratio = f" ({figure.value / old:.2f} x last)" if old else ""
    return [part, figure.what, f"{number(figure.value)} {figure.unit}{ratio}", bar, verdict, figure.better, figure.note]


def table(measured: dict[str, list[Figure]], before: dict[tuple[str, str], list[str]]) -> str:
    """The figures as a markdown table, each with its ratio to the last recorded figure."""
    lines = ["| part | figure | value | bar | verdict | better | note |", "|---|---|---|---|---|---|---|"]
    for part, figures in measured.items():
        for figure in figures:
            lines.append("| " + " | ".join(row(part, figure, before.get((part, figure.what)))) + " |")
    return "\n".join(lines)


def machine() -> str:
    """CPU, cores, memory, kernel and Python of this machine, in one line."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(
        (line.split(":", 1)[1].strip() for line in cpuinfo if "model name" in line),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB of memory, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def record(measured: dict[str, list[Figure]], before: dict[tuple[str, str], list[str]]) -> None:
    """Write the figures; parts that were not measured keep their last rows."""
    rows: list[list[str]] = []
    for part in PARTS:
        if part in measured:
            rows += [row(part, figure, None) for figure in measured[part]]
        else:
            rows += [cells for (name, _), cells in before.items() if name == part]
    head = (
        "# Recorded figures\n\n"
        f"Measured with `scripts/bench --record` on {time.strftime('%Y-%m-%d', time.gmtime())}: {machine()}.\n"
        "Medians on a shared, noisy machine: compare ratios. "
        "A missed bar stands here as missed, with where the time goes.\n\n"
        "| part | figure | value | bar | verdict | better | note |\n|---|---|---|---|---|---|---|\n"
    )
    RESULTS.write_text(head + "".join("| " + " | ".join(cells) + " |\n" for cells in rows))


if __name__ == "__main__":
    sys.exit(main())
