"""Runs ``zerohop bench``: two processes driven from Python, every byte verified, compared with raw floors."""

from zerohop.cli.bench.case import Case
from zerohop.cli.bench.plan import Request, plan
from zerohop.cli.bench.rows import Row
from zerohop.cli.bench.runner import run

__all__ = ["Case", "Request", "Row", "plan", "run"]
