"""Where every ``outlive`` command begins: ``python -m outlive`` and the console script.

The guard goes its own way before anything else is imported. It must be able to run, locked into memory, beside a
daemon whose libraries are broken or slow; see docs/operating/guard.md.
"""

import sys


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    if sys.argv[1:2] == ["guard"]:
        from outlive.guard.main import main as guard

        return guard(sys.argv[2:])
    from outlive.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
