"""Runs the native tests, a part of them on each processor, and reports the result.

Usage: run_native_tests.py BINARY [DOCTEST OPTION…]. With options there is one run, with doctest's own output. Without,
ZEROHOP_TEST_AGAIN, ZEROHOP_TEST_REPORT and ZEROHOP_TEST_FLAKY have the meaning that they have for run_tests.py, and
with ZEROHOP_TEST_PART=K/N the K-th of N parts of the tests runs. A process that dies has failed, and is not run again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from run_tests import append, run_again

# A part that takes longer is taken as hanging.
_LIMIT_S = 900
_TIMED_OUT = 124  # timeout's own exit status
# More processes than processors, since some take longer than others, and each is reported at its end.
_PROCESSES = 16
_SLOWEST = 5


def _ending(status: int) -> str:
    if status == _TIMED_OUT:
        return f"it ran for more than {_LIMIT_S} s"
    return f"exit status {status}" if status >= 0 else f"by signal {-status}"


class Part:
    """Runs some of the tests in one process, and holds its results."""

    def __init__(self, binary: str, *options: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            xml = Path(folder) / "report.xml"
            told = ["--no-intro=true", "--reporters=xml,begun", "--duration=true", f"--out={xml}"]
            command = ["timeout", str(_LIMIT_S), binary, *told, *options]
            ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            # A test may have compared bytes that XML does not allow.
            text = re.sub("[^\t\n -\ufffd]", "?", xml.read_text(errors="replace")) if xml.exists() else ""
        # tests/native/main.cpp tells each test as it begins; the last of them has not ended if the process died.
        lines = (ran.stdout + ran.stderr).splitlines(keepends=True)
        begun = [line.removeprefix("begun: ").strip() for line in lines if line.startswith("begun: ")]
        self.output = "".join(line for line in lines if not line.startswith("begun: "))
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.died = "</doctest>" not in text
        if self.died:
            self.output += f"native: died: {_ending(ran.returncode)}, in: {begun[-1] if begun else None}\n"
            return
        for case in ET.fromstring(text).iter("TestCase"):
            result = case.find("OverallResultsAsserts")
            if result is not None:
                self.seconds[case.attrib["name"]] = float(result.attrib["duration"])
                if result.attrib["test_case_success"] != "true":
                    self.failed.append(case.attrib["name"])
                    self.output += ET.tostring(case, encoding="unicode")
        # A sanitizer may report a finding after the last test.
        self.died = ran.returncode != 0 and not self.failed


def count(binary: str) -> int:
    """Return the number of tests."""
    said = subprocess.run([binary, "--count", "--no-intro=true"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"passing the current filters: (\d+)", said)
    assert found is not None, said
    return int(found[1])


def run_in_parts(binary: str) -> list[Part]:
    """Run the tests, as many processes at once as there are processors, and report each at its end."""
    total = count(binary)
    part_of_all, parts_of_all = (int(number) for number in (os.environ.get("ZEROHOP_TEST_PART") or "1/1").split("/"))
    pieces = _PROCESSES * parts_of_all
    edges = [total * piece // pieces for piece in range(pieces + 1)]
    ranges = list(pairwise(edges))[part_of_all - 1 :: parts_of_all]
    total = sum(last - first for first, last in ranges)
    parts = []
    with ThreadPoolExecutor(min(_PROCESSES, os.cpu_count() or 1)) as pool:
        options = [(f"--first={first + 1}", f"--last={last}") for first, last in ranges]
        for part in pool.map(lambda chosen: Part(binary, *chosen), options):
            parts.append(part)
            if part.died or part.failed:
                print(part.output, flush=True)
            print(f"native: {sum(len(each.seconds) for each in parts)} of {total} tests ran", flush=True)
    return parts


def passes(binary: str, name: str) -> bool:
    """Run one test by itself, and return whether it passed."""
    # The option takes a comma-separated list of patterns; a question mark stands for any character.
    part = Part(binary, f"--test-case={re.sub('[^A-Za-z0-9 ]', '?', name)}")
    if part.died or part.failed:
        print(part.output, flush=True)
    return bool(part.seconds) and not part.died and not part.failed


def main() -> int:
    binary, *options = sys.argv[1:]
    if options:
        return subprocess.run([binary, "--no-intro=true", *options], check=False).returncode
    parts = run_in_parts(binary)
    seconds = {name: taken for part in parts for name, taken in part.seconds.items()}
    failed = [name for part in parts for name in part.failed]
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:_SLOWEST]
    report = {
        "passed": len(seconds) - len(failed),
        "failed": failed,
        "slowest": [[round(taken, 2), f"native: {name}"] for name, taken in slowest],
    }
    append("ZEROHOP_TEST_REPORT", json.dumps(report))
    died = sum(part.died for part in parts)
    print(f"native: {report['passed']} passed, {len(failed)} failed{f', {died} processes died' if died else ''}")
    if died:
        return 1
    return 0 if run_again(failed, lambda name: passes(binary, name), prefix="native: ") else 1


if __name__ == "__main__":
    sys.exit(main())
