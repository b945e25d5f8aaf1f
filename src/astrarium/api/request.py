"""From the texts of flags to a workload and a cluster, with messages that name the flag.

The model and the cluster may also be objects, which is how they come from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from astrarium import units
from astrarium.api.money import MoneyFlags
from astrarium.errors import InputError, about, did_you_mean
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.catalog.runtimes import Runtime as RuntimeProfile
    from astrarium.cluster import Cluster
    from astrarium.configs.imported import Imported
    from astrarium.cost.checkpoints import Storage
    from astrarium.cost.training_run import Evaluation, Ramp, RunTerms
    from astrarium.cost.tuning import Tuning
    from astrarium.model import Model
    from astrarium.model.workload import Workload
    from astrarium.strategy.types import Strategy
    from astrarium.validate.scenario import Scenario

NO_TERMS = MoneyFlags()

# Far above anything trained; a larger number is a typing error.
MOST_SEQ_LENGTH = 2**27
MOST_GLOBAL_BATCH = 2**27
MOST_TOKENS = 10**18
MOST_USD = 1e15
MOST_SECONDS = 100 * 365 * 86400.0
MOST_PLANS = 100
MOST_POOLS = 1000
MOST_EPOCHS = 1e6
MOST_INTERRUPTIONS_PER_HOUR = 1000.0
MOST_BANDWIDTH = 1e18
MOST_CO2 = 100.0

# Without --seq-length the model's maximum is taken, but no long-context extension.
DEFAULT_SEQ_LENGTH = 8192
# For `fit`, whose answer hardly depends on it: enough micro-batches to fill any usual pipeline.
DEFAULT_GLOBAL_BATCH = "1024"
# What Megatron's --eval-iters is by default.
DEFAULT_EVAL_ITERATIONS = "100"
PER_NODE = "/node"
# What runs otherwise than planned on cores (`astrarium.runtime`), as rules, and in words.
NOT_ON_CORES = {
    "$zero_stage > 1": "ZeRO 2 and 3",
    "$offload_optimizer": "an optimizer in the host's memory",
    "$cp > 1": "context parallelism",
    "$overlap_tp && $tp > 1": "overlap of tp communication",
}
# Of the profile of a cluster; that of a device ends in .parquet.
PROFILE_ENDINGS = (".json", ".yaml", ".yml", ".toml")


class Request(Value, frozen=True):
    """What a command is asked about, and notes on what was assumed."""

    workload: Workload
    cluster: Cluster
    notes: tuple[str, ...]


# A catalog name, a path, the content of a config.json or model file, or a model.
ModelGiven: TypeAlias = "str | Path | Mapping[str, Any] | Model"
ClusterGiven: TypeAlias = "str | Path | Cluster"  # a cluster file, or a cluster
NAME_KEY = "_name_or_path"  # where a config.json says what its model is called
NAMELESS = "model"
DEFAULT_RUNTIME = "megatron"

Choice = TypeVar("Choice", bound=StrEnum)
Number = TypeVar("Number", int, float)


def parse(flag: str, text: str, parser: Callable[[str], Number], most: Number) -> Number:
    """Read a quantity; complaints name the flag."""
    try:
        value = parser(text)
    except InputError as error:
        raise InputError(f"{flag} {error}") from None
    if value > most:
        raise InputError(f"{flag} '{text}': too large; the most is {most:,.0f}")
    return value


def count(flag: str, text: str, most: int) -> int:
    return parse(flag, text, units.parse_count, most)


def rank(text: str) -> int:
    """Which plan of a document."""
    try:
        return count("--rank", text, MOST_PLANS)
    except InputError:
        raise InputError(
            f"--rank '{text}': expected the number of a plan such as 1, the best"
        ) from None


def usd(flag: str, text: str | None) -> float | None:
    return None if text is None else parse(flag, text, units.parse_usd, MOST_USD)


def seconds(flag: str, text: str | None) -> float | None:
    """Read a duration; a bare number is days."""
    if text is None:
        return None

    def in_days(given: str) -> float:
        return units.parse_seconds(given, bare_unit="days")

    return parse(flag, text, in_days, MOST_SECONDS)


def choice(
    flag: str, text: str, kind: type[Choice], *, without: tuple[StrEnum, ...] = ()
) -> Choice:
    """Read one of a few words, whatever its case."""
    words = [word.value for word in kind if word not in without]
    if text.lower() in words:
        return kind(text.lower())
    expected = f"expected one of {', '.join(words)}" if len(words) > 1 else f"only {words[0]} is"
    known = "" if len(words) > 1 else " supported so far"
    raise InputError(f"{flag} '{text}': {expected}{known}{did_you_mean(text, words)}")


def model(given: ModelGiven) -> Model:
    """A model that was built, or is built of what it is called or of the content of a file."""
    from astrarium.model import Model, load_model
    from astrarium.model.load import model_of_config

    if isinstance(given, Model):
        return given
    if isinstance(given, Mapping):
        return model_of_config(given, str(given.get(NAME_KEY) or NAMELESS), NAMELESS)
    return load_model(str(given))


def read_as(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """The flags of a command, with the model that --as makes of a config in place of its name."""
    kind = flags.get("as_type")
    if kind is None:
        return flags
    from astrarium.model.load import load_as

    if not isinstance(flags["model"], str | Path):
        raise InputError(f"--as {kind} goes with a config.json; name it as MODEL")
    with about("model"):
        return {**flags, "model": load_as(str(flags["model"]), kind)}


def reference_of(given: ModelGiven, loaded: Model) -> str:
    """What a document says the model was called."""
    return str(given) if isinstance(given, str | Path) else loaded.name


def cluster(
    gpus: str | None, file: ClusterGiven | None, terms: MoneyFlags = NO_TERMS
) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster of --gpus, --cluster or --market, at the terms of the flags, and notes on it."""
    from astrarium.api import money
    from astrarium.cluster import Cluster, load_cluster, parse_gpus

    if gpus is not None and file is not None:
        raise InputError("--gpus and --cluster are both given; keep one")
    if gpus is not None:
        with about("gpus"):
            there = parse_gpus(gpus)
        return money.priced(there, terms)
    if file is not None:
        with about("cluster"):
            there = file if isinstance(file, Cluster) else load_cluster(Path(file))
        return money.priced(there, terms)
    if terms.market is not None:
        return money.market(terms)
    raise InputError("no GPUs are given; use --gpus TYPE:N such as h100:64, or --cluster FILE")


