"""Writes `tests/slow_files.txt`: the test files that `make check` leaves out.

    make test PYTEST_ARGS=--junitxml=build/tests.xml && python tools/slow_tests.py build/tests.xml

The quickest files stay in, as many as finish within a minute on two cores.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests/slow_files.txt"
CPU_SECONDS = 2 * 60.0  # of all files that stay in
STARTING = 50.0  # of them: importing and collecting


def seconds_by_file(report: Path) -> dict[str, float]:
    """How long the tests of each file took, from pytest's JUnit report."""
    found: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.attrib["classname"].split(".")
        while module and not (ROOT / "/".join(module)).with_suffix(".py").is_file():
            module.pop()  # a class of tests within the module
        if module:
            found["/".join(module) + ".py"] += float(case.attrib["time"])
    return found


def slow(seconds: dict[str, float]) -> list[str]:
    """What is left once the quickest files have used up the minute."""
    left = CPU_SECONDS - STARTING
    found = []
    for name, taken in sorted(seconds.items(), key=lambda pair: pair[1]):
        left -= taken
        if left < 0:
            found.append(name)
    return sorted(found)


def main() -> None:
    names = slow(seconds_by_file(Path(sys.argv[1])))
    LIST.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"{LIST.relative_to(ROOT)}: {len(names)} files are left out of `make check`")


if __name__ == "__main__":
    main()
