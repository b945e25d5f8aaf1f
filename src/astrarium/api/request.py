"""From what was asked to a workload and a cluster, and the rest that a search needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.api import money
from astrarium.api.asked import AskedValues, ClusterGiven, ModelGiven, PlanAsked
from astrarium.api.money import NO_TERMS, MoneyTerms, power_terms
from astrarium.api.readers import both_given
from astrarium.catalog.optimizers import find_optimizer
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Cluster, load_cluster, parse_gpus
from astrarium.configs.imported import Imported
from astrarium.cost.checkpoints import Storage
from astrarium.cost.training_run import Evaluation, RunTerms, Spot, run_tokens
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError, Repair, about, did_you_mean, flag, instead, refusal
from astrarium.model import Model, load_model
from astrarium.model.frozen import with_frozen_front
from astrarium.model.load import load_as, model_of_config
from astrarium.model.workload import ExpertMessages, Numerics, Workload
from astrarium.search.formats import runnable
from astrarium.search.refusals import with_permitted_overlap
from astrarium.strategy.document import given_strategy, read_strategy
from astrarium.units import format_count
from astrarium.value import Value, replace

if TYPE_CHECKING:
    from astrarium.catalog.runtimes import Runtime as RuntimeProfile
    from astrarium.cluster.build import GpusGiven
    from astrarium.model.adapters import Adapters
    from astrarium.model.frozen import Beside
    from astrarium.model.lengths import Lengths
    from astrarium.strategy.types import Strategy
    from astrarium.validate.scenario import Scenario

# Without --seq-length the model's maximum is taken, but no long-context extension.
DEFAULT_SEQ_LENGTH = 8192
# For `fit`, whose answer hardly depends on it: enough micro-batches to fill any usual pipeline.
DEFAULT_GLOBAL_BATCH = 1024
# What Megatron's --eval-iters is by default.
DEFAULT_EVAL_ITERATIONS = 100
# What runs otherwise than planned on cores (`astrarium.runtime`), as rules, and in words.
NOT_ON_CORES = {
    "$zero_stage > 1": "ZeRO 2 and 3",
    "$offload_optimizer": "an optimizer in the host's memory",
    "$cp > 1": "context parallelism",
    "$overlap_tp && $tp > 1": "overlap of tp communication",
}
# Of the profile of a cluster; that of a device ends in .parquet.
PROFILE_ENDINGS = (".json", ".yaml", ".yml", ".toml")
NAME_KEY = "_name_or_path"  # where a config.json says what its model is called
NAMELESS = "model"
DEFAULT_RUNTIME = "megatron"
EXAMPLE_LENGTHS = "lognormal:600,3000"
FINETUNING_RUNTIME = "fsdp"  # Accelerate with PEFT, which has all kinds of adapters
ALL = "all"  # runtimes, or ways to fine-tune, side by side


class Request(Value, frozen=True):
    """The workload and cluster of a question, and notes on assumptions."""

    workload: Workload
    cluster: Cluster
    notes: tuple[str, ...]


def model(given: ModelGiven, as_type: str | None = None) -> Model:
    """A model: as given, or built from its name or a file, read `as_type` if that is stated."""
    if as_type is not None:
        if not isinstance(given, str | Path):
            raise InputError(f"--as {as_type} goes with a config.json; name it as MODEL")
        return load_as(str(given), as_type)
    if isinstance(given, Model):
        return given
    if isinstance(given, Mapping):
        return model_of_config(given, str(given.get(NAME_KEY) or NAMELESS), NAMELESS)
    return load_model(str(given))


def reference_of(given: ModelGiven, loaded: Model) -> str:
    return str(given) if isinstance(given, str | Path) else loaded.name


def cluster(
    gpus: GpusGiven | None, file: ClusterGiven | None, terms: MoneyTerms = NO_TERMS
) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster of --gpus, --cluster or --market, at the terms of the flags, and notes on it."""
    if gpus is not None and file is not None:
        raise both_given("gpus", "cluster")
    if gpus is not None:
        with about("gpus"):
            there = parse_gpus(gpus)
        return money.priced(there, terms)
    if file is not None:
        with about("cluster"):
            there = file if isinstance(file, Cluster) else load_cluster(Path(file))
        return money.priced(there, terms)
    if terms.flags.market is not None:
        return money.market(terms)
    ways = f"use {flag('gpus')} TYPE:N such as h100:64, or {flag('cluster')} FILE"
    raise InputError(f"no GPUs are given; {ways}", "gpus")


