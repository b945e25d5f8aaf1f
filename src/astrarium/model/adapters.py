"""Fine-tuning: which weights train. Adapters of low rank stand beside weights that are frozen.

An adapter of a weight w[outputs, inputs] is A[rank, inputs] and B[outputs, rank]; DoRA adds a
magnitude for each output. `catalog/data/finetuning.json` says what software calls the weights and
which of them are one module there, as adapters are counted by module. Experts of a rank share an
adapter, as in Megatron-Bridge.

Not modelled: adapters of experts in PEFT (`target_parameters`, which makes the change of all
experts in every pass), of scans, of embeddings and heads; dropout before adapters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import astrarium.catalog
from astrarium.errors import InputError, Repair, did_you_mean, flag, refusal
from astrarium.model.blocks import Block, Linear, Model, Module
from astrarium.value import Value, replace

DEFAULT_RANK: Final = 16
ALL_LINEAR: Final = "all-linear"
# Words for several modules, by the part of a block they belong to.
_FEED_FORWARD: Final = (Module.MLP, Module.EXPERTS, Module.SHARED_EXPERTS)
GROUPS: Final = {
    ALL_LINEAR: (Module.ATTENTION, *_FEED_FORWARD),
    "attention": (Module.ATTENTION,),
    "mlp": _FEED_FORWARD,
}
OF_EXPERTS: Final = {ALL_LINEAR, "mlp"}  # groups that software may not have of experts


class Finetune(StrEnum):
    """The weights that train."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"
    DORA = "dora"


class Adapters(Value, frozen=True):
    """Adapters of this rank beside frozen weights; `modules` as software names them, or groups.

    `names` is the entry of `modules` of `finetuning.json` that has its names; "": Transformers'.
    """

    kind: Finetune
    rank: int = DEFAULT_RANK
    modules: tuple[str, ...] = (ALL_LINEAR,)
    names: str = ""

    @property
    def is_quantised(self) -> bool:
        """Whether frozen weights of layers are of 4 bits."""
        return self.kind is Finetune.QLORA

    @property
    def frozen_bytes(self) -> float:
        """Bytes of a frozen weight of a layer."""
        return float(facts()["kinds"][self.kind]["frozen_bytes"][0])

    @property
    def has_magnitudes(self) -> bool:
        return self.kind is Finetune.DORA


class Adapted(Value, frozen=True):
    """A module with an adapter: part of the weight `linear`."""

    linear: Linear
    outputs: int
    name: str

    def parameters(self, adapters: Adapters) -> int:
        low_rank = adapters.rank * (self.linear.inputs + self.outputs)
        return low_rank + (self.outputs if adapters.has_magnitudes else 0)


@cache
def facts() -> Mapping[str, Any]:
    path = Path(astrarium.catalog.__file__).parent / "data" / "finetuning.json"
    read: Mapping[str, Any] = json.loads(path.read_bytes())
    return read


def _modules_of(model: Model, adapters: Adapters) -> Mapping[str, Sequence[str]]:
    named = facts()["modules"]
    kind = adapters.names or str((model.config or {}).get("model_type", ""))
    found: Mapping[str, Sequence[str]] = named.get(kind, named["*"])
    return found


def for_runtime(model: Model, adapters: Adapters, runtime: str) -> Adapters:
    """The adapters under a runtime's names of modules, if the model can have them."""
    names = str(facts()["runtimes"].get(runtime, {}).get("modules", ""))
    return checked(model, replace(adapters, names=names))


def checked(model: Model, adapters: Adapters) -> Adapters:
    """The adapters, if the model can have them; InputError says what it can have."""
    blocks = [kind for kind in model.kinds if isinstance(kind, Block)]
    if model.architecture != "decoder" or len(blocks) < len(model.kinds):
        raise InputError(
            f"adapters are known of decoders alone, and {model.name} is of kind"
            f" {model.architecture}; train all of it ({flag('finetune')} full)",
            "finetune",
        )
    if any(block.scans for block in blocks):
        raise InputError(
            f"adapters of scans (Mamba, gated delta nets) are not modelled, and {model.name} has"
            f" them; train all of it ({flag('finetune')} full)",
            "finetune",
        )
    known = {name for block in blocks for x in block.linears for name in _names(model, adapters, x)}
    for word in adapters.modules:
        if word not in known | GROUPS.keys():
            able = GROUPS.keys() - (OF_EXPERTS if _lacks_experts(model, adapters) else set())
            words = [*sorted(able), *sorted(known)]
            hint = did_you_mean(word, words)
            has = f"{model.name} has no such module{hint}; it has {', '.join(words)}"
            raise refusal("lora_modules", f" '{word}': {has}")
    if _lacks_experts(model, adapters) and OF_EXPERTS & set(adapters.modules):
        raise InputError(
            "adapters of experts are priced for megatron-bridge and LoRA alone, and"
            f" {model.name} has experts; adapt its attention alone ({flag('lora_modules')}"
            " attention)",
            "lora_modules",
            [Repair("Adapt attention alone", {"lora_modules": "attention"})],
        )
    return adapters


