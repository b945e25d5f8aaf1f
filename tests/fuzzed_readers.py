"""The readers of everything that users write, each as a function of text: what tools/fuzz.py feeds.

A reader may return or raise `AstrariumError`; anything else is a bug. `seeds` are texts that it
accepts, or nearly accepts, to start from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
CONFIGS: Final = ROOT / "tests/configs/examples"
CORPUS: Final = ROOT / "benchmarks/corpus"
EXAMPLES: Final = ROOT / "examples"
GOLDEN: Final = ROOT / "tests/export/golden"


class FuzzedReader(NamedTuple):
    """`read` gets a text and a folder in which it may write it; `seeds` gives texts."""

    read: Callable[[str, Path], object]
    seeds: Callable[[], Iterator[str]]


def _through_file(name: str, read: Callable[[Path], object]) -> Callable[[str, Path], object]:
    def reader(text: str, folder: Path) -> object:
        path = folder / name
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        return read(path)

    return reader


def _texts(*paths: Path) -> Callable[[], Iterator[str]]:
    return lambda: (path.read_text(encoding="utf-8") for path in paths)


def _below(folder: Path, *suffixes: str) -> Callable[[], Iterator[str]]:
    return _texts(*(path for path in sorted(folder.rglob("*")) if path.suffix in suffixes))


def _cluster(path: Path) -> object:
    from astrarium.cluster import load_cluster

    return load_cluster(path)


def _model(path: Path) -> object:
    from astrarium.model import load_model

    model = load_model(str(path))
    return model.parameters, model.left_out


def _strategy(path: Path) -> object:
    return _strategy_text(str(path), path.parent)


def _strategy_text(text: str, folder: Path) -> object:
    from astrarium.strategy.document import read_strategy

    return read_strategy(text, gpus=64, global_batch=512, layers=80)


def _plan(path: Path) -> object:
    from astrarium.plans.document import load_document
    from astrarium.report.explain.terms import explain
    from astrarium.report.plan.text import plan_report

    document = load_document(path)
    said = [explain(plan, document.cluster) for plan in document.plans]
    return said and list(plan_report(document, width=100))


def _program(text: str, folder: Path) -> object:
    """Programs with a right checksum, so that what they hold is read."""
    from astrarium.spmd.program.document import CHECKSUM, checksum_of, load_program

    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        data = {key: content[key] for key in content if key not in ("schema", CHECKSUM)}
        text = json.dumps({**content, CHECKSUM: checksum_of(data)})
    path = folder / "program.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return load_program(path)


def _cluster_profile(path: Path) -> object:
    from astrarium.calibrate.learn.profile import load_profile

    return load_profile(path)


def _device_profile(text: str, folder: Path) -> object:
    from astrarium.calibrate.fit.profile import read_profile

    path = folder / "profile.parquet"
    path.write_bytes(text.encode("latin-1", errors="replace"))
    profile = read_profile(path)
    return profile.device, profile.tuning


def _journal(path: Path) -> object:
    from astrarium.calibrate.measure.journal import read_journal

    return read_journal(path).done


def _logs(path: Path) -> object:
    from astrarium.calibrate.learn.logs import pace_of, read_logs

    return [pace_of(log) for log in read_logs(path)]


def _prices(path: Path) -> object:
    from astrarium.catalog.price_files import read_price_file

    return read_price_file(path)


def _catalog(path: Path) -> object:
    from astrarium.catalog import overrides
    from astrarium.catalog.gpus import gpus

    os.environ[overrides.CATALOG_VARIABLE] = str(path)
    try:
        return [overrides.entries(one) for one in overrides.Section], gpus()
    finally:
        del os.environ[overrides.CATALOG_VARIABLE]


def _table(path: Path) -> object:
    from astrarium.validate.table import read_table

    return read_table(path)


def _sweep(path: Path) -> object:
    from astrarium.sweep.scenarios import read_sweep

    return read_sweep(path)


def _sweep_rows(text: str, folder: Path) -> object:
    from astrarium.report.sweep import sweep_document
    from astrarium.sweep.folder import SweepFolder

    path = folder / "rows.parquet"
    path.write_bytes(text.encode("latin-1", errors="replace"))
    return sweep_document(SweepFolder.there(path).rows(), ("gpus", None))


def _trace(path: Path) -> object:
    from astrarium.operations.traces import read_trace

    return read_trace(path).hours


def _launch(text: str, folder: Path) -> object:
    from astrarium.configs.detect import read_sent

    return read_sent(text, "train.sh")


def _config(name: str) -> Callable[[str, Path], object]:
    def reader(text: str, folder: Path) -> object:
        from astrarium.configs.detect import read_sent

        return read_sent(text, name)

    return reader


def _rule(text: str, folder: Path) -> object:
    import numpy as np

    from astrarium.search.rules import user_rules
    from astrarium.strategy.validity import COLUMNS

    (rule,) = user_rules([text])
    return rule.rejects({name: np.ones(2, int) for name in COLUMNS})


def _flags(text: str, folder: Path) -> object:
    """Lines `name=value` as a command or a call would give them."""
    from astrarium.api import flags

    given: dict[str, Any] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name in flags.PLAN_FLAGS and not flags.PLAN_FLAGS[name].is_file:
            several = flags.PLAN_FLAGS[name].several
            given[name] = [*given.get(name, ()), value] if several else value
    return flags.read(flags.PLAN_FLAGS, given)


def _request(kind: str) -> Callable[[str, Path], object]:
    """The body of a request: its shape, then its answer; one of `plan` is only read."""

    def reader(text: str, folder: Path) -> object:
        from pydantic import ValidationError

        from astrarium.errors import InputError
        from astrarium.web import answers, reply

        try:
            checked = _bodies()[kind].model_validate_json(text).model_dump(exclude_unset=True)
        except (ValidationError, RecursionError) as error:
            raise InputError(str(error)) from None
        if kind == "plan":
            return answers._plan_asked(checked)
        answer = answers.answer(kind, {"zipped": True, **checked})
        if answer.status != reply.OK:
            raise InputError(json.loads(answer.content)["error"]["message"])
        return answer

    return reader


@cache
def _bodies() -> Mapping[str, Any]:
    from astrarium.web import flags

    return {
        "plan": flags.PlanRequest,
        "predict": flags.PredictRequest,
        "review": flags.ReviewRequest,
        "explain": flags.Chosen,
        "replan": flags.ReplanRequest,
        "stragglers": flags.StragglersRequest,
        "export": flags.ExportRequest,
    }


def _document_seeds(**more: object) -> Callable[[], Iterator[str]]:
    """Bodies that hold a plan document."""
    return lambda: (
        json.dumps({"document": json.loads(text), "rank": 1, **more}) for text in _plan_seeds()
    )


def _plan_seeds() -> Iterator[str]:
    import astrarium

    plans = astrarium.predict("llama-2-7b", gpus="h100:8", strategy="tp=2,pp=2", global_batch=64)
    yield json.dumps(plans.to_dict())


def _program_seeds() -> Iterator[str]:
    import hand_programs

    from astrarium.spmd.program.document import to_dict

    yield json.dumps(to_dict(hand_programs.document()))


def _profile_seeds() -> Iterator[str]:
    from tempfile import TemporaryDirectory

    from astrarium.calibrate.fit.profile import make_header, write_profile
    from astrarium.calibrate.measure.journal import read_journal

    contents = read_journal(EXAMPLES / "h200.jsonl")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.parquet"
        write_profile(path, make_header(contents), contents.rows[:3])
        yield path.read_bytes().decode("latin-1")


def _sweep_rows_seeds() -> Iterator[str]:
    from tempfile import TemporaryDirectory

    from astrarium.sweep.folder import SweepFolder
    from astrarium.sweep.rows import answered
    from astrarium.sweep.scenarios import SweepScenario

    question = {"model": "gpt2-small", "gpus": "a100:1", "global_batch": 8, "top": 1}
    with TemporaryDirectory() as folder:
        SweepFolder(Path(folder)).add(answered(SweepScenario("a", question)))
        yield next(Path(folder).glob("*.parquet")).read_bytes().decode("latin-1")


def _cluster_profile_seeds() -> Iterator[str]:
    factors = {"compute": 1.1, "attention": 0.9}
    yield json.dumps(
        {
            "schema": "astrarium.tuning/1",
            "date": "2026-11-18",
            "astrarium": "0.1.0",
            "gpu": "H100-SXM5-80GB",
            "runtime": "megatron",
            "origin": ["mine.csv"],
            "factors": factors,
            "learned": [],
            "time_error": None,
            "memory_error": None,
            "set_aside": [],
        }
    )


def _table_seeds() -> Iterator[str]:
    from measured import cells, table_text

    yield table_text(cells(), cells())


def _journal_seeds() -> Iterator[str]:
    lines = (EXAMPLES / "h200.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    yield "".join(lines[:8])


def _log_seeds() -> Iterator[str]:
    import training_logs

    yield training_logs.megatron_log()
    yield training_logs.torchtitan_log()
    yield training_logs.nanotron_log()


def _written(*texts: str) -> Callable[[], Iterator[str]]:
    return lambda: iter(texts)


_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
_EXPERTS = {
    **_CONFIG,
    "model_type": "deepseek_v3",
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
_HYBRID = {
    **_CONFIG,
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M*-M-",
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
}
_PLAN = {"gpus": "h100:8", "seq_length": 2048, "global_batch": 16}
_PREDICT = {**_PLAN, "model": "llama-2-7b", "strategy": "tp=2,pp=2"}
_POOLS = [{"type": "h100", "count": 8, "usd_per_gpu_hour": 2.5}, {"type": "a100", "count": "8"}]
_SCRIPT = "#!/bin/bash\nTP=${1:-2}\ntorchrun --nproc_per_node 8 pretrain_gpt.py"
_OPTIONS = " --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024"
_STRATEGY = """tp: 2
pp: 4
virtual_stages: 2
micro_batch: 1
recompute: {granularity: full, method: uniform, layers: 1}
zero_stage: 1
overlap: {grad_reduce: true}
stages:
  - {layers: [0, 40], pools: {h100: 32}}