def read(asked: AskedValues, terms: MoneyTerms = NO_TERMS) -> Request:
    """The workload and the cluster, which is read first: its mistakes cost least to find."""
    notes = []
    batch = asked.global_batch
    if batch is None:
        batch = DEFAULT_GLOBAL_BATCH
        notes.append(
            f"{flag('global_batch')} not given: {batch} taken; memory hardly depends on it"
        )
    pools, on_prices = cluster(asked.gpus, asked.cluster, terms)
    notes += on_prices
    assert asked.model is not None
    with about("model"):
        loaded = _with_predictions(asked, model(asked.model, asked.as_type))
    if asked.freeze is not None:
        loaded = with_frozen_front(loaded, asked.freeze)
        kept = sum(block.parameters for block in loaded.frozen_front)
        notes.append(f"{format_count(kept)} parameters ({asked.freeze}) do not train")
    length = asked.seq_length
    if length is None:
        length, why = default_length(loaded)
        notes.append(f"{flag('seq_length')} not given: {length:,} taken, {why}")
    elif 0 < loaded.max_seq_length < length:
        notes.append(
            f"{flag('seq_length')} {length:,} is beyond the {loaded.max_seq_length:,} tokens that"
            f" {loaded.name} is made for"
        )
    notes += loaded.left_out
    if loaded.later_inputs:
        layer, _ = loaded.later_inputs[0]
        notes.append(
            f"{loaded.name} reads another input from layer {layer} on, for which Megatron's"
            " pipeline layout has no place: plans with pp > 1 need another program"
        )
    numerics = asked.numerics or Numerics.STRICT
    kind = find_optimizer(asked.optimizer).name
    adapters = adapters_of(asked, loaded)[0]
    workload = Workload(
        loaded,
        length,
        batch,
        asked.tokens,
        asked.precision,
        numerics,
        asked.expert_imbalance,
        expert_messages_of(asked, loaded),
        kind,
        adapters,
        lengths_of(asked),
        beside_of(asked),
    )
    notes += (*_on_lengths(workload), *_on_beside(workload))
    if asked.gpus is None and asked.cluster is None:
        pools, unable = _able(workload, pools)
        return Request(workload, pools, (*notes, *unable))
    used, fallbacks = usable_format(workload, pools)
    return Request(used, pools, (*notes, *fallbacks))


def _with_predictions(asked: AskedValues, loaded: Model) -> Model:
    """The model with layers that predict further tokens, which Megatron alone trains."""
    from astrarium.model.prediction import with_predictions

    runtime = runtime_of(asked)
    if asked.mtp_layers and (runtime == ALL or not find_runtime(runtime).parses_as_megatron):
        says = f" {asked.mtp_layers}: layers that predict further tokens are Megatron's"
        use = Repair("Plan for Megatron-LM", {"runtime": "megatron"})
        raise refusal("mtp_layers", f"{says} ({flag('runtime', 'megatron')})", [use])
    return with_predictions(loaded, asked.mtp_layers or 0)


def expert_messages_of(asked: AskedValues, loaded: Model) -> ExpertMessages:
    """The way of tokens to experts; flags about them are refused for models without experts."""
    messages = asked.expert_messages or ExpertMessages.ALLTOALL
    if loaded.max_experts:
        return messages
    lacks = f"{loaded.name} has no experts; leave it out"
    if asked.expert_imbalance > 1:
        raise refusal("expert_imbalance", f" {asked.expert_imbalance:g}: {lacks}")
    if messages is not ExpertMessages.ALLTOALL and "expert_messages" in asked.given:
        raise refusal("expert_messages", f" {messages}: {lacks}")
    return ExpertMessages.ALLTOALL  # also where a configuration says more: it has no effect


