"""Sequences of unequal length as users state them: flags, lists, files, configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

import astrarium
from astrarium.api.asked import PlanAsked
from astrarium.api.flags import PLAN_FLAGS
from astrarium.errors import InputError
from astrarium.plans.job import job_of
from astrarium.search.planner import predict
from astrarium.web.answers import asked_by

TEXT: Final = "lognormal:600,3000"
EIGHT: Final[dict[str, Any]] = {
    "gpus": "h100:8",
    "global_batch": 64,
    "seq_length": 8192,
    "runtime": "fsdp",
}


def test_a_plan_keeps_its_lengths(tmp_path: Path) -> None:
    found = astrarium.plan("llama-3-8b", lengths=TEXT, packing="on", **EIGHT)
    workload = found.document.workload
    assert (workload.lengths, workload.packed) == (TEXT, True)
    job = job_of(found.document)
    again = predict(job.workload, job.cluster, job.strategy, runtime=job.runtime)
    assert again.iteration_seconds == found.best.iteration_seconds
    folder = found.best.export("accelerate", tmp_path / "out")
    told = (folder / "README.md").read_text()
    assert "sequences of unequal length, packed, each attending to itself" in told


@pytest.mark.parametrize("runtime", ["megatron", "fsdp", "deepspeed", "torchtitan"])
def test_packing_trains_more_tokens_a_second_than_padding(runtime: str) -> None:
    asked = {**EIGHT, "runtime": runtime, "lengths": TEXT}
    packed, padded = (
        astrarium.plan("llama-3-8b", packing=way, top=1, **asked).best.tokens_per_second
        for way in ("on", "off")
    )
    # Megatron-LM and torchtitan pad to the whole length, 8.6 times the mean.
    assert packed > (2 if runtime in ("fsdp", "deepspeed") else 8) * padded


def test_lengths_are_a_list_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("100\n400\n400\n")
    strategy = "dp=8,micro_batch=1,zero_stage=3"
    listed, filed, text = (
        astrarium.predict("llama-3-8b", strategy, lengths=one, **EIGHT).best.iteration_seconds
        for one in ([100, 400, 400], path, "100*1,400*2")
    )
    assert listed == filed == text


def test_what_cannot_be_used_is_refused() -> None:
    with pytest.raises(InputError, match=r"packing on is about sequences of unequal length;"):
        astrarium.plan("llama-3-8b", packing="on", **EIGHT)
    with pytest.raises(InputError, match=r"expected lognormal:MEDIAN,P95"):
        astrarium.plan("llama-3-8b", lengths="no-such-file.txt", **EIGHT)
    with pytest.raises(InputError, match="modelled of decoders alone, and BERT-large"):
        astrarium.plan("bert-large", lengths="100*1", **{**EIGHT, "seq_length": 512})


def test_the_server_reads_no_file_of_lengths(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("100\n")
    with pytest.raises(InputError, match=r"expected lognormal:MEDIAN,P95"):
        asked_by({"model": "gpt2-small", "lengths": str(path)}, PlanAsked, PLAN_FLAGS)


AXOLOTL: Final = """\
base_model: meta-llama/Meta-Llama-3-8B
sequence_len: 8192
micro_batch_size: 1
gradient_accumulation_steps: 8
deepspeed: zero3
gradient_checkpointing: true
"""


@pytest.mark.parametrize(("line", "packed"), [("sample_packing: true", True), ("", False)])
def test_configurations_say_whether_rows_are_packed(
    line: str, packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL.replace("deepspeed: zero3\n", "fsdp: [full_shard]\n") + line + "\n")
    given: dict[str, Any] = {"gpus": "h100:8", "lengths": TEXT}
    found = astrarium.predict(None, path, **given)
    assert found.document.workload.packed == packed
    off = astrarium.predict(None, path, packing="off", **given)
    assert not off.document.workload.packed


def test_factory_lets_sequences_of_a_row_see_one_another(tmp_path: Path) -> None:
    path = tmp_path / "factory.yaml"
    settings = AXOLOTL.replace("base_model", "model_name_or_path").replace(
        "sequence_len", "cutoff_len"
    )
    path.write_text(
        settings.replace("deepspeed: zero3\n", "fsdp: full_shard\n") + "packing: true\n"
    )
    notes = astrarium.predict(None, path, gpus="h100:8", lengths=TEXT).document.notes
    assert any("without neat_packing sequences of a row see one another" in note for note in notes)