def read(
    given: ModelGiven,
    gpus: str | None,
    cluster_given: ClusterGiven | None,
    seq_length: str | None,
    global_batch: str | None,
    tokens: int | None,
    precision: str,
    terms: MoneyFlags = NO_TERMS,
) -> Request:
    """Everything a command is asked about. Flags first: their mistakes cost least to find."""
    from astrarium.model.workload import Precision, Workload

    notes = []
    if global_batch is None:
        global_batch = DEFAULT_GLOBAL_BATCH
        notes.append(f"--global-batch not given: {global_batch} taken; memory hardly depends on it")
    batch = count("--global-batch", global_batch, MOST_GLOBAL_BATCH)
    length = None if seq_length is None else count("--seq-length", seq_length, MOST_SEQ_LENGTH)
    number_format = choice("--precision", precision, Precision, without=(Precision.FP32,))
    pools, on_prices = cluster(gpus, cluster_given, terms)
    notes += on_prices
    with about("model"):
        loaded = model(given)
    if length is None:
        length, why = default_length(loaded)
        notes.append(f"--seq-length not given: {length:,} taken, {why}")
    elif 0 < loaded.max_seq_length < length:
        notes.append(
            f"--seq-length {length:,} is beyond the {loaded.max_seq_length:,} tokens that"
            f" {loaded.name} is made for"
        )
    notes += loaded.left_out
    if loaded.later_inputs:
        layer, _ = loaded.later_inputs[0]
        notes.append(
            f"{loaded.name} reads another input from layer {layer} on, for which Megatron's"
            " pipeline layout has no place: plans with pp > 1 need another program"
        )
    asked = Workload(loaded, length, batch, tokens, number_format)
    if gpus is None and cluster_given is None:
        pools, unable = _able(asked, pools)
        return Request(asked, pools, (*notes, *unable))
    used, fallbacks = usable_format(asked, pools)
    return Request(used, pools, (*notes, *fallbacks))