def _lacks_experts(model: Model, adapters: Adapters) -> bool:
    """Whether the model has experts, and the software no adapters of this kind for them."""
    has = adapters.kind is Finetune.LORA and "expert_fc1" in _modules_of(model, adapters)
    return model.max_experts > 0 and not has


def _names(model: Model, adapters: Adapters, linear: Linear) -> Sequence[str]:
    return _modules_of(model, adapters).get(linear.name, ())


def adapted_modules(model: Model, block: Block, adapters: Adapters) -> tuple[Adapted, ...]:
    """The modules of a layer that have adapters, in the order of their weights."""
    found = []
    for linear in block.linears:
        names = _names(model, adapters, linear)
        for name, outputs in zip(names, _parts(block, linear, len(names)), strict=True):
            if {name, *_groups_of(linear)} & set(adapters.modules):
                found.append(Adapted(linear, outputs, name))
    return tuple(found)


def _parts(block: Block, linear: Linear, count: int) -> tuple[int, ...]:
    """Outputs of the modules that one weight is made of."""
    if count == 3:
        heads = block.attentions[0]
        keys, values = heads.kv_heads * heads.key_dim, heads.kv_heads * heads.value_dim
        return heads.heads * heads.key_dim, keys, values
    return (linear.outputs // count,) * count if count else ()


def adapter_parameters(model: Model, adapters: Adapters) -> int:
    of_kind = {
        kind: sum(one.parameters(adapters) for one in adapted_modules(model, kind, adapters))
        for kind in model.kinds
        if isinstance(kind, Block)
    }
    return sum(of_kind[block] for block in model.blocks if isinstance(block, Block))


def finetuned_flops_per_token(model: Model, adapters: Adapters, seq_length: int) -> float:
    """FLOPs of matrix products: frozen weights have no gradients, scores have all of them."""
    every = model.flops_per_token(seq_length)
    weights = sum(
        x.flops_per_token for b in model.blocks if isinstance(b, Block) for x in b.linears
    )
    frozen = weights + model.head_flops_per_token(seq_length)
    low_rank = adapters.rank * sum(
        one.linear.active * (one.linear.inputs + one.outputs)
        for block in model.blocks
        if isinstance(block, Block)
        for one in adapted_modules(model, block, adapters)
    )
    return every - frozen + 6.0 * low_rank


def module_names(model: Model, adapters: Adapters) -> tuple[str, ...] | str:
    """The modules with adapters as software takes them: PEFT's word for all, or their names."""
    if ALL_LINEAR in adapters.modules and not adapters.names:
        return ALL_LINEAR
    named = dict.fromkeys(
        name
        for block in model.kinds
        if isinstance(block, Block)
        for linear in block.linears
        for name in _names(model, adapters, linear)
        if {name, *_groups_of(linear)} & set(adapters.modules)
    )
    return tuple(named)


def _groups_of(linear: Linear) -> list[str]:
    return [word for word, parts in GROUPS.items() if linear.module in parts]


def default_modules(model: Model) -> tuple[str, ...]:
    """All weights of layers, or those of attention where others are experts."""
    return ("attention",) if model.max_experts else (ALL_LINEAR,)


def check_finetuning(adapters: Adapters | None, runtime: str) -> None:
    """Refuse adapters for a runtime whose exports do not start them."""
    if adapters is None:
        return
    able = {name: one["kinds"] for name, one in facts()["runtimes"].items()}
    if adapters.kind in able.get(runtime, ()):
        return
    there = [name for name, kinds in able.items() if adapters.kind in kinds]
    raise InputError(
        f"{flag('runtime')} {runtime}: plans with adapters ({adapters.kind}) are made for"
        f" {', '.join(there)} alone, whose exports start them",
        "runtime",
        # The first writes files for any model, others for those with a recipe.
        [Repair(f"Plan for {there[0]}", {"runtime": there[0]})],
    )