def lengths_of(asked: AskedValues) -> Lengths | None:
    from astrarium.model.lengths import Lengths, Packing

    packed = asked.packing is Packing.ON
    if asked.lengths is not None:
        return Lengths(asked.lengths, packed=packed)
    if packed and "packing" in asked.given:
        needed = f" on is about sequences of unequal length; {flag('lengths')} states them"
        example = Repair("Half below 600 tokens, 95 % below 3,000", {"lengths": EXAMPLE_LENGTHS})
        raise refusal("packing", needed, [example])
    return None


def beside_of(asked: AskedValues) -> Beside | None:
    if asked.teacher is None and asked.reference is None:
        return None
    from astrarium.model.frozen import Beside, Role

    if asked.teacher is not None and asked.reference is not None:
        raise both_given("teacher", "reference")
    if asked.reference is not None and (asked.global_batch or 0) % 2:
        raise refusal(
            "global_batch",
            f" {asked.global_batch} is odd; with {flag('reference')}, sequences are pairs of a"
            " chosen and a rejected one, and both count",
        )
    role = Role.REFERENCE if asked.teacher is None else Role.TEACHER
    given: Any = asked.reference if asked.teacher is None else asked.teacher
    with about(role.value):
        loaded = model(given)
    return Beside(loaded, role, reference_of(given, loaded))


def _on_beside(workload: Workload) -> Iterator[str]:
    """A note on the frozen model."""
    beside = workload.beside
    if beside is None:
        return
    trained, frozen = workload.model, beside.model
    kept = f"{format_count(frozen.parameters)} parameters, forward pass only"
    if workload.shares_weights:
        kept = f"the weights of {trained.name} without adapters: a forward pass, no memory"
    if beside.pairs:
        batch = workload.global_batch
        pairs = f"{batch:,} sequences are {batch // 2:,} pairs"
        yield f"reference {frozen.name}: {kept}; {pairs}; generation, as of RL, is out of scope"
        return
    yield (
        f"teacher {frozen.name}: {kept}; all its logits are in the loss; generation is out of scope"
    )
    if frozen.vocab != trained.vocab:
        yield (
            f"vocabularies of {frozen.vocab:,} and {trained.vocab:,}: a loss over logits needs one"
            " tokenizer for both"
        )


def _on_lengths(workload: Workload) -> Iterator[str]:
    """A note on sequences of unequal length."""
    if workload.draws is None:
        return
    length, mean = workload.seq_length, workload.draws.mean
    if workload.packed:
        how = f"rows of {length:,} hold {length / mean:.1f} of them, and attend to each alone"
    else:
        how = "they are padded; memory is that of the longest, tokens are without padding"
    yield f"sequences of {mean:,.0f} tokens on average, cut at {length:,}: {how}"


def adapters_of(asked: AskedValues, loaded: Model) -> tuple[Adapters | None, ...]:
    """The adapters that train, None for all weights; --finetune all has several answers."""
    from astrarium.model.adapters import (
        DEFAULT_RANK,
        Adapters,
        Finetune,
        default_modules,
        for_runtime,
    )

    given = asked.finetune
    if given in (None, Finetune.FULL):
        for name in ("lora_rank", "lora_modules"):
            if getattr(asked, name) is not None:
                needed = f" is about adapters; add {flag('finetune')} lora, qlora or dora"
                raise refusal(name, needed, [Repair("Train adapters (LoRA)", {"finetune": "lora"})])
        return (None,)
    words = (*Finetune, ALL) if isinstance(asked, PlanAsked) else tuple(Finetune)
    if given not in words:
        hint = did_you_mean(str(given), words)
        says = f" '{given}': expected one of {', '.join(words)}{hint}"
        raise refusal("finetune", says, instead(str(given), words))
    rank = DEFAULT_RANK if asked.lora_rank is None else asked.lora_rank
    modules = default_modules(loaded)
    if asked.lora_modules is not None:
        modules = tuple(dict.fromkeys(asked.lora_modules.replace(" ", "").split(",")))
    if "" in modules:
        empty = f" '{asked.lora_modules}': a name is empty; write such as q_proj,v_proj"
        raise refusal("lora_modules", empty)
    kinds = (Finetune.LORA, Finetune.QLORA) if given == ALL else (Finetune(str(given)),)
    if asked.strategy is None:  # one of the user's may be of any software
        _check_formats(asked)
    asked_for = (Adapters(kind, modules=modules, rank=rank) for kind in kinds)
    made = tuple(for_runtime(loaded, one, runtime_of(asked)) for one in asked_for)
    return (None, *made) if given == ALL else made


