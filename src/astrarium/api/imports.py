"""Configurations of other programs as strategies: what they state needs no flag.

If a flag repeats a fact, both must agree: a contradiction could cost days of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from astrarium.api import request
from astrarium.api.money import MoneyTerms
from astrarium.api.request import Request, reference_of
from astrarium.catalog import find_gpu
from astrarium.catalog.optimizers import ADAMW
from astrarium.configs.imported import Imported, OpenQuestionError
from astrarium.errors import GpuCountError, InputError, Repair, about, flag, in_shell, repairs_in
from astrarium.model.workload import Numerics
from astrarium.value import Value, replace

if TYPE_CHECKING:
    from astrarium.api.asked import AskedValues, ClusterGiven
    from astrarium.cluster.build import GpusGiven
    from astrarium.configs.settings import Described
    from astrarium.configs.values import Answers
    from astrarium.model.workload import Precision

FROM_CONFIG = "-"  # in place of a model: the one that the configuration states


def answers(
    arguments: Sequence[str] | None,
    set_: Sequence[str] | None,
    vocab_size: int | None,
    environment: Mapping[str, str],
) -> Answers:
    """Answers for what a script leaves open; a name alone takes the value of the environment."""
    from astrarium.configs.values import Answers

    variables = {}
    for text in set_ or ():
        name, equals, value = text.partition("=")
        if not name or (not equals and name not in environment):
            way_out = f"write --set {name or 'NAME'}=VALUE"
            raise InputError(f"--set {text}: not set here; {way_out}", "set")
        variables[name] = value if equals else environment[name]
    return Answers(tuple(arguments or ()), variables, vocab_size)


def not_recognised(name: str) -> InputError:
    return InputError(
        f"{name}: not recognised: neither a plan, nor a launch script or configuration of"
        " Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge, DeepSpeed, torchtitan, accelerate,"
        " nanotron, GPT-NeoX, FlagScale, LLaMA-Factory, axolotl, NeMo, Primus, ms-swift, TRL or"
        " OpenRLHF"
    )


class Filled(Value, frozen=True):
    """A question, completed by a configuration."""

    asked: AskedValues
    imported: Imported | None = None
    reference: str | None = None  # what the document calls the model; None: as it was given

    def called(self, request: Request) -> str:
        """The name of the model in the document."""
        assert self.asked.model is not None
        return self.reference or reference_of(self.asked.model, request.workload.model)

    def read(self) -> Request:
        """The workload and the cluster; the configuration agrees with them."""
        asked = request.read(self.asked, MoneyTerms(self.asked))
        if self.imported is None:
            return asked
        check_agreement(self.imported, asked)
        return replace(asked, notes=(*asked.notes, *self.imported.summary))


def filled(asked: AskedValues) -> Filled:
    """The question, where the strategy may be a configuration."""
    from astrarium.configs.detect import read_config

    strategy = asked.strategy
    try:
        imported = read_config(strategy, flag("strategy")) if isinstance(strategy, str) else None
    except OpenQuestionError as error:
        more = "; `astrarium explain` takes these answers"
        raise OpenQuestionError(f"{error}{more if error.variables else ''}") from None
    if imported is not None:
        return completed(asked, imported)
    if asked.model is None or asked.model == FROM_CONFIG:
        missing = "Missing argument 'MODEL'; only a configuration can state the model"
        raise InputError(missing, "model")
    return Filled(asked)


def completed(asked: AskedValues, imported: Imported) -> Filled:
    """The question, with the rest as a configuration states it."""
    described = imported.described
    is_named = asked.model is not None and asked.model != FROM_CONFIG
    length = asked.seq_length or described.seq_length
    gpus = counted(asked.gpus, described)
    if isinstance(gpus, str) and ":" not in gpus and "," not in gpus:
        open_on = described.open_gpus
        says_it = in_shell(f"; --set {open_on}=N says it")
        because = f" (it is ${open_on}{says_it})" if open_on else ""
        write = in_shell(f"write {flag('gpus')} {gpus}:N", "fill in their count")
        raise OpenQuestionError(
            f"{imported.source} does not state the number of GPUs{because}; {write}", "gpus"
        )
    batch = asked.global_batch or _batch(imported, gpus, asked.cluster)
    whole = replace(
        asked,
        model=asked.model if is_named else imported.model(),
        gpus=gpus,
        seq_length=length,
        global_batch=batch,
        tokens=asked.tokens or run_tokens(imported, length, batch),
        precision=_precision(asked, imported),
        **_finetuning(asked, imported),
        **_update(asked, imported),
        packing=asked.packing if "packing" in asked.given else described.packing,
        mtp_layers=asked.mtp_layers if "mtp_layers" in asked.given else described.mtp_layers,
        expert_messages=asked.expert_messages
        if "expert_messages" in asked.given
        else described.expert_messages,
        runtime=asked.runtime if "runtime" in asked.given else described.runtime,
    )
    return Filled(whole, imported, None if is_named else imported.source)


def _finetuning(asked: AskedValues, imported: Imported) -> dict[str, Any]:
    """The kind of training, by the flags or the configuration; all weights have no rank."""
    is_full = "finetune" in asked.given and asked.finetune in (None, "full")
    return {
        name: getattr(asked if is_full or name in asked.given else imported.described, name)
        for name in ("finetune", "lora_rank", "lora_modules")
    }


def _update(asked: AskedValues, imported: Imported) -> dict[str, Any]:
    """Optimizer and numerics; what was asked of one drops what the file says of the other."""
    optimizer, numerics = imported.described.optimizer, imported.described.numerics
    if "optimizer" in asked.given:
        optimizer = asked.optimizer
        numerics = numerics if optimizer == ADAMW else Numerics.STRICT
    if "numerics" in asked.given and asked.numerics is not None:
        numerics = asked.numerics
        is_given = "optimizer" in asked.given or numerics is Numerics.STRICT
        optimizer = ADAMW if optimizer == "adamw-bf16" and not is_given else optimizer
    return {"optimizer": optimizer, "numerics": numerics}


def counted(gpus: GpusGiven | None, described: Described) -> GpusGiven | None:
    """--gpus with a type alone means as many as the configuration starts, in nodes of its size."""
    count, size = described.gpus, described.gpus_per_node
    if not isinstance(gpus, str) or count is None or "," in gpus:
        return gpus
    name, _, stated = gpus.partition(":")
    if stated not in ("", str(count)):
        return gpus
    with about("gpus"), repairs_in(lambda meant: f"{meant}:{count}"):
        usual = find_gpu(name).gpus_per_node
    if size is None or size == usual or (count == size and usual % size == 0):
        return {name: count}
    return {name: f"{count // size}x{size}"}


def _batch(
    imported: Imported, gpus: GpusGiven | None, cluster_given: ClusterGiven | None
) -> int | None:
    """The batch that a configuration states; for a replica alone, times the replicas."""
    described = imported.described
    if described.global_batch is not None or described.batch_of_replica is None:
        count = 1
    elif gpus is not None or cluster_given is not None:
        count = request.cluster(gpus, cluster_given)[0].num_gpus
    else:
        return None
    return imported.batch(count)


def run_tokens(imported: Imported, seq_length: int | None, batch: int | None) -> int | None:
    """The length of the run; where it is stated in iterations, for the batch asked about."""
    described = imported.described
    if described.tokens or not (described.iterations and seq_length and batch):
        return described.tokens
    return described.iterations * batch * seq_length


def _precision(asked: AskedValues, imported: Imported) -> Precision:
    own = imported.described.precision
    if "precision" in asked.given and asked.precision is not own:
        raise InputError(
            f"{imported.source} has {own}, but {flag('precision')} says {asked.precision};"
            " keep one",
            "precision",
        )
    return own


def check_agreement(imported: Imported, asked: Request, gpus_flag: str = "") -> None:
    workload = asked.workload
    stated = {
        "gpus": (asked.cluster.num_gpus, gpus_flag or f"{flag('gpus')} or {flag('cluster')}"),
        "seq_length": (workload.seq_length, flag("seq_length")),
        "global_batch": (workload.global_batch, flag("global_batch")),
    }
    found = [*imported.disagreements(stated), *imported.model_disagreements(workload.model)]
    if found:
        kind = GpuCountError if imported.disagreements({"gpus": stated["gpus"]}) else InputError
        repairs = _agreements(imported, asked)
        raise kind("; ".join(found) + "; make them agree", repairs=repairs)


def _agreements(imported: Imported, asked: Request) -> list[Repair]:
    """Repairs that put the statement of the configuration in place of its contradiction."""
    described, workload = imported.described, asked.workload
    repairs = [
        Repair(f"Leave {flag(name)} to {imported.source}", {name: ""})
        for name in ("seq_length", "global_batch")
        if getattr(described, name) not in (None, getattr(workload, name))
    ]
    count = described.gpus
    if count is not None and count != asked.cluster.num_gpus and len(asked.cluster.pools) == 1:
        pool = asked.cluster.pools[0]
        changes = {"gpus": f"{pool.requested or pool.gpu.name}:{count}"}
        repairs.append(Repair(f"Use {count:,} GPUs", changes))
    return repairs


def check_accepted(imported: Imported) -> None:
    """InputError if the program itself would stop at its options."""
    if imported.conflicts:
        reasons = "; ".join(imported.conflicts)
        raise InputError(f"{imported.source}: {imported.title} would refuse it: {reasons}")
