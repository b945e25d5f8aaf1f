"""From a log to a measured run: model, strategy and runtime as the program printed them.

A flag overrides the log, because wrappers print defaults that they change later. An error names the
flag for what neither states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from astrarium.calibrate.learn.logs import Log, LogFormat, Pace, pace_of
from astrarium.calibrate.learn.measurement import Measurement
from astrarium.catalog.runtimes import ReportedMemory, find_runtime
from astrarium.cluster import Pool
from astrarium.configs.megatron.settings import describe_megatron
from astrarium.configs.nanotron import describe_nanotron
from astrarium.configs.recomputation import recompute_of
from astrarium.configs.settings import Described, Settings
from astrarium.configs.torchtitan import describe_torchtitan
from astrarium.errors import InputError
from astrarium.model.blocks import Model
from astrarium.model.build import Architecture, assemble
from astrarium.model.workload import Workload
from astrarium.strategy.document import strategy_from_dict


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
    """The run of a log."""
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