def _able(asked: Workload, market: Cluster) -> tuple[Cluster, list[str]]:
    """The offers of a market whose GPUs have the number format, or its fallback, and a note."""
    from astrarium.search.formats import runnable

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
    from astrarium.search.formats import runnable

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
        raise InputError(f"{model.name} states no sequence length; give --seq-length")
    if longest <= DEFAULT_SEQ_LENGTH:
        return longest, "the model's maximum"
    return DEFAULT_SEQ_LENGTH, f"the default for a model that takes up to {longest:,}"


def run_length(
    tokens: str | None, epochs: str | None = None, dataset_tokens: str | None = None
) -> int | None:
    """Tokens of the run: --tokens, or --epochs of --dataset-tokens."""
    from astrarium.cost.training_run import run_tokens

    given = None if tokens is None else count("--tokens", tokens, MOST_TOKENS)
    if epochs is None and dataset_tokens is None:
        return given
    if tokens is not None:
        raise InputError("--tokens and --epochs are both given; keep one")
    if epochs is None or dataset_tokens is None:
        raise InputError("--epochs and --dataset-tokens are needed together")
    passes = parse("--epochs", epochs, units.parse_number, MOST_EPOCHS)
    size = count("--dataset-tokens", dataset_tokens, MOST_TOKENS)
    return run_tokens(epochs=passes, dataset_tokens=size)


def run_terms(flags: Mapping[str, Any], workload: Workload) -> RunTerms:
    """What the flags of a command say of a run beside its workload and its cluster."""
    from astrarium.api.money import power_terms
    from astrarium.cost.checkpoints import Storage
    from astrarium.cost.training_run import RunTerms, Spot

    storage, ramp, co2 = (flags[name] for name in ("storage_bandwidth", "rampup_batch", "co2"))
    terms = RunTerms(
        spot=choice("--spot", flags["spot"], Spot),
        interruptions_per_hour=dict(map(_interruptions, flags["interruptions"] or ())),
        checkpoint_interval_seconds=_duration("--checkpoint-every", flags["checkpoint_every"]),
        storage=Storage() if storage is None else _storage(storage),
        restart_seconds=_duration("--restart-time", flags["restart_time"], allow_zero=True),
        ramp=None if ramp is None else _ramp(ramp, workload.global_batch),
        evaluation=_evaluation(flags["eval_every"], flags["eval_iterations"]),
        co2_kilograms_per_kwh=None
        if co2 is None
        else parse("--co2", co2, lambda text: units.parse_number(text, allow_zero=True), MOST_CO2),
    )
    if flags.get("failures") is not None:
        terms = replace(terms, failures_per_hour=_failures(flags["failures"]))
    if workload.tokens is None and terms != RunTerms():
        raise InputError(
            "spot, checkpoints, evaluations, the ramp of the batch and CO2 are those of a whole"
            " run; give --tokens, or --epochs: how long is it?"
        )
    if terms.spot is Spot.NEVER and flags["interruptions"]:
        raise InputError(
            f"--interruptions {flags['interruptions'][0]} are those of spot nodes; add --spot"
            " always or mix"
        )
    utilisation = flags.get("power_utilisation")
    return terms if utilisation is None else replace(terms, power=power_terms(utilisation))


def rules_of_cores(asked: Request) -> tuple[Request, tuple[str, ...]]:
    """Rules that keep plans for cores to what runs there as planned, and a note of them."""
    if not all(pool.gpu.is_processor for pool in asked.cluster.pools):
        return asked, ()
    note = f"left out, as cores do not run it as planned: {', '.join(NOT_ON_CORES.values())}"
    return replace(asked, notes=(*asked.notes, note)), tuple(NOT_ON_CORES)


