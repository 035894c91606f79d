"""A command as a user without any right to write, signal or raise limits."""

from __future__ import annotations

NOBODY = "65534"
# Root may have the sources and the interpreter where nobody else can read them. Reading is all that this gives back.
READ = "-all,+dac_read_search"


def as_nobody() -> list[str]:
    """What goes before the command; for root alone."""
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    return [*command, f"--inh-caps={READ}", f"--ambient-caps={READ}", f"--bounding-set={READ}"]
