"""The example inventory that ``outlive up --example`` and ``scripts/run`` begin with: our own, made-up data.

Forty hosts in four racks and two zones, six hundred VMs of nine flavors in twelve projects. About a third of the cores
are in use, so that there is room for two slots per VM and planning covers the example. The flavors are of three flavor
groups by their memory for each core: ``c``, ``g`` and ``m``; the settings sell them.
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
    settings: Path


@contextmanager
def example_files() -> Iterator[ExampleFiles]:
    """The two CSV files as paths, also from inside a zipped package."""
    package = resources.files(__name__)
    with ExitStack() as stack:
        names = ("hosts.csv", "vms.csv", "outlive.yaml")
        hosts, vms, settings = (stack.enter_context(resources.as_file(package / name)) for name in names)
        yield ExampleFiles(hosts, vms, settings)