def spot_notes(terms: RunTerms, pools: Cluster, *, offered: bool = False) -> tuple[str, ...]:
    """Which GPUs cannot be spot for lack of a price; refused where all should be.

    Not where a spot price was `offered`: then the offers without one are cheaper.
    """
    from astrarium.cost.training_run import Spot

    if terms.spot is Spot.NEVER:
        return ()
    names = dict.fromkeys(pool.gpu.name for pool in pools.pools)
    strangers = [name for name in terms.interruptions_per_hour if name and name not in names]
    if strangers:
        raise InputError(f"--interruptions {strangers[0]}=...: no pool has this type")
    lacking = [pool for pool in pools.pools if pool.spot_usd_per_gpu_hour is None]
    if len(lacking) == len(pools.pools) and not offered:
        raise InputError(
            f"--spot {terms.spot}: no spot price is known for {', '.join(names)}; give one in a"
            " price file (--prices) or as spot_usd_per_gpu_hour in a cluster file"
        )
    without = ", ".join(dict.fromkeys(pool.gpu.name for pool in lacking))
    return (f"no spot price is known for {without}: on demand",) if lacking else ()


def _duration(flag: str, text: str | None, *, allow_zero: bool = False) -> float | None:
    if text is None:
        return None
    return parse(
        flag, text, lambda given: units.parse_seconds(given, allow_zero=allow_zero), MOST_SECONDS
    )


def _interruptions(text: str) -> tuple[str, float]:
    """The GPU type of [TYPE=]RATE, or "" for all, and interruptions an hour."""
    from astrarium.catalog import find_gpu

    gpu, equals, rate = text.rpartition("=")
    often = parse(
        "--interruptions",
        rate,
        lambda given: units.parse_per_hour(given, allow_zero=True),
        MOST_INTERRUPTIONS_PER_HOUR,
    )
    return (find_gpu(gpu).name if equals else ""), often


def _failures(text: str) -> float:
    """Breakdowns of one node an hour."""
    return parse(
        "--failures",
        text,
        lambda given: units.parse_per_hour(given, allow_zero=True),
        MOST_INTERRUPTIONS_PER_HOUR,
    )


def _storage(text: str) -> Storage:
    """RATE of all nodes together, or RATE/node."""
    from astrarium.cost.checkpoints import Storage

    rate = text.removesuffix(PER_NODE)
    bandwidth = parse("--storage-bandwidth", rate, units.parse_bandwidth, MOST_BANDWIDTH)
    if rate != text:
        return Storage(per_node=bandwidth)
    return Storage(per_node=bandwidth, shared=bandwidth)


def _ramp(text: str, global_batch: int) -> Ramp:
    from astrarium.cost.training_run import Ramp

    numbers = text.split(",")
    if len(numbers) != len(("START", "INCREMENT", "SAMPLES")):
        raise InputError(
            f"--rampup-batch '{text}': expected START,INCREMENT,SAMPLES such as 16,16,6M"
        )
    start, increment, samples = (count("--rampup-batch", part, MOST_TOKENS) for part in numbers)
    ramp = Ramp(start, increment, samples)
    try:
        ramp.check(global_batch)
    except InputError as error:
        raise InputError(f"--rampup-batch '{text}': {error}") from None
    return ramp


def _evaluation(every: str | None, iterations: str | None) -> Evaluation | None:
    from astrarium.cost.training_run import Evaluation

    if every is None and iterations is not None:
        raise InputError("--eval-iterations is given without --eval-every; give both")
    if every is None:
        return None
    return Evaluation(
        count("--eval-every", every, MOST_TOKENS),
        count("--eval-iterations", iterations or DEFAULT_EVAL_ITERATIONS, MOST_TOKENS),
    )


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
    from astrarium.cost.tuning import NEUTRAL

    if profile is None:
        return asked, NEUTRAL
    read = used_profile(profile)
    others = [pool.gpu.name for pool in asked.cluster.pools if pool.gpu.whole_name != read.gpu]
    if others:
        raise InputError(
            f"--profile {profile}: learned on {read.gpu}, but asked about {', '.join(others)};"
            " leave --profile out, or learn one for that type"
        )
    notes = [read.note]
    if read.runtime not in (runtime, None):
        notes.append(f"{profile} was learned under {read.runtime}, and is used for {runtime}")
    if read.header is not None:
        from astrarium.calibrate.processor import with_measured_cores

        asked = replace(asked, cluster=with_measured_cores(asked.cluster, read.header))
    return replace(asked, notes=(*asked.notes, *notes)), read.tuning


