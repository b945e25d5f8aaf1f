"""Logs of training programs: the times, memory and settings that they print, as measured runs.

Megatron-LM (and its forks), torchtitan and nanotron are known. Other lines are skipped; an
impossible number in a known line is an error with its place. The median counts, without the warm-up
and without iterations of a smaller batch than the last one (a ramp).

Model, strategy and runtime are those that the program printed. A flag overrides the log, because
wrappers print defaults that they change later. An error names the flag for what neither states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np

from astrarium.calibrate.learn.measurement import Measurement
from astrarium.catalog.runtimes import ReportedMemory, find_runtime
from astrarium.cluster import Pool
from astrarium.configs.megatron.settings import describe_megatron
from astrarium.configs.nanotron import describe_nanotron
from astrarium.configs.settings import Described, Settings, recompute_of
from astrarium.configs.torchtitan_file import describe_torchtitan
from astrarium.errors import InputError, did_you_mean
from astrarium.model.blocks import Model
from astrarium.model.build import Architecture, assemble
from astrarium.model.workload import Workload
from astrarium.strategy.document import strategy_from_dict

WARM_UP_STEPS: Final = 5
# The middle half of a run's iterations lies within a few per cent; beyond this, something else
# decided the times.
MOST_SPREAD: Final = 0.5
LONGEST_LINE: Final = 20_000  # characters; anything longer is no line of a log
MIB: Final = 2**20
GIB: Final = 2**30


class LogFormat(StrEnum):
    MEGATRON = "Megatron-LM"
    TORCHTITAN = "torchtitan"
    NANOTRON = "nanotron"


@dataclass(frozen=True, slots=True)
class Sample:
    """One line about one or more iterations; either seconds or tokens/s per GPU."""

    step: int
    value: float
    global_batch: int | None


@dataclass(slots=True)
class Log:
    """The content of a log: `settings` as printed; peaks in bytes by rank or stage."""

    path: str
    program: LogFormat
    samples: list[Sample] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    allocated: dict[int, float] = field(default_factory=dict)
    reserved: dict[int, float] = field(default_factory=dict)

    def remember(self, name: str, value: str) -> None:
        """Keep a setting; the first mention is the program's own."""
        self.settings.setdefault(name, value.strip().strip("'\""))

    def add(self, sample: Sample, place: str) -> None:
        """Keep a sample; InputError if its number says that another run began unnoticed."""
        if self.samples and sample.step < self.samples[-1].step:
            raise InputError(
                f"{place}: iteration {sample.step} follows {self.samples[-1].step}: another run"
                " begins here without stating its settings; split the log into one file per run"
            )
        self.samples.append(sample)

    def peak(self, peaks: dict[int, float], rank: int, size: float) -> None:
        """Keep the highest peak that a rank reports; zeros come from devices it cannot ask."""
        if size > 0:
            peaks[rank] = max(size, peaks.get(rank, 0.0))


@dataclass(frozen=True, slots=True)
class Pace:
    """The typical iteration of a log: its median, and how far the middle half spreads."""

    median: float
    spread: float  # interquartile range over the median
    used: int
    left_out: int
    global_batch: int | None


