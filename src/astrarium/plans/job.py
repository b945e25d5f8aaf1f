"""A plan as exporters and runtimes read it: its workload, its strategy, and nodes in rank order.

Everything comes from the document, so a plan file is enough on any machine. What was edited by
hand is checked again: the degrees, the stages, where they lie, the runtime's own rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import to_builtins

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cluster import Cluster, Pool
from astrarium.errors import InputError
from astrarium.model.adapters import DEFAULT_RANK, Adapters, default_modules, for_runtime
from astrarium.model.blocks import Model
from astrarium.model.frozen import Beside, Role, with_frozen_front
from astrarium.model.lengths import Lengths
from astrarium.model.workload import Workload
from astrarium.plans.document import Plan, PlanDocument, WorkloadPart, check_names, plan_of_rank
from astrarium.strategy.types import Strategy
from astrarium.value import Value


class NodeGroup(Value, frozen=True):
    """Nodes that are alike, next to each other in the order of ranks."""

    pool: Pool
    nodes: int
    gpus_per_node: int  # in use on each of them: one process each

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


class Job(Value, frozen=True):
    document: PlanDocument
    plan: Plan
    workload: Workload
    cluster: Cluster
    strategy: Strategy
    nodes: tuple[NodeGroup, ...]

    @property
    def model(self) -> Model:
        return self.workload.model

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of the config.json or model file behind the model."""
        return self.model.config or {}

    @property
    def cluster_in_use(self) -> Cluster:
        """The pools that the plan lies on: others of a market or a cluster do not touch it."""
        return _part_in_use(self.cluster, self.strategy)

    @property
    def runtime(self) -> Runtime:
        return runtime_of(self.plan)

    @property
    def world_size(self) -> int:
        return self.strategy.gpus

    @property
    def num_nodes(self) -> int:
        return sum(group.nodes for group in self.nodes)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types in use, in the order of ranks."""
        return tuple(dict.fromkeys(group.pool.gpu.name for group in self.nodes))


def runtime_of(plan: Plan) -> Runtime:
    """The runtime that priced a plan; Megatron, if nothing runs it."""
    return find_runtime(*plan.runtimes[:1])


def job_of(document: PlanDocument, rank: int = 1, where: str = "the plan") -> Job:
    """The plan of a rank with all that it refers to; InputError names what does not fit."""
    from astrarium.strategy.document import strategy_from_dict, strategy_to_dict

    check_names(document, where)
    plan = plan_of_rank(document, rank, where)
    workload = _workload(document.workload, plan, where)
    cluster = Cluster.from_dict(to_builtins(document.cluster))
    strategy = strategy_from_dict(
        strategy_to_dict(plan.strategy),
        where=where,
        gpus=plan.num_gpus,
        global_batch=workload.global_batch,
        layers=workload.model.num_layers,
    )
    _check_gpus(plan, strategy, where)
    _check(workload, cluster, strategy, runtime_of(plan), where)
    nodes = tuple(nodes_of(plan, cluster))
    _check_nodes(nodes, where)
    return Job(document, plan, workload, cluster, strategy, nodes)


def _workload(part: WorkloadPart, plan: Plan, where: str) -> Workload:
    length, batch, tokens = part.seq_length, part.global_batch, part.tokens
    precision = plan.precision or part.precision
    model, kind = _model(part, where), part.optimizer
    if part.freeze is not None:
        model = with_frozen_front(model, part.freeze)
    adapters = None
    if plan.finetune is not None:
        rank = part.lora_rank or DEFAULT_RANK
        modules = part.lora_modules or default_modules(model)
        stated = Adapters(plan.finetune, rank, modules)
        adapters = for_runtime(model, stated, runtime_of(plan).name)
    asked = part.numerics, part.expert_imbalance, part.expert_messages, kind, adapters
    lengths = None if part.lengths is None else Lengths(part.lengths, packed=part.packed)
    beside = _beside(part, where)
    return Workload(model, length, batch, tokens, precision, *asked, lengths, beside)


def _beside(part: WorkloadPart, where: str) -> Beside | None:
    from astrarium.model.load import load_model, model_of_config

    role = Role.REFERENCE if part.teacher is None else Role.TEACHER
    name = part.reference if part.teacher is None else part.teacher
    if name is None:
        return None
    if part.frozen_config is None:
        return Beside(load_model(name), role, name)
    read = f"{where}: workload.frozen_config"
    return Beside(model_of_config(part.frozen_config, name, read), role, name)


def _model(part: WorkloadPart, where: str) -> Model:
    """The model of the plan; it must still be the one that was planned."""
    from astrarium.model.load import load_model, model_of_config
    from astrarium.model.prediction import with_predictions

    if part.model_config is None:
        try:
            model = load_model(part.model_as_given)
        except InputError as error:
            raise InputError(
                f"{where}: it does not hold the model's config, and {error}; make the plan again"
            ) from None
    else:
        model = model_of_config(part.model_config, part.model, f"{where}: workload.model_config")
    model = with_predictions(model, part.mtp_layers)
    for what, now, then in (
        ("parameters", model.parameters, part.parameters),
        ("layers", model.num_layers, part.layers),
    ):
        if now != then:
            raise InputError(
                f"{where}: workload.{what} is {then:,}, but the model has {now:,}: it is not the"
                " one that was planned; make the plan again"
            )
    return replace(model, name=part.model)


def _check_gpus(plan: Plan, strategy: Strategy, where: str) -> None:
    """A plan uses all the GPUs that it names."""
    if strategy.gpus == plan.num_gpus:
        return
    raise InputError(
        f"{where}: tp {strategy.tp} x pp {strategy.pp} x cp {strategy.cp} x dp {strategy.dp} ="
        f" {strategy.gpus} GPUs, but {plan.num_gpus} are given"
    )


def _check(
    workload: Workload, cluster: Cluster, strategy: Strategy, runtime: Runtime, where: str
) -> None:
    """Refuse what was edited into something that neither Megatron nor its own runtime takes."""
    from astrarium.cost.mixed import ClusterModel
    from astrarium.search.plan import chunk_bounds_of
    from astrarium.search.refusals import why_refused
    from astrarium.strategy.placement import placement

    try:
        placement(strategy, cluster)
        used = _part_in_use(cluster, strategy)
        model = ClusterModel(workload, used, runtime)
        chunk_bounds_of(model, strategy)
        takers = dict.fromkeys(("megatron", runtime.rules or "megatron"))
        refused = [why_refused(workload, used.pools, strategy, taker) for taker in takers]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if all(refused):
        reasons = "; ".join(refused[0])
        raise InputError(f"{where}: Megatron would refuse this strategy: {reasons}")


def _part_in_use(cluster: Cluster, strategy: Strategy) -> Cluster:
    """All pools where the stages name none."""
    names = strategy.gpus_of_pools()
    return cluster.part([p for p in cluster.pools if p.name in names]) if names else cluster


def nodes_of(plan: Plan, cluster: Cluster) -> Iterator[NodeGroup]:
    """Pools in the order of the pipeline, whole nodes first; the last node may be used in part."""
    for name, gpus in _runs(plan, cluster):
        pool = cluster.pool(name)
        whole, rest = divmod(gpus, pool.gpus_per_node)
        if whole:
            yield NodeGroup(pool, whole, pool.gpus_per_node)
        if rest:
            yield NodeGroup(pool, 1, rest)


def _runs(plan: Plan, cluster: Cluster) -> list[tuple[str, int]]:
    """Pools and their GPUs in the order of ranks; a pool may come again behind another."""
    if not plan.pools:
        return [(cluster.pools[0].name, plan.num_gpus)]
    runs: list[tuple[str, int]] = []
    first = [stage for stage in plan.strategy.stages if stage.chunk == 0]
    held = [stage.pools for stage in sorted(first, key=lambda stage: stage.pipeline_rank)]
    for pools, following in zip(held, [*held[1:], {}], strict=True):
        last = runs[-1][0] if runs else ""
        # A stage names its pools in the order of the cluster, which need not be that of the
        # pipeline: the pool of the ranks before it comes first, that of the ranks behind it last.
        for name in sorted(pools, key=lambda name: (name != last, name in following)):
            before = runs.pop()[1] if runs and runs[-1][0] == name else 0
            runs.append((name, before + pools[name]))
    return runs


def _check_nodes(nodes: Sequence[NodeGroup], where: str) -> None:
    """Ranks of a node are neighbours; a pool that comes again must not need a node twice."""
    for pool in {group.pool.name: group.pool for group in nodes}.values():
        needed = sum(group.nodes for group in nodes if group.pool.name == pool.name)
        if needed > pool.nodes:
            raise InputError(
                f"{where}: stages on pool {pool.name} are not neighbours and share a node. The"
                f" ranks of that node would have to be apart ({needed} nodes instead of"
                f" {pool.nodes}); put the stages of a pool next to each other"
            )