def _check_formats(asked: AskedValues) -> None:
    """Refuse number formats that the software lacks with adapters."""
    from astrarium.model.adapters import facts

    has_fp8 = facts()["runtimes"].get(runtime_of(asked), {}).get("fp8", False)
    if asked.precision == "fp8" and not has_fp8:
        ways = f"with adapters, {runtime_of(asked)} trains in bf16 or fp16; choose one"
        raise refusal("precision", f" fp8: {ways}, or {flag('runtime')} megatron-bridge")
    if asked.numerics is Numerics.REDUCED:
        ways = f"plans with adapters have strict numerics; leave it out, or {flag('finetune')} full"
        raise refusal("numerics", f" reduced: {ways}")


def _able(asked: Workload, market: Cluster) -> tuple[Cluster, list[str]]:
    """The offers of a market whose GPUs have the number format, or its fallback, and a note."""
    able, unable = [], []
    for pool in market.pools:
        try:
            runnable(asked, pool)
        except InputError:
            unable.append(pool)
        else:
            able.append(pool)
    if not able:
        raise InputError(f"no GPU of the market has {asked.precision} arithmetic")
    names = ", ".join(dict.fromkeys(pool.gpu.name for pool in unable))
    notes = [f"left out, as they have no {asked.precision} arithmetic: {names}"] if names else []
    return market.part(able), notes


def usable_format(asked: Workload, pools: Cluster) -> tuple[Workload, list[str]]:
    """The workload in the number format that all GPUs use, if they agree, and notes on others."""
    there = {pool.gpu.name: runnable(asked, pool) for pool in pools.pools}
    notes = [
        f"{name} has no {asked.precision}: it computes in {workload.precision}"
        for name, workload in there.items()
        if workload.precision is not asked.precision
    ]
    used = {workload.precision: workload for workload in there.values()}
    if len(used) == 1:
        return next(iter(used.values())), notes
    common = runnable(asked, *pools.pools).precision
    return asked, [*notes, f"types used together compute in {common}, which all of them have"]


def default_length(model: Model) -> tuple[int, str]:
    """The model's maximum as far as it is usual, and why."""
    longest = model.max_seq_length
    if longest < 1:
        give = f"give {flag('seq_length')}"
        raise InputError(f"{model.name} states no sequence length; {give}", "seq_length")
    if longest <= DEFAULT_SEQ_LENGTH:
        return longest, "the model's maximum"
    return DEFAULT_SEQ_LENGTH, f"the default for a model that takes up to {longest:,}"


def run_length(asked: PlanAsked) -> int | None:
    """Tokens of the run: --tokens, or --epochs of --dataset-tokens."""
    if asked.epochs is None and asked.dataset_tokens is None:
        return asked.tokens
    if asked.tokens is not None:
        error = both_given("tokens", "epochs")
        keep_tokens, keep_epochs = error.repairs
        error.repairs = (
            keep_tokens._replace(changes={**keep_tokens.changes, "dataset_tokens": ""}),
            keep_epochs,
        )
        raise error
    if asked.epochs is None or asked.dataset_tokens is None:
        raise refusal("epochs", f" and {flag('dataset_tokens')} are needed together")
    return run_tokens(epochs=asked.epochs, dataset_tokens=asked.dataset_tokens)


def run_terms(asked: PlanAsked, workload: Workload) -> RunTerms:
    _check_ramp(asked, workload.global_batch)
    terms = RunTerms(
        spot=asked.spot,
        interruptions_per_hour=asked.interruptions or {},
        checkpoint_interval_seconds=asked.checkpoint_every,
        storage=asked.storage_bandwidth or Storage(),
        restart_seconds=asked.restart_time,
        ramp=asked.rampup_batch,
        evaluation=_evaluation(asked.eval_every, asked.eval_iterations),
        co2_kilograms_per_kwh=asked.co2,
    )
    if asked.failures is not None:
        terms = replace(terms, failures_per_hour=asked.failures)
    if workload.tokens is None and terms != RunTerms():
        raise InputError(
            "spot, checkpoints, evaluations, batch ramps and CO2 need the length of the run; give"
            f" {flag('tokens')} or {flag('epochs')}",
            "tokens",
        )
    if terms.spot is Spot.NEVER and asked.interruptions:
        gpu, often = next(iter(asked.interruptions.items()))
        rate = f"{gpu}={often:g}" if gpu else f"{often:g}"
        raise refusal(
            "interruptions", f" {rate} are those of spot nodes; add {flag('spot')} always or mix"
        )
    return replace(terms, power=power_terms(asked.power_utilisation))


