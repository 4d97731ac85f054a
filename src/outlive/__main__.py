"""Where every ``outlive`` command begins: ``python -m outlive`` and the console script.

The guard goes its own way before anything else is imported. It must be able to run, locked into memory, beside a
daemon whose libraries are broken or slow; see docs/how-to/guard.md.
"""

import sys

INTERRUPTED = 130
"""Exit code, see docs/reference/exit-codes.md; said here because nothing may be imported before the guard."""


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    try:
        if sys.argv[1:2] == ["guard"]:
            from outlive.guard.main import main as guard

            return guard(sys.argv[2:])
        from outlive.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        # It came while modules were still being imported, before anybody could answer it better.
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
