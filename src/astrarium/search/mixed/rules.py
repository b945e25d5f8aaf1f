"""Rules about strategies on several pools.

A rule that reads the pool (GPU, memory, node, domain) is asked once for each pool in use, and
rejects a strategy if it is true for any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from astrarium.arrays import Bools, Ints
from astrarium.cluster import Cluster
from astrarium.model.workload import Workload
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.mixed.space import MixedSpace
from astrarium.search.outcome import Rejection
from astrarium.search.rule_filter import CausedRules, Lost, RejectingRule, RuleSteps, apply_rules
from astrarium.strategy.columns import SPLITS, Degrees, Options
from astrarium.strategy.types import LayerSplit

POOL_FIELDS = frozenset(
    {
        "gpu",
        "gpus_per_node",
        "nvlink_domain",
        "nvlink",
        "compute_capability",
        "memory_bytes",
        "nodes",
    }
)
_FREE = SPLITS.index(LayerSplit.FREE)


class MixedRules:
    """Applies rules at the first step that knows their fields, on the pools in use."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        space: MixedSpace,
        runtime_rules: Sequence[RejectingRule],
        user_rules: Sequence[RejectingRule],
    ) -> None:
        rules = [(rule, Rejection.RUNTIME) for rule in runtime_rules]
        rules += [(rule, Rejection.RULE) for rule in user_rules]
        self._space, self._cluster = space, cluster
        self._constants = [constant_fields(workload, pool) for pool in cluster.pools]
        self._steps = RuleSteps(rules, space.expanded_overlaps)
        self._of_pools = [r for r in self._steps.of_degrees if r[0].names & POOL_FIELDS]
        self.single_chunks_wait = _single_chunks_wait([rule for rule, _ in rules])
        self._of_options: dict[tuple[int, tuple[int, ...]], tuple[Options, Lost]] = {}

    def of_degrees(self, degrees: Degrees, counts: Ints) -> tuple[Bools, Lost]:
        """Those that can be decided before the pools are chosen."""
        rules = [r for r in self._steps.of_degrees if not r[0].names & POOL_FIELDS]
        return apply_rules(rules, Fields(self._constants[0], Rows(degrees)), counts)

    def options(
        self, degrees: Degrees, virtual: Ints, chunk_layers: Ints, gpus: Sequence[int]
    ) -> tuple[Ints, Options, Lost]:
        """The rows of degrees on chosen GPUs that rules leave, with their options.

        Overlap is switched on as far as permitted.
        """
        pools = tuple(pool for pool, taken in enumerate(gpus) if taken)
        constants = self._on_pools(gpus, pools)
        lost: Lost = Counter()
        per_row = []
        for chunk in chunk_layers.tolist():
            options, refused = self._valid(chunk, pools, constants)
            per_row.append(options)
            lost += refused
        counts = np.array([len(options) for options in per_row])
        layout = Rows(degrees, virtual, np.full(len(degrees), _FREE))
        early = [*self._of_pools, *self._steps.of_layouts]
        alive, refused = _apply_to_all(early, constants, layout, counts)
        lost += refused
        kept = np.flatnonzero(alive)
        row = np.repeat(kept, counts[kept])
        if not len(row):
            return row, per_row[0].take(row), lost
        at_hand = Rows(
            degrees.take(row),
            virtual[row],
            np.full(len(row), _FREE),
            Options.joined([per_row[i] for i in kept]),
        )
        ones = np.ones(len(row), np.int64)
        for switch, rules in self._steps.of_switches.items():
            permitted, _ = _apply_to_all(rules, constants, at_hand, ones)
            changed: dict[str, Any] = {switch: permitted}
            at_hand = replace(at_hand, options=replace(at_hand.options, **changed))
        passed, refused = _apply_to_all(self._steps.mixed, constants, at_hand, ones)
        return row[passed], at_hand.options.take(passed), lost + refused

    def _on_pools(self, gpus: Sequence[int], pools: Sequence[int]) -> list[dict[str, Any]]:
        nodes = sum(-(-gpus[pool] // self._cluster.pools[pool].gpus_per_node) for pool in pools)
        return [self._constants[pool] | {"nodes": nodes} for pool in pools]

    def _valid(
        self, chunk_layers: int, pools: tuple[int, ...], constants: list[dict[str, Any]]
    ) -> tuple[Options, Lost]:
        """Options that no rule about options alone rejects."""
        key = chunk_layers, pools
        if key not in self._of_options:
            options = self._space.options(chunk_layers)
            ones = np.ones(len(options), np.int64)
            alive, lost = _apply_to_all(
                self._steps.of_options, constants, Rows(options=options), ones
            )
            self._of_options[key] = options.take(alive), lost
        return self._of_options[key]


def _single_chunks_wait(rules: Sequence[RejectingRule]) -> bool:
    """Whether a rule about nothing else forbids transfers of single chunks to overlap."""
    columns = {"overlap_p2p": np.array([True]), "virtual_stages": np.array([1])}
    return any(rule.names <= columns.keys() and rule.rejects(columns).all() for rule in rules)


def _apply_to_all(
    rules: CausedRules, constants: list[dict[str, Any]], rows: Rows, counts: Ints
) -> tuple[Bools, Lost]:
    """Rules that read the pool once for each, the others once."""
    alive, lost = np.ones(len(counts), bool), Counter[tuple[Rejection, str]]()
    for number, of_pool in enumerate(constants):
        asked = [r for r in rules if number == 0 or r[0].names & (POOL_FIELDS - {"nodes"})]
        passed, refused = apply_rules(asked, Fields(of_pool, rows), np.where(alive, counts, 0))
        alive &= passed
        lost += refused
    return alive, lost