def tunings(profile: UsedProfile | None) -> Callable[[Scenario], Tuning]:
    """The tuning for rows of tables: that of --profile for its GPU type and runtime."""
    from astrarium.cost.tuning import NEUTRAL

    def of(scenario: Scenario) -> Tuning:
        return profile.tuning if profile and profile.concerns(scenario) else NEUTRAL

    return of


def used_profile(file: str) -> UsedProfile:
    """Read the profile of a device (Parquet) or of a cluster (JSON)."""
    path = Path(file)
    if path.is_dir():
        raise InputError(f"--profile {file}: is a folder; name the profile in it")
    if path.suffix.lower() == ".parquet":
        return _device_profile(path)
    if path.suffix.lower() not in PROFILE_ENDINGS:
        raise InputError(
            f"--profile {file}: unknown kind of file; expected a .json that was learned, or a"
            " .parquet that was measured, by `astrarium calibrate`"
        )
    from astrarium.calibrate.learn_profile import load_profile

    read = load_profile(path)
    note = (
        f"times tuned by {file}, learned on {read.gpu} under {read.runtime},"
        f" {read.date}, from {', '.join(read.origin)}"
    )
    return UsedProfile(read.gpu, read.runtime, read.tuning, note)


def _device_profile(path: Path) -> UsedProfile:
    from astrarium.calibrate.profile import read_profile
    from astrarium.cost.tuning import Tuning

    read = read_profile(path)
    if read.gpu is None:
        way = (
            "measure all sections, without --quick"
            if read.header["device"].get("kind") == "cpu"
            else "add it to astrarium.toml, then measure again"
        )
        raise InputError(
            f"--profile {path}: measured on {read.device}, which is no GPU of the catalog; {way}"
        )
    tuning = Tuning(**read.tuning)
    note = f"operators as measured: {tuning.origin}"
    if tuning.runtime:
        note += f"; predicted under {tuning.runtime}"
    return UsedProfile(read.gpu, None, tuning, note, read.header)


def under(asked: Request, runtime: RuntimeProfile) -> Request:
    """The request with a note of a runtime other than the usual one."""
    if runtime.name == DEFAULT_RUNTIME:
        return asked
    note = f"predicted under {runtime.name}: {runtime.title}"
    return replace(asked, notes=(*asked.notes, note))


def strategy(
    reference: str | Mapping[str, Any] | Imported,
    asked: Request,
    *,
    flag: str = "--strategy",
    gpus: int | None = None,
) -> Strategy:
    """The strategy of a flag or of its keys, completed for the GPUs (all) and the batch."""
    from astrarium.configs.imported import Imported
    from astrarium.search.refusals import with_permitted_overlap
    from astrarium.strategy.document import given_strategy, read_strategy

    layers = asked.workload.model.num_layers
    count = asked.cluster.num_gpus if gpus is None else gpus
    known = {"gpus": count, "global_batch": asked.workload.global_batch, "layers": layers}
    if isinstance(reference, str):
        given = read_strategy(reference, flag=flag, **known)
    elif isinstance(reference, Imported):
        keys = reference.strategy_of(layers, count)
        given = given_strategy(keys, where=reference.source, **known)
    else:
        given = given_strategy(reference, where=flag, **known)
    pp, virtual = given.strategy.pp, given.strategy.virtual_stages
    if pp * virtual > layers and not given.strategy.stages:
        raise InputError(
            f"{flag}: pp {pp} x virtual_stages {virtual} makes {pp * virtual} stages of at"
            f" least one layer; {asked.workload.model.name} has {layers} layers. Stages that hold"
            " none have to be said: `stages` of a strategy file"
        )
    pools = asked.cluster.pools
    return with_permitted_overlap(asked.workload, pools, given.strategy, given.overlap_given)