_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_SUFFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER: Final = r"([-+]?[\w.,]+)"
_ELAPSED: Final = re.compile(rf"elapsed[ _]time[ _]per[ _]iteration[ _]\(?ms\)?\s*[:=]\s*{_NUMBER}")
_ITERATION: Final = re.compile(r"\biteration\s*[:=]?\s*(\d+)\s*/\s*\d+")
_BATCH: Final = re.compile(r"global[ _]batch[ _]size\s*[:=]\s*([\d.]+[KMG]?)")
_ARGUMENT: Final = re.compile(r"(?:^|[\s:>])([a-z]\w*) \.{3,} (.*)$")
_MEGATRON_MEMORY: Final = re.compile(
    r"\[Rank (\d+)\] \(after \d+ iterations\) memory \(MB\).*?max allocated: ([\d.]+)"
    r"(?:.*?max reserved: ([\d.]+))?"
)
_PADDED_VOCABULARY: Final = re.compile(r"padded vocab \(size: (\d+)\)")
_NANOTRON_PREFIX: Final = re.compile(r"\[\w+\|DP=\d+\|PP=(\d+)\|TP=\d+(?:\|[^\]]*)?\]:\s?(.*)$")
_NANOTRON_MEMORY: Final = re.compile(
    r"Peak allocated:? ([\d.]+)\s?MiB.*?Peak reserved:? ([\d.]+)\s?MiB"
)
_PAIR: Final = re.compile(r"(\w+)=('[^']*'|<[^>]*>|[^,()\s]+)")
_TITAN_STEP: Final = re.compile(
    r"\bstep:\s*(\d+)\s+loss:.*?memory:\s*([\d.]+)\s?GiB\s*\(.*?tps:\s*([^\s]+)"
)
_TITAN_MESH: Final = re.compile(r"device mesh with \[([^\]]*)\], \[([\d, ]+)\]")
_TITAN_PARALLELISM: Final = re.compile(r"device mesh with parallelism: (.*)$")
_TITAN_TRAINER: Final = re.compile(
    r"local batch size (\d+), global batch size (\d+),.*?sequence length (\d+)"
)
_TITAN_MODEL: Final = re.compile(r"Building (\w+) (\S+) with \w*Args\((.*)\)")
_TITAN_COMPILED: Final = re.compile(r"[Cc]ompil(?:ing|ed) .*torch\.compile")
_TITAN_RECOMPUTE: Final = re.compile(r"Applied (\w+) activation checkpointing")
_TITAN_KEYS: Final = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
    "expert_tensor_parallel_degree",
    "data_parallel_replicate_degree",
    "data_parallel_shard_degree",
    "local_batch_size",
    "global_batch_size",
    "seq_len",
)
_TITAN_SETTING: Final = re.compile(rf"['\"]?\b({'|'.join(_TITAN_KEYS)})['\"]?\s*[=:]\s*(-?\d+)")


# What a program prints first of its settings.
_BEGINNINGS: Final = {
    LogFormat.MEGATRON: re.compile(r"-{3,} arguments -{3,}"),
    LogFormat.TORCHTITAN: re.compile(r"Starting job:"),
    LogFormat.NANOTRON: re.compile(r"\bConfig\(general="),
}


def read_logs(path: Path | str) -> list[Log]:
    """The runs of a log, one after the other where several were appended."""
    runs: list[Log] = []
    pending: list[tuple[int, str]] = []
    for number, line in enumerate(_lines(Path(path)), start=1):
        pending.append((number, line))
        program = runs[-1].program if runs else _program_of(line)
        if program is None:
            continue
        if not runs:
            runs.append(Log(str(path), program))
        for earlier, text in pending:
            if _BEGINNINGS[program].search(text):
                _begin(runs)
            _read_line(runs[-1], text, f"{path}:{earlier}")
        pending.clear()
    runs = [run for run in runs if run.samples]
    if not runs:
        raise InputError(
            f"{path}: no iteration of Megatron-LM, torchtitan or nanotron in it; expected lines"
            " such as 'iteration 10/ 500 | ... elapsed time per iteration (ms): 1234.5 |' or"
            " 'step: 10 loss: ... memory: 40.12GiB(50.6%) tps: 5,678'"
        )
    if len(runs) > 1:
        for number, run in enumerate(runs, start=1):
            run.path = f"{path} (run {number})"
    return runs


def _begin(runs: list[Log]) -> None:
    """Begin a run; what ended before its first iteration is forgotten."""
    last = runs[-1]
    if not last.samples:
        runs.pop()
    runs.append(Log(last.path, last.program))


def pace_of(log: Log) -> Pace:
    """The typical iteration, after the warm-up and at the last global batch."""
    batch = log.samples[-1].global_batch
    alike = [sample for sample in log.samples if sample.global_batch == batch]
    settled = [sample for sample in alike[1:] if sample.step > WARM_UP_STEPS] or alike[-1:]
    values = np.array([sample.value for sample in settled])
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    spread = (high - low) / median
    if spread > MOST_SPREAD:
        raise InputError(
            f"{log.path}: half of the iterations differ by more than {100 * spread:.0f} % from the"
            " rest; give a log of undisturbed iterations with one setting"
        )
    return Pace(median, spread, len(settled), len(log.samples) - len(settled), batch)


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            begins = True
            while raw := file.readline(LONGEST_LINE):
                if b"\0" in raw:
                    raise InputError(f"{path}: a binary file; expected the text of a log")
                if begins:  # what follows in a longer line says nothing
                    yield _COLOURS.sub("", raw.decode("utf-8", "replace")).rstrip()
                begins = raw.endswith(b"\n")
    except FileNotFoundError:
        near = [other.name for other in path.parent.glob("*")] if path.parent.is_dir() else []
        raise InputError(f"no such log: '{path}'{did_you_mean(path.name, near)}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name a log in it") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _program_of(line: str) -> LogFormat | None:
    if _NANOTRON_PREFIX.search(line):
        return LogFormat.NANOTRON
    if _ITERATION.search(line) and _ELAPSED.search(line):
        return LogFormat.NANOTRON if "tokens_per_sec_per_gpu" in line else LogFormat.MEGATRON
    if _TITAN_STEP.search(line):
        return LogFormat.TORCHTITAN
    return None


