"""From a row to what it ran: degrees, batches, machines, or the reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import row_of

from astrarium.cluster import LinkKind, Network
from astrarium.errors import InputError
from astrarium.strategy.types import LayerSplit, Strategy
from astrarium.validate.scenario import Scenario, scenario_of


def scenario(tmp_path: Path, **changes: object) -> Scenario:
    return scenario_of(row_of(tmp_path, **changes))


def strategy(tmp_path: Path, **changes: object) -> Strategy:
    (only,) = scenario(tmp_path, **changes).strategies
    return only


def test_what_follows_is_derived(tmp_path: Path) -> None:
    found = strategy(tmp_path, dp=None)
    assert (found.dp, found.num_micro_batches, found.sequence_parallel) == (4, 16, True)
    assert strategy(tmp_path, num_gpus=None).gpus == 8
    accumulated = strategy(tmp_path, global_batch=None, notes="micro_num 4")
    assert accumulated.num_micro_batches == 4
    stated = strategy(tmp_path, num_micro_batches=7, global_batch=None)
    assert stated.num_micro_batches == 7


def test_a_row_without_a_size_ran_on_a_node(tmp_path: Path) -> None:
    found = scenario(tmp_path, num_gpus=None, dp=None)
    assert found.strategies[0].gpus == 8
    assert not found.stated
    assert scenario(tmp_path).stated


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tp": 3, "dp": None}, "tp 3 x pp 1 x cp 1 x dp 2 = 6 are not 8 GPUs"),
        ({"dp": 8}, "= 16 are not 8 GPUs"),
        ({"tp": 8, "pp": 4, "dp": ""}, "tp 8 x pp 4 x cp 1 = 32 are more than 8 GPUs"),
        ({"tp": 64, "num_gpus": 64, "dp": 1, "heads": 32}, "tp 64 contradicts the 32 heads"),
        ({"global_batch": 63}, "global_batch 63 is no multiple of dp 4 x micro_batch 1"),
        ({"global_batch": 2}, "global_batch 2 is no multiple of dp 4 x micro_batch 1"),
        ({"global_batch": None}, "global_batch not stated"),
        ({"seq_len": None}, "seq_len not stated"),
        ({"tp": None, "pp": None, "dp": None}, "no degree of parallelism stated"),
        ({"iter_time_s": "nan"}, "iter_time_s is not a finite number"),
        ({"notes": "LoRA; container"}, "training of adapters only is compared apart"),
        ({"pp": 2, "dp": "", "notes": "schedule ZB-2p"}, "zero-bubble schedules are not modelled"),
        ({"pp": 2, "dp": "", "framework": "Zero Bubble (Megatron fork)"}, "zero-bubble schedules"),
        ({"gpu": "H1000"}, "unknown GPU type 'H1000'"),
        ({"framework": "abacus"}, "unknown framework 'abacus'"),
        ({"precision": "fp32"}, "precision fp32 is not modelled"),
    ],
)
def test_reasons(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        scenario(tmp_path, **changes)


def test_rules_of_validity_are_not_asked(tmp_path: Path) -> None:
    """Megatron refuses ZeRO-3 beside a pipeline; somebody else ran it."""
    found = strategy(tmp_path, pp=2, dp=2, zero_or_fsdp="ZeRO-3", framework="DeepSpeed")
    assert (found.pp, found.zero_stage) == (2, 3)


def test_an_open_micro_batch(tmp_path: Path) -> None:
    found = scenario(tmp_path, micro_batch=None)
    assert [choice.micro_batch for choice in found.strategies] == [1, 2, 4, 8]
    assert not found.stated


def test_open_interleaving(tmp_path: Path) -> None:
    sizes = {"tp": 2, "pp": 4, "dp": 1, "vpp": None}
    words = "interleaved 1F1B"
    found = scenario(tmp_path, overlap=words, **sizes)
    assert [s.virtual_stages for s in found.strategies] == [1, 2, 4, 8]
    assert [s.virtual_stages for s in scenario(tmp_path, **sizes).strategies] == [1]
    assert strategy(tmp_path, **sizes | {"vpp": 2}).virtual_stages == 2
    assert strategy(tmp_path, overlap=words, global_batch=3, **sizes).virtual_stages == 1


def test_uneven_layers_are_balanced(tmp_path: Path) -> None:
    assert strategy(tmp_path, tp=1, pp=8, dp=1).split is LayerSplit.EVEN
    assert strategy(tmp_path, tp=1, pp=8, dp=1, vpp=3).split is LayerSplit.BALANCED
    nanotron = strategy(tmp_path, tp=1, pp=8, dp=1, framework="nanotron")
    assert nanotron.split is LayerSplit.BALANCED


def test_a_pipeline_longer_than_the_model(tmp_path: Path) -> None:
    sizes = {"num_gpus": 64, "tp": 1, "pp": 64, "dp": 1}
    found = scenario(tmp_path, iter_time_s="", notes="OOM", **sizes)
    assert found.obstacle == "32 layers cannot fill 64 pipeline stages"
    assert found.strategies[0].pp == 32
    with pytest.raises(InputError, match="pp 64 contradicts the 32 layers"):
        scenario(tmp_path, **sizes)  # what took so many seconds had other stages or layers
    ends = scenario(tmp_path, num_gpus=34, tp=1, pp=34, dp=1, global_batch=34, micro_batch=1)
    assert ends.obstacle == "32 layers cannot fill 34 pipeline stages"


def test_a_pipeline_with_too_few_micro_batches(tmp_path: Path) -> None:
    sizes = {"tp": 1, "pp": 8, "dp": 1, "micro_batch": 1}
    short = scenario(tmp_path, framework="nanotron", global_batch=6, **sizes)
    assert short.obstacle == "6 micro-batches are too few for pp 8"
    assert not scenario(tmp_path, framework="nanotron", global_batch=7, **sizes).obstacle
    assert not scenario(tmp_path, global_batch=6, **sizes).obstacle


def test_expert_parallelism(tmp_path: Path) -> None:
    experts = {"model": "mixtral-8x7b", "tp": 2, "ep": 8, "recompute": "none"}
    assert strategy(tmp_path, **experts).etp == 1  # tp x ep would be more than there are
    assert strategy(tmp_path, **experts | {"ep": 2}).etp == 2
    assert strategy(tmp_path, **experts | {"ep": 2, "notes": "etp1"}).etp == 1
    assert strategy(tmp_path, **experts | {"ep": 2, "framework": "NeMo"}).etp == 1


def test_machines(tmp_path: Path) -> None:
    pool = scenario(tmp_path, num_gpus=16, dp=8, inter_link_gbps_per_gpu=50, notes="RoCE").pool
    assert (pool.nodes, pool.gpus_per_node, pool.network) == (2, 8, Network.ROCE)
    assert pool.inter_node_bandwidth == pytest.approx(8 * 50e9 / 8)
    small = scenario(tmp_path, num_gpus=4, dp=2, gpus_per_node=4).pool
    assert (small.nodes, small.gpus_per_node) == (1, 4)
    odd = scenario(tmp_path, gpu="A100", num_gpus=3, gpus_per_node=3, tp=3, dp=1).pool
    assert (odd.nodes, odd.gpus_per_node, odd.link) == (1, 3, LinkKind.NVLINK3)
    cards = scenario(tmp_path, gpu="A100", intra_link="PCIe").pool
    assert cards.link is LinkKind.PCIE
    assert cards.intra_node_bandwidth == cards.gpu.pcie_bandwidth
