"""Strategies written as arguments of Megatron are read back as they were."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.configs.detect import read_config
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Granularity, LayerSplit, RecomputeModule, Strategy

LAYERS, GPUS, BATCH, EXPERTS = 24, 64, 1024, 8
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def arguments_of(s: Strategy) -> str:
    """The options that make Megatron do what a strategy says."""
    words = [
        f"--tensor-model-parallel-size {s.tp} --pipeline-model-parallel-size {s.pp}",
        f"--context-parallel-size {s.cp} --micro-batch-size {s.micro_batch}",
        f"--global-batch-size {BATCH} --num-layers {LAYERS} --bf16",
    ]
    if s.ep > 1 or s.etp > 1:
        words.append(
            f"--num-experts {EXPERTS} --expert-model-parallel-size {s.ep}"
            f" --expert-tensor-parallel-size {s.etp}"
        )
    switches = {
        "--sequence-parallel": s.sequence_parallel,
        "--use-tp-pp-dp-mapping": s.pipeline_inside,
        "--overlap-grad-reduce": s.overlap.grad_reduce,
        "--overlap-param-gather": s.overlap.param_gather,
        "--tp-comm-overlap": s.overlap.tp,
        "--no-overlap-p2p-communication": s.virtual_stages > 1 and not s.overlap.p2p,
        "--use-distributed-optimizer": s.zero_stage == 1,
        "--optimizer-cpu-offload --use-precision-aware-optimizer": s.offload_optimizer,
    }
    words += [flag for flag, on in switches.items() if on]
    if s.zero_stage in SHARDING:
        words.append(
            f"--use-megatron-fsdp --ckpt-format fsdp_dtensor"
            f" --data-parallel-sharding-strategy {SHARDING[s.zero_stage]}"
        )
    if s.recompute.granularity is not Granularity.NONE:
        words.append(f"--recompute-granularity {s.recompute.granularity}")
    if s.recompute.granularity is Granularity.FULL:
        words.append(f"--recompute-method {s.recompute.method}")
        words.append(f"--recompute-num-layers {s.recompute.layers}")
    if s.recompute.modules:
        words.append(f"--recompute-modules {' '.join(s.recompute.modules)}")
    if s.stages:
        chunks = ["t" * (stage.last_layer - stage.first_layer) for stage in s.stages]
        words.append(f"--pipeline-model-parallel-layout 'E{'|'.join(chunks)}L'")
    elif s.virtual_stages > 1:
        words.append(f"--num-virtual-stages-per-pipeline-rank {s.virtual_stages}")
    return " ".join(words)


@st.composite
def keys(draw: st.DrawFn) -> dict[str, Any]:
    tp, pp, cp = (draw(st.sampled_from((1, 2, 4))) for _ in range(3))
    virtual = draw(st.sampled_from((1, 2, 3))) if pp > 1 else 1
    sequence = tp > 1 and draw(st.booleans())
    zero = draw(st.sampled_from((0, 1, 2, 3) if pp == 1 else (0, 1)))
    grad = zero >= 2 or draw(st.booleans())
    out: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "micro_batch": draw(st.sampled_from((1, 2, 4))),
        "virtual_stages": virtual,
        "sequence_parallel": sequence,
        "pipeline_inside": draw(st.booleans()),
        "zero_stage": zero,
        "offload_optimizer": zero == 1 and draw(st.booleans()),
        "split": "even",
        "overlap": {
            "grad_reduce": grad,
            "param_gather": zero == 3 or (zero > 0 and grad and draw(st.booleans())),
            "p2p": virtual > 1 and draw(st.booleans()),
            "tp": sequence and draw(st.booleans()),
        },
        "recompute": draw(recomputes()),
    }
    if draw(st.booleans()):
        out |= {"ep": draw(st.sampled_from((2, 4, 8))), "etp": draw(st.sampled_from((1, tp)))}
    chunks = pp * virtual
    if pp > 1 and draw(st.booleans()):
        inner = draw(
            st.lists(
                st.integers(1, LAYERS - 1), min_size=chunks - 1, max_size=chunks - 1, unique=True
            )
        )
        cuts = [0, *sorted(inner), LAYERS]
        stages = [{"layers": [a, b]} for a, b in pairwise(cuts)]
        out |= {"split": "free", "stages": stages}
    return out


def recomputes() -> st.SearchStrategy[dict[str, Any]]:
    full = st.fixed_dictionaries(
        {
            "granularity": st.just("full"),
            "method": st.sampled_from(("uniform", "block")),
            "layers": st.integers(1, 9),
        }
    )
    modules = st.lists(st.sampled_from(list(RecomputeModule)), min_size=1, unique=True)
    selective = st.fixed_dictionaries({"granularity": st.just("selective"), "modules": modules})
    return st.one_of(st.just({"granularity": "none"}), full, selective)


def completed(given_keys: dict[str, Any]) -> Strategy:
    return strategy_from_dict(
        given_keys, where="test", gpus=GPUS, global_batch=BATCH, layers=LAYERS
    )


@settings(max_examples=150)
@given(keys())
def test_round_trip(given_keys: dict[str, Any]) -> None:
    strategy = completed(given_keys)
    read = read_config(arguments_of(strategy))
    assert read is not None
    assert not read.conflicts
    assert not read.unknown
    assert read.described.global_batch == BATCH
    again = completed(read.strategy_of(LAYERS))
    assert again == strategy
    assert (again.split is LayerSplit.FREE) == bool(strategy.stages)