def _read_line(log: Log, line: str, place: str) -> None:
    try:
        _READERS[log.program](log, line, place)
    except InputError:
        raise
    except ValueError as error:  # dots and digits that are no number
        raise InputError(f"{place}: {error}; leave the line out") from None


def _read_megatron(log: Log, line: str, place: str) -> None:
    if _add_iteration(log, line, place):
        return
    if found := _ARGUMENT.search(line):
        log.remember(found[1], found[2])
    elif found := _MEGATRON_MEMORY.search(line):
        log.peak(log.allocated, int(found[1]), float(found[2]) * MIB)
        log.peak(log.reserved, int(found[1]), float(found[3] or 0) * MIB)
    elif found := _PADDED_VOCABULARY.search(line):
        log.remember("vocab_size_before_padding", found[1])


def _read_nanotron(log: Log, line: str, place: str) -> None:
    if _add_iteration(log, line, place):
        return
    prefix = _NANOTRON_PREFIX.search(line)
    stage, text = (int(prefix[1]), prefix[2]) if prefix else (0, line)
    if found := _NANOTRON_MEMORY.search(text):
        log.peak(log.allocated, stage, float(found[1]) * MIB)
        log.peak(log.reserved, stage, float(found[2]) * MIB)
    elif prefix and not log.samples:
        for name, value in _PAIR.findall(text):
            log.remember(name, value)


def _read_torchtitan(log: Log, line: str, place: str) -> None:
    if found := _TITAN_STEP.search(line):
        tokens_per_second = _positive(found[3], f"{place}: tps")
        if not log.samples or log.samples[-1].step != int(found[1]):  # every rank may print
            log.add(Sample(int(found[1]), tokens_per_second, None), place)
        log.peak(log.reserved, 0, float(found[2]) * GIB)
    elif "device mesh with" in line:
        _read_mesh(log, line)
    elif found := _TITAN_TRAINER.search(line):
        names = ("local_batch_size", "global_batch_size", "seq_len")
        log.settings |= zip(names, found.groups(), strict=True)  # what the configuration came to
    elif found := _TITAN_MODEL.search(line):
        log.remember("model", f"{found[1]} {found[2]}")
        for name, value in _PAIR.findall(found[3]):
            log.remember(f"model_{name}", value)
    elif found := _TITAN_RECOMPUTE.search(line):
        log.remember("recompute", found[1])
    elif _TITAN_COMPILED.search(line):
        log.remember("compiled", "True")
    else:
        for name, value in _TITAN_SETTING.findall(line):
            log.remember(name, value)


def _read_mesh(log: Log, line: str) -> None:
    """Degrees by name, as versions of 2026 print them, or as lists of names and sizes."""
    if found := _TITAN_PARALLELISM.search(line):
        for name, size in _PAIR.findall(found[1]):
            log.remember(f"mesh_{name}", size)
    elif found := _TITAN_MESH.search(line):
        names = [name.strip(" '\"") for name in found[1].split(",")]
        for name, size in zip(names, found[2].split(","), strict=False):
            log.remember(f"mesh_{name}", size)


def _add_iteration(log: Log, line: str, place: str) -> bool:
    step, elapsed = _ITERATION.search(line), _ELAPSED.search(line)
    if step is None or elapsed is None:
        return False
    batch = _BATCH.search(line)
    seconds = _positive(elapsed[1], f"{place}: elapsed time per iteration") / 1e3
    size = round(_scaled(batch[1])) if batch else None
    log.add(Sample(int(step[1]), seconds, size), place)
    return True


def _positive(text: str, what: str) -> float:
    try:
        value = _scaled(text)
    except ValueError:
        raise InputError(f"{what} is '{text}'; expected a number") from None
    if not (isfinite(value) and value > 0):
        raise InputError(f"{what} is {text}; it must be above zero: leave the line out")
    return value


