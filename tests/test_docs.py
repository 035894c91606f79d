"""The documentation holds: its links lead somewhere, its programs run, its tables agree with the code."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import ANSWER_S
from zerohop import errors

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
ON_A_GPU = re.compile(r"\bcuda\b")
PROGRAMS = [
    pytest.param(
        block, id=f"{page.relative_to(ROOT)}-{number}", marks=[pytest.mark.cuda] if ON_A_GPU.search(block) else []
    )
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )
]
# Of a row of docs/seeds.md, as that page explains them.
STATES = {
    "open",
    "not verified on hardware",
    "proved",
    "proved on sim",
    "proved on Soft-RoCE",
    "proved on recorded servers",
    "proved on recorded servers and Soft-RoCE",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        if "://" not in target:
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_runs(program: str, tmp_path: Path) -> None:
    if "import torch" in program and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("this torch cannot use GPUs")
    for package in ("fsspec", "triton"):
        if f"import {package}\n" in program:
            pytest.importorskip(package)
    script = tmp_path / "program.py"  # a file, because `spawn` imports it again in the child
    script.write_text(program, "utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=ANSWER_S, env=os.environ
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip(), "a program in the documentation shows something"
    # Where there is no NVRTC, that is said of page lists on a GPU.
    assert not [line for line in ran.stderr.splitlines() if "are copied page by page: " not in line]


def test_every_error_is_explained() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.ZerohopError):
            assert f"`{name}`" in page or f"`zerohop.{name}`" in page, f"docs/errors.md does not mention {name}"


def test_settings_page_is_generated() -> None:
    checked = subprocess.run([sys.executable, str(ROOT / "scripts" / "settings_page.py"), "check"], timeout=ANSWER_S)
    assert checked.returncode == 0


def test_benchmarks_page_is_generated() -> None:
    checked = subprocess.run([sys.executable, str(ROOT / "scripts" / "benchmarks_page.py"), "check"], timeout=ANSWER_S)
    assert checked.returncode == 0


def test_seeds_name_the_tests_that_prove_them() -> None:
    rows = [
        line for line in (ROOT / "docs" / "seeds.md").read_text("utf-8").splitlines() if re.match(r"\| \w+-\d", line)
    ]
    assert len(rows) > 100
    names = [row.split(":")[0] for row in rows]
    assert len(set(names)) == len(names), "a row's name is used twice"
    for row in rows:
        proof, state = (cell.strip() for cell in row.split("|")[3:5])
        assert state in STATES, row
        assert bool(proof) == (state != "open"), row
        for named in re.findall(r"`([^`]+)`", proof):
            file, _, test = named.partition("::")
            assert (ROOT / file).is_file(), f"{row}: no {file}"
            assert not test or re.search(rf"\b{re.escape(test)}\b", (ROOT / file).read_text("utf-8")), (
                f"{row}: no {test}"
            )


def test_changelog_knows_this_version() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert version is not None
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert importlib.metadata.version("zerohop") == version[1]
