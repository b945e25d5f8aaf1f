"""The cases of a calibration: enough of every kind, each once, known without torch."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from astrarium.calibrate.measure.cases import (
    IDENTITY,
    MAX_ELEMENTS,
    MAX_FLOPS,
    Case,
    Scale,
    case_key,
    scale_for,
)
from astrarium.calibrate.measure.cases import SECTION as PROCESSOR
from astrarium.calibrate.measure.sections import (
    GROUPED,
    HEATING,
    ON_ONE_DEVICE,
    SECTIONS,
    check_sections,
    collective_cases,
    dealt,
    list_cases,
)
from astrarium.errors import InputError

FULL = list_cases(SECTIONS, Scale.FULL, "cuda")
QUICK = list_cases(SECTIONS, Scale.QUICK, "cuda")
SMALL = list_cases(SECTIONS, Scale.SMALL, "cpu")
TINY = list_cases(SECTIONS, Scale.TINY, "cpu")


@pytest.mark.parametrize(
    "cases", [FULL, QUICK, SMALL, TINY], ids=["full", "quick", "small", "tiny"]
)
def test_every_case_stands_once(cases: list[Case]) -> None:
    assert len({case.key for case in cases}) == len(cases)
    assert all(set(case.columns) <= set(IDENTITY) for case in cases)
    on_gpu = cases[0].key in {case.key for case in FULL}
    without = {PROCESSOR} if on_gpu else set()
    assert {case.section for case in cases} == set(ON_ONE_DEVICE) - without


def test_quick_runs_are_part_of_full_ones() -> None:
    assert {case.key for case in QUICK} <= {case.key for case in FULL}
    assert {case.key for case in TINY} <= {case.key for case in SMALL}
    assert len(FULL) / 6 < len(QUICK) < len(FULL) / 4
    cool = [case for case in FULL if case.section != HEATING]
    assert kinds(QUICK) == kinds(cool) | {("gemm_sustained", None)}


def kinds(cases: list[Case]) -> set[tuple[str, object]]:
    return {(case.operator, case.shape.get("kernel")) for case in cases}


def test_the_shapes_are_those_of_real_layers() -> None:
    products = [case.shape for case in FULL if case.operator == "gemm"]
    sizes = [tuple(int(shape[name]) for name in "mnk") for shape in products]
    assert {m for m, _, _ in sizes} >= {1024, 2048, 4096, 8192, 16384, 32768, 65536}
    assert {k for _, _, k in sizes} >= {1024, 2048, 4096, 5120, 8192}
    assert all(2.0 * m * n * k < MAX_FLOPS for m, n, k in sizes)
    assert all(max(m * n, n * k, m * k) < MAX_ELEMENTS for m, n, k in sizes)
    roles = Counter(shape["role"] for shape in products)
    assert set(roles) == {"forward", "dgrad", "wgrad", "wgrad_bf16"}
    heads = [case.shape for case in FULL if case.operator == "attention"]
    assert {shape["q_length"] for shape in heads} >= {1024, 4096, 16384, 32768}
    assert {shape["key_dim"] for shape in heads} >= {64, 80, 96, 128}
    assert {shape["causal"] for shape in heads} == {0, 1}
    assert any(shape["heads"] != shape["kv_heads"] for shape in heads)
    losses = [case.shape for case in FULL if case.operator == "cross_entropy"]
    assert {shape["n"] for shape in losses} >= {32000, 128256, 152064}


def test_sections_are_dealt_evenly_and_heat_comes_last() -> None:
    first = FULL[: len(FULL) // 5]
    assert {case.section for case in first} == set(ON_ONE_DEVICE) - {HEATING, PROCESSOR}
    hot = [index for index, case in enumerate(FULL) if case.section == HEATING]
    assert hot == list(range(len(FULL) - len(hot), len(FULL)))
    a, b = [Case("a", str(i)) for i in range(2)], [Case("b", str(i)) for i in range(4)]
    assert [case.section for case in dealt([a, b])] == ["b", "a", "b", "b", "a", "b"]


def test_a_key_survives_json_and_ignores_times() -> None:
    case = FULL[0]
    assert case_key({**case.columns, "median_us": 3.0, "k": case.shape.get("k")}) == case.key


def test_sections_are_checked_and_ordered() -> None:
    assert check_sections(["stream", "gemm"]) == ("gemm", "stream")
    assert check_sections([]) == ()
    with pytest.raises(InputError, match=r"unknown section 'strem' .*'stream'"):
        check_sections(["strem"])


@pytest.mark.parametrize(
    ("device", "quick", "scale"),
    [
        ("cuda", False, Scale.FULL),
        ("cuda", True, Scale.QUICK),
        ("cpu", False, Scale.SMALL),
        ("cpu", True, Scale.TINY),
    ],
)
def test_a_processor_gets_smaller_shapes(device: str, quick: bool, scale: Scale) -> None:
    assert scale_for(device, quick=quick) is scale


def test_collectives_run_in_all_groups() -> None:
    cases = collective_cases(Scale.FULL, "cuda", 6)
    assert {case.shape["ranks"] for case in cases} == {2, 4, 6}
    assert {case.operator for case in cases} == {*GROUPED, "send"}
    assert {case.shape["kernel"] for case in cases} == {"nccl"}
    assert len({case.key for case in cases}) == len(cases)


def test_the_measuring_part_starts_without_other_packages() -> None:
    """Where it measures there may be torch alone."""
    code = "import sys, astrarium.calibrate.standalone; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"torch", "rich", "click", "msgspec", "pyarrow", "yaml", "lark"})
    code = (
        "import sys\n"
        "for name in ('rich', 'click', 'msgspec', 'pyarrow', 'yaml', 'lark'):\n"
        "    sys.modules[name] = None\n"
        "import astrarium.calibrate.measure.device\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