"""
_CATALOG = """gpus:
  H100-SXM5-80GB: {usd_per_gpu_hour: 2.10}
  my-gpu: {like: H100-SXM5-80GB, memory_gib: 96}
instances:
  our-node: {gpu: h100, gpus_per_node: 8, inter_node_gbits_per_s: 1600, usd_per_hour: 16.80}
models:
  mine: {config: {model_type: llama, hidden_size: 512, num_hidden_layers: 4,
    num_attention_heads: 8, intermediate_size: 1024, vocab_size: 32000}}
"""
_SWEEP = """model: [llama-2-7b, llama-3-8b]
gpus: [h100:8, a100:16]
global_batch: 64
scenarios:
  - {seq_length: [2048, 4096]}
  - {seq_length: 8192, price: [h100=2.5]}
"""
_FLAGS = """gpus=h100:3x4,a100:16
seq_length=4k
global_batch=1024
tokens=2T
deadline=30 days
budget=1.5M
price=h100=2.50
rule=tp > 8
market=aws,gcp
precision=fp8
fit_chance=99 %
memory_margin=2GiB
"""
_TRACE = """hours,gpu,gpus,usd_per_gpu_hour
0,h100,64,2.5
0,a100,32,1.2
6.5,h100,48,
24,h100,64,2.75
"""
_RULES = (
    "$tp > 8 && $pp == 1",
    '$recompute_granularity == "full" && $zero_stage == 3',
    "$micro_batch * $seq_length > 16k",
    '"mlp" in $recompute_modules || $sequence_parallel == false && ($tp - 1) / $pp % 2 > 1e0',
)

READERS: Final[Mapping[str, FuzzedReader]] = {
    "cluster": FuzzedReader(
        _through_file("cluster.yaml", _cluster),
        _texts(*(CORPUS / f"{name}.yaml" for name in ("slow_link", "three_pools", "workstations"))),
    ),
    "model": FuzzedReader(
        _through_file("model.yaml", _model), _texts(*sorted(EXAMPLES.glob("*.yaml")))
    ),
    "hf-config": FuzzedReader(
        _through_file("config.json", _model),
        _written(*map(json.dumps, (_CONFIG, _EXPERTS, _HYBRID))),
    ),
    "strategy": FuzzedReader(_through_file("strategy.yaml", _strategy), _written(_STRATEGY)),
    "strategy-text": FuzzedReader(
        _strategy_text, _written("tp=2,pp=4,vpp=2,mbs=1,zero=1,recompute=full,cp=1,ep=1")
    ),
    "plan": FuzzedReader(_through_file("plan.json", _plan), _plan_seeds),
    "program": FuzzedReader(_program, _program_seeds),
    "profile": FuzzedReader(
        _through_file("profile.json", _cluster_profile), _cluster_profile_seeds
    ),
    "device-profile": FuzzedReader(_device_profile, _profile_seeds),
    "journal": FuzzedReader(_through_file("times.jsonl", _journal), _journal_seeds),
    "log": FuzzedReader(_through_file("train.log", _logs), _log_seeds),
    "prices": FuzzedReader(_through_file("prices.csv", _prices), _texts(CORPUS / "contract.csv")),
    "catalog": FuzzedReader(_through_file("catalog.yaml", _catalog), _written(_CATALOG)),
    "table": FuzzedReader(_through_file("table.csv", _table), _table_seeds),
    "sweep": FuzzedReader(_through_file("sweep.yaml", _sweep), _written(_SWEEP)),
    "sweep-rows": FuzzedReader(_sweep_rows, _sweep_rows_seeds),
    "trace": FuzzedReader(_through_file("trace.csv", _trace), _written(_TRACE)),
    "script": FuzzedReader(_launch, _texts(*sorted(CONFIGS.glob("*.sh")))),
    "config-yaml": FuzzedReader(_config("train.yaml"), _below(CONFIGS, ".yaml")),
    "config-nodes": FuzzedReader(
        _config("job.yaml"), _texts(*GOLDEN.rglob("trainjob.yaml"), *GOLDEN.rglob("task.yaml"))
    ),
    "config-json": FuzzedReader(
        _config("train.json"), _texts(*CONFIGS.glob("*.json"), *GOLDEN.rglob("*.json"))
    ),
    "config-toml": FuzzedReader(_config("train.toml"), _below(CONFIGS, ".toml")),
    "config-python": FuzzedReader(_config("train.py"), _texts(*GOLDEN.rglob("planned.py.txt"))),
    "rule": FuzzedReader(_rule, _written(*_RULES)),
    "flags": FuzzedReader(_flags, _written(_FLAGS)),
    "request-plan": FuzzedReader(
        _request("plan"),
        _written(
            json.dumps({**_PLAN, "model": "llama-2-7b", "price": ["h100=2"], "top": 3}),
            json.dumps({"global_batch": 8, "pools": _POOLS, "config": _CONFIG}),
        ),
    ),
    "request-predict": FuzzedReader(_request("predict"), _written(json.dumps(_PREDICT))),
    "request-review": FuzzedReader(
        _request("review"),
        _written(json.dumps({"text": _SCRIPT + _OPTIONS, "gpus": "h100:8", "global_batch": 16})),
    ),
    "request-explain": FuzzedReader(_request("explain"), _document_seeds()),
    "request-replan": FuzzedReader(
        _request("replan"), _document_seeds(lost={"h100": 4}, horizon="2h", slowed=["stage=0:1.2"])
    ),
    "request-stragglers": FuzzedReader(
        _request("stragglers"), _document_seeds(stragglers="nodes=1%:1.5", repair_time="4h")
    ),
    "request-export": FuzzedReader(_request("export"), _document_seeds(target="megatron")),
}