def rules_of_cores(asked: Request) -> tuple[Request, tuple[str, ...]]:
    """Rules that keep plans for cores to what runs there as planned, and a note of them."""
    if not all(pool.gpu.is_processor for pool in asked.cluster.pools):
        return asked, ()
    note = f"left out, as cores do not run it as planned: {', '.join(NOT_ON_CORES.values())}"
    return replace(asked, notes=(*asked.notes, note)), tuple(NOT_ON_CORES)


def spot_notes(terms: RunTerms, pools: Cluster, *, offered: bool = False) -> tuple[str, ...]:
    """Types without a spot price; refused if all lack one and none was `offered`."""
    if terms.spot is Spot.NEVER:
        return ()
    names = dict.fromkeys(pool.gpu.name for pool in pools.pools)
    strangers = [name for name in terms.interruptions_per_hour if name and name not in names]
    if strangers:
        raise refusal("interruptions", f" {strangers[0]}=...: no pool has this type")
    lacking = [pool for pool in pools.pools if pool.spot_usd_per_gpu_hour is None]
    if len(lacking) == len(pools.pools) and not offered:
        raise refusal(
            "spot",
            f" {terms.spot}: no spot price is known for {', '.join(names)}; give one in a price"
            f" file ({flag('prices')}) or as spot_usd_per_gpu_hour in a cluster file",
        )
    without = ", ".join(dict.fromkeys(pool.gpu.name for pool in lacking))
    return (f"no spot price is known for {without}: on demand",) if lacking else ()


def _check_ramp(asked: PlanAsked, global_batch: int) -> None:
    ramp = asked.rampup_batch
    if ramp is None:
        return
    try:
        ramp.check(global_batch)
    except InputError as error:
        steps = f"{ramp.start},{ramp.increment},{ramp.samples}"
        raise refusal("rampup_batch", f" '{steps}': {error}") from None


def _evaluation(every: int | None, iterations: int | None) -> Evaluation | None:
    if every is None and iterations is not None:
        without = f" is given without {flag('eval_every')}; give both"
        raise refusal("eval_iterations", without)
    if every is None:
        return None
    return Evaluation(every, iterations or DEFAULT_EVAL_ITERATIONS)


class UsedProfile(Value, frozen=True):
    """A profile file: what it teaches, for which GPU type, and for which runtime if for one."""

    gpu: str
    runtime: str | None
    tuning: Tuning
    note: str
    header: Mapping[str, Any] | None = None  # of the profile of a device

    def concerns(self, scenario: Scenario | None) -> bool:
        """Whether a row of a table is of its GPU type, and of its runtime if it has one."""
        if scenario is None or scenario.pool.gpu.name != self.gpu:
            return False
        return self.runtime in (scenario.runtime.name, None)


def tuned(asked: Request, profile: str | None, runtime: str) -> tuple[Request, Tuning]:
    """The tuning of --profile, if given, and the request with a note of it."""
    if profile is None:
        return asked, NEUTRAL
    cluster, read = with_profile(asked.cluster, profile)
    notes = [read.note]
    if read.runtime not in (runtime, None):
        notes.append(f"{profile} was learned under {read.runtime}, and is used for {runtime}")
    return replace(asked, cluster=cluster, notes=(*asked.notes, *notes)), read.tuning


def with_profile(cluster: Cluster, file: str) -> tuple[Cluster, UsedProfile]:
    """The cluster as --profile describes it, and the profile; it must cover all devices."""
    read = used_profile(file)
    others = [pool.gpu.name for pool in cluster.pools if pool.gpu.whole_name != read.gpu]
    if others:
        raise refusal(
            "profile",
            f" {file}: learned on {read.gpu}, but asked about {', '.join(others)};"
            f" leave {flag('profile')} out, or learn one for that type",
        )
    if read.header is not None:
        from astrarium.calibrate.fit.profile import with_measured_cores

        cluster = with_measured_cores(cluster, read.header)
    return cluster, read


