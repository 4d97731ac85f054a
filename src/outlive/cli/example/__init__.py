"""The example inventory that ``outlive up --example`` and ``scripts/run`` begin with: our own, made-up data.

Forty hosts in four racks and two zones, six hundred VMs of nine flavors in twelve projects. About a third of the cores
are in use, so that there is room for two slots per VM and planning covers the example.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path
from typing import NamedTuple


class ExampleFiles(NamedTuple):
    """Where the files are for as long as they are needed."""

    hosts: Path
    vms: Path


@contextmanager
def example_files() -> Iterator[ExampleFiles]:
    """The two CSV files as paths, also from inside a zipped package."""
    package = resources.files(__name__)
    with ExitStack() as stack:
        hosts, vms = (stack.enter_context(resources.as_file(package / name)) for name in ("hosts.csv", "vms.csv"))
        yield ExampleFiles(hosts, vms)
