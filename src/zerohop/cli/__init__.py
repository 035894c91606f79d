"""Implements the command line: ``zerohop info | doctor | demo | bench``.

`zerohop.cli.app` declares the options and nothing else. Each command imports its modules when it runs, so that
``zerohop --help`` does not pay for numpy, the native module or plotting.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the entry point of the installed `zerohop` command."""
    from zerohop.cli.app import app
    from zerohop.cli.output import watch_output

    watch_output()
    try:
        app()
    except (MemoryError, OSError) as error:
        from zerohop.errors import named

        told = named(error)
        if told is error:
            raise
        print(f"error: {told}", file=sys.stderr)
        sys.exit(2)
    finally:
        sys.stdout.flush()