def tunings(profile: UsedProfile | None) -> Callable[[Scenario], Tuning]:
    """The tuning for rows of tables: that of --profile for its GPU type and runtime."""

    def of(scenario: Scenario) -> Tuning:
        return profile.tuning if profile and profile.concerns(scenario) else NEUTRAL

    return of


def used_profile(file: str) -> UsedProfile:
    """Read the profile of a device (Parquet) or of a cluster (JSON)."""
    path = Path(file)
    if path.is_dir():
        raise refusal("profile", f" {file}: is a folder; name the profile in it")
    if path.suffix.lower() == ".parquet":
        return _device_profile(path)
    if path.suffix.lower() not in PROFILE_ENDINGS:
        raise refusal(
            "profile",
            f" {file}: unknown kind of file; expected a .json that was learned, or a .parquet that"
            " was measured, by `astrarium calibrate`",
        )
    from astrarium.calibrate.learn.profile import load_profile

    read = load_profile(path)
    note = (
        f"times tuned by {file}, learned on {read.gpu} under {read.runtime},"
        f" {read.date}, from {', '.join(read.origin)}"
    )
    return UsedProfile(read.gpu, read.runtime, read.tuning, note)


def _device_profile(path: Path) -> UsedProfile:
    from astrarium.calibrate.fit.profile import read_profile

    read = read_profile(path)
    if read.gpu is None:
        way = (
            "measure all sections, without --quick"
            if read.header["device"].get("kind") == "cpu"
            else "add it to astrarium.toml, then measure again"
        )
        raise refusal(
            "profile", f" {path}: measured on {read.device}, which is no GPU of the catalog; {way}"
        )
    tuning = Tuning(**read.tuning)
    note = f"operators as measured: {tuning.origin}"
    if tuning.runtime:
        note += f"; predicted under {tuning.runtime}"
    return UsedProfile(read.gpu, None, tuning, note, read.header)


def runtime_of(asked: AskedValues) -> str:
    """The runtime that was named, or the usual one, which is another where adapters train."""
    usual = DEFAULT_RUNTIME if asked.finetune in (None, "full") else FINETUNING_RUNTIME
    named = "runtime" in asked.given or asked.runtime != DEFAULT_RUNTIME
    return (asked.runtime if named else None) or usual


def under(asked: Request, runtime: RuntimeProfile) -> Request:
    """The request with a note of a runtime other than the usual one."""
    if runtime.name == DEFAULT_RUNTIME:
        return asked
    note = f"predicted under {runtime.name}: {runtime.title.rpartition(': ')[2]}"
    return replace(asked, notes=(*asked.notes, note))


def strategy(
    reference: str | Mapping[str, Any] | Imported,
    asked: Request,
    *,
    name: str = "strategy",
    gpus: int | None = None,
    rule_set: str = DEFAULT_RUNTIME,
) -> Strategy:
    """The strategy of a flag or of its keys, completed for the GPUs (all) and the batch."""
    layers = asked.workload.model.num_layers
    count = asked.cluster.num_gpus if gpus is None else gpus
    known = {"gpus": count, "global_batch": asked.workload.global_batch, "layers": layers}
    where = flag(name)
    if isinstance(reference, str):
        given = read_strategy(reference, flag=where, **known)
    elif isinstance(reference, Imported):
        keys = reference.strategy_of(layers, count)
        given = given_strategy(keys, where=reference.source, **known)
    else:
        given = given_strategy(reference, where=where, **known)
    pp, virtual = given.strategy.pp, given.strategy.virtual_stages
    if pp * virtual > layers and not given.strategy.stages:
        raise InputError(
            f"{where}: pp {pp} x virtual_stages {virtual} makes {pp * virtual} stages of at"
            f" least one layer; {asked.workload.model.name} has {layers} layers. Stages that hold"
            " none have to be said: `stages` of a strategy file"
        )
    pools = asked.cluster.pools
    left_open = asked.workload, pools, given.strategy, given.overlap_given
    return with_permitted_overlap(*left_open, rule_set)
