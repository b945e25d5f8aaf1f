"""Whose file it is shows in what it says, not in its name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from astrarium.configs.detect import read_config
from astrarium.errors import InputError

EXAMPLES = Path(__file__).parent / "examples"
PROGRAMS = {
    "llama3_70b.sh": "Megatron-LM",
    "mixtral_strings.sh": "Megatron-LM",
    "messy.sh": "Megatron-LM",
    "deepseek_uneven.sh": "Megatron-LM",
    "fsdp.sh": "Megatron-LM",
    "megatron.yaml": "Megatron-LM",
    "bridge.txt": "Megatron-Bridge",
    "deepspeed.json": "DeepSpeed",
    "torchtitan.toml": "torchtitan",
    "accelerate.yaml": "accelerate",
    "nanotron.yaml": "nanotron",
}


def test_there_is_an_example_of_each() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("ending", ["", ".txt", ".sh", ".cfg"])
def test_names_do_not_matter(name: str, ending: str, tmp_path: Path) -> None:
    copy = tmp_path / f"config{ending}"
    shutil.copy(EXAMPLES / name, copy)
    found = read_config(str(copy))
    assert found is not None
    assert found.title == PROGRAMS[name]


@pytest.mark.parametrize("name", ["torchtitan.toml", "accelerate.yaml", "fsdp.sh"])
def test_a_wrong_ending_does_no_harm(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "config.json"
    shutil.copy(EXAMPLES / name, copy)
    found = read_config(str(copy))
    assert found is not None
    assert found.title == PROGRAMS[name]


@pytest.mark.parametrize(
    "text",
    [
        "tp: 8\npp: 4\n",
        "{tp: 8, pp: 4}",
        '{"tp": 8, "recompute": {"granularity": "full"}}',
        "tp = 8\n[recompute]\ngranularity = 'full'\n",
        "strategy:\n  tp: 8\n",
        "plans: []\n",
        "something: else\n",
        "- a\n- b\n",
    ],
)
def test_own_strategies_are_left_alone(text: str, tmp_path: Path) -> None:
    ending = ".toml" if " = " in text else ".yaml"
    file = tmp_path / f"strategy{ending}"
    file.write_text(text, encoding="utf-8")
    assert read_config(str(file)) is None


@pytest.mark.parametrize("reference", ["", "tp=8,pp=4", "tp=8", "no_such_file.sh", "."])
def test_what_is_no_file(reference: str) -> None:
    assert read_config(reference) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"\x7fELF\x00\x00--tp", "is a binary file"),
        (b"\xff\xfe--tp", "is not UTF-8"),
        (b'#!/bin/bash\npython x.py --num-layers "3', ':2: this " is never closed'),
        (b"#!/bin/bash\necho hello\n", "no training is started here"),
        (b'{"train_batch_size": 8', "malformed JSON"),
        (b"[training]\nseq_len = \n", "malformed TOML"),
        (b'{"train_batch_size": 1e999}', "finite"),
    ],
)
def test_bad_files(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "train"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_config(str(file))


def test_huge_numbers_are_refused_or_ignored() -> None:
    found = read_config(f"--micro-batch-size 1 --num-layers {'9' * 5000} --hidden-size {10**17}")
    assert found is not None
    assert found.described.shape is None
    assert any("invalid int value" in text for text in found.conflicts)
