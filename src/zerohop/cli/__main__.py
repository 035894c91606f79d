"""Lets ``python -m zerohop.cli`` stand for ``zerohop``."""

from zerohop.cli import main

main()
