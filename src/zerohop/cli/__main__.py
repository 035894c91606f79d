"""Makes ``python -m zerohop.cli`` the same as ``zerohop``."""

from zerohop.cli import main

main()
