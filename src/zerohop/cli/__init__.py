"""The command line: ``zerohop info | doctor | demo | bench``.

`zerohop.cli.app` declares the options and nothing else; each command imports its work when it runs, so that
``zerohop --help`` does not pay for numpy, the native module or plotting.
"""

from __future__ import annotations


def main() -> None:
    """Runs the command line; the entry point of the installed `zerohop` command."""
    from zerohop.cli.app import app

    app()
