"""What sequences of unequal length take, against equal ones and against draws."""

from __future__ import annotations

import numpy as np
import pytest
from small import small_model

from astrarium.catalog.runtimes import find_runtime, planned_runtimes
from astrarium.cluster import parse_gpus
from astrarium.cost.groups import slowest_of
from astrarium.cost.lengths import pace_of
from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.lengths import Lengths
from astrarium.model.workload import Workload
from astrarium.search.plan import Plan
from astrarium.search.planner import predict
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.types import Overlap, Strategy

TEXT = "lognormal:600,3000"
SIXTEEN = parse_gpus("h100:16")


def _strategy(micro_batch: int = 2, dp: int = 16, runtime: str = "fsdp") -> Strategy:
    count = 128 // (dp * micro_batch)
    return Strategy(
        tp=1, pp=1, dp=dp, cp=16 // dp, micro_batch=micro_batch, num_micro_batches=count,
        zero_stage=3 if find_runtime(runtime).gradients_copied else 1,
        overlap=Overlap(tp=False, p2p=False),
    )  # fmt: skip


def _predicted(
    lengths: Lengths | None, runtime: str = "fsdp", seq: int = 4096, dp: int = 16, micro: int = 2
) -> Plan:
    workload = Workload(load_model("llama-3-8b"), seq, 128, lengths=lengths)
    return predict(workload, SIXTEEN, _strategy(micro, dp, runtime), runtime=find_runtime(runtime))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("runtime", planned_runtimes())
def test_sequences_that_are_all_as_long_as_they_may_be(runtime: str, packed: bool) -> None:
    same = _predicted(Lengths("4096*7,9000*2", packed=packed), runtime)
    whole = _predicted(None, runtime)
    assert same.iteration_seconds == pytest.approx(whole.iteration_seconds, rel=1e-12)
    assert same.breakdown_seconds == pytest.approx(whole.breakdown_seconds)
    assert same.memory == whole.memory
    assert (same.tokens_per_second, same.mfu) == pytest.approx((whole.tokens_per_second, whole.mfu))


def test_padded_to_the_longest_they_take_the_time_of_their_length_and_the_memory_of_any() -> None:
    short = _predicted(Lengths("1024*5"))
    equal = _predicted(None, seq=1024)
    assert short.iteration_seconds == pytest.approx(equal.iteration_seconds, rel=1e-9)
    assert short.tokens_per_second == pytest.approx(equal.tokens_per_second, rel=1e-9)
    assert short.memory == _predicted(None).memory


def test_padded_to_the_length_of_the_workload_they_take_its_time() -> None:
    short, whole = (_predicted(each, "megatron") for each in (Lengths("1024*5"), None))
    assert short.iteration_seconds == whole.iteration_seconds
    assert short.tokens_per_second == pytest.approx(whole.tokens_per_second / 4)
    assert short.mfu < whole.mfu / 4


@pytest.mark.parametrize("runtime", ["fsdp", "megatron", "torchtitan"])
def test_packed_documents_of_one_length_attend_as_sequences_of_it(runtime: str) -> None:
    packed = _predicted(Lengths("512*1", packed=True), runtime, micro=1)
    alone = _predicted(None, runtime, seq=512, micro=8)
    # 128 rows of 4,096 tokens, in micro-batches of one row: as many tokens as eight of 512.
    forward, backward = (packed.breakdown_seconds[name] for name in ("forward", "backward"))
    micro_batches = 128 // 16
    of_one = alone.breakdown_seconds["forward"] / (128 / (16 * 8))
    assert forward / micro_batches == pytest.approx(of_one, rel=1e-9)
    assert backward > forward
    assert packed.memory == _predicted(None, runtime, micro=1).memory


def test_packing_is_faster_for_each_token_and_the_longer_documents_the_slower() -> None:
    packed, padded = (_predicted(Lengths(TEXT, packed=each)) for each in (True, False))
    assert packed.tokens_per_second > 1.5 * padded.tokens_per_second
    longer = _predicted(Lengths("lognormal:2000,8000", packed=True))
    assert packed.tokens_per_second > longer.tokens_per_second
    assert longer.tokens_per_second > _predicted(None).tokens_per_second


@pytest.mark.parametrize(("dp", "micro"), [(16, 1), (16, 2), (16, 8), (4, 4), (1, 2)])
def test_replicas_wait_for_the_longest(dp: int, micro: int) -> None:
    """After every micro-batch, as they are drawn."""
    workload = Workload(small_model(4), 4096, 128, lengths=Lengths(TEXT))
    degrees = degrees_of([_strategy(micro, dp)])
    pace = pace_of(workload, find_runtime("fsdp"), degrees, degrees.gpus)
    draws = Lengths(TEXT).draws(4096)
    drawn = np.random.default_rng(3).choice(draws.lengths, (40_000, dp, micro), p=draws.shares)
    longest = drawn.max(axis=2)
    waits = longest.max(axis=1).mean() / longest.mean()
    assert pace[0] / slowest_of(degrees.gpus)[0] == pytest.approx(waits, rel=0.01)


def test_packed_rows_make_replicas_wait_for_attention_alone() -> None:
    workload = Workload(small_model(4), 4096, 128, lengths=Lengths(TEXT, packed=True))
    runtime, degrees = find_runtime("fsdp"), degrees_of([_strategy(1, 16), _strategy(4, 16)])
    late = pace_of(workload, runtime, degrees, degrees.gpus) / slowest_of(degrees.gpus) - 1
    assert 0 < late[0] < 0.1
    assert late[0] == pytest.approx(2 * late[1])
    alone = degrees_of([_strategy(1, 1)])
    assert pace_of(workload, runtime, alone, np.array([1]))[0] == pytest.approx(1.0)


def test_models_whose_layers_see_other_tokens_are_refused() -> None:
    for name in ("t5-large", "bert-large", "llava-1.5-7b"):
        with pytest.raises(InputError, match="unequal lengths are modelled of decoders alone"):
            Workload(load_model(name), 512, 8, lengths=Lengths("100*1"))