def _scaled(text: str) -> float:
    """A number as logs write them: 1,234.5 or 4.71K."""
    plain = text.replace(",", "")
    suffix = plain[-1:] if plain[-1:] in "KMGT" else ""
    return float(plain.removesuffix(suffix)) * _SUFFIXES[suffix]


_READERS: Final[Mapping[LogFormat, Callable[[Log, str, str], None]]] = {
    LogFormat.MEGATRON: _read_megatron,
    LogFormat.TORCHTITAN: _read_torchtitan,
    LogFormat.NANOTRON: _read_nanotron,
}


@dataclass(frozen=True, slots=True)
class StatedSettings:
    """The user's statements about the runs: always the machines, and what logs omit."""

    pool: Pool
    model: Model | None = None
    seq_length: int | None = None
    global_batch: int | None = None
    strategy: Mapping[str, Any] | None = None
    runtime: str | None = None


def measurement_of(log: Log, given: StatedSettings) -> tuple[Measurement, Pace]:
    pace = pace_of(log)
    described = _DESCRIBE[log.program](Settings(log.settings))
    seq_length = given.seq_length or described.seq_length
    batch = given.global_batch or pace.global_batch or described.global_batch
    if seq_length is None:
        raise _missing(log, "the sequence length", "--seq-length")
    if batch is None:
        raise _missing(log, "the global batch", "--global-batch")
    model = given.model or _model(log, described, seq_length)
    gpus = described.gpus or given.pool.num_gpus
    if gpus > given.pool.num_gpus:
        raise InputError(
            f"{log.path}: the run used {gpus} GPUs, --gpus or --cluster gives"
            f" {given.pool.num_gpus}; give as many as the largest run used"
        )
    asked = dict(described.strategy if given.strategy is None else given.strategy)
    if not asked:
        raise _missing(log, "the strategy", "--strategy")
    asked.pop("num_micro_batches", None)
    if given.strategy is None and described.recompute:
        chunks = asked["pp"]
        asked["recompute"] = asdict(recompute_of(described.recompute, model.num_layers, chunks))
        del asked["recompute"]["modules"]
    strategy = strategy_from_dict(
        asked, where=log.path, gpus=gpus, global_batch=batch, layers=model.num_layers
    )
    seconds = pace.median
    if log.program is LogFormat.TORCHTITAN:  # tokens per second and GPU
        seconds = batch * seq_length / (pace.median * gpus)
    peak, reported, stage = _peak(log, gpus, strategy.pp)
    run = Measurement(
        label=log.path,
        workload=Workload(model, seq_length, batch, precision=described.precision),
        pool=given.pool,
        strategy=strategy,
        runtime=find_runtime(given.runtime or described.runtime),
        seconds=seconds,
        peak_bytes=peak,
        reported=reported,
        stage=stage,
    )
    return run, pace


def _missing(log: Log, what: str, flag: str) -> InputError:
    return InputError(f"{log.path}: the log does not state {what}; give {flag}")


def _model(log: Log, described: Described, seq_length: int) -> Model:
    if described.shape is None:
        raise InputError(f"{log.path}: {described.why_no_shape}; give --model")
    shape = described.shape
    if not shape.vocab:
        raise InputError(f"{log.path}: the log does not state the vocabulary; give --model")
    return assemble(log.path, "log", Architecture.DECODER, shape)


def _peak(log: Log, gpus: int, pp: int) -> tuple[float | None, ReportedMemory, int | None]:
    """The highest reported peak, what it counts, and its stage if not all stages reported."""
    kind = ReportedMemory.ALLOCATED if log.allocated else ReportedMemory.RESERVED
    peaks = log.allocated or log.reserved
    if not peaks:
        return None, kind, None
    rank = max(peaks, key=peaks.__getitem__)
    ranks_of_stage = max(gpus // pp, 1) if log.program is LogFormat.MEGATRON else 1
    stages = {min(member // ranks_of_stage, pp - 1) for member in peaks}
    if log.program is LogFormat.TORCHTITAN or len(stages) == pp:
        return peaks[rank], kind, None
    return peaks[rank], kind, min(rank // ranks_of_stage, pp - 1)


_DESCRIBE: Final = {
    LogFormat.MEGATRON: describe_megatron,
    LogFormat.TORCHTITAN: describe_torchtitan,
    LogFormat.NANOTRON: describe_nanotron,
}
