"""A*: the cheapest path through the states of a network, prices weighted into one number."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from astrarium.arrays import Floats
from astrarium.spmd.heuristic import Chains
from astrarium.spmd.moves import Move, Moves, State
from astrarium.value import Value


class Path(Value, frozen=True):
    """Moves from the first place to the last; `total` is their weighted price."""

    moves: tuple[Move, ...]
    total: float
    expanded: int


class Guide:
    """Moves and the bound, both under the same weights."""

    def __init__(self, moves: Moves, weights: Floats) -> None:
        self.moves = moves
        self.weights = weights
        self.chains = Chains(moves.network, weights)
        self._hanging = [
            self.chains.hanging(position, stage.live) for position, stage in enumerate(moves.stages)
        ]
        self._known: dict[int, list[tuple[float, Move]]] = {}

    def to_go(self, position: int, state: State) -> float:
        """At least this is still to be paid."""
        chains = self.chains
        total = chains.unstarted[position]
        if position < len(self.moves.stages):
            live = self.moves.stages[position].live
            for value, there, hangs in zip(live, state, self._hanging[position], strict=True):
                if hangs:
                    total += chains.of_value(value, there)
        return total

    def priced(self, position: int, state: State) -> list[tuple[float, Move]]:
        """The moves from a state: for each result the cheapest under these weights."""
        moves = self.moves.of(position, state)
        found = self._known.get(id(moves))
        if found is None:
            best: dict[tuple[int, ...], tuple[float, Move]] = {}
            prices = np.array([move.price for move in moves])
            totals = prices.reshape(len(moves), self.moves.components) @ self.weights
            for total, move in zip(totals.tolist(), moves, strict=True):
                if move.leaves not in best or total < best[move.leaves][0]:
                    best[move.leaves] = (total, move)
            found = self._known[id(moves)] = list(best.values())
        return found


def cheapest_path(guide: Guide, limit: int | None = None) -> Path | None:
    """The cheapest path of all; None if there is none or the limit of states was reached.

    Of equal bounds the state further on is looked at first, then the one found first.
    """
    moves = guide.moves
    end = len(moves.stages)
    bound = guide.to_go(0, ())
    heap: list[tuple[float, int, int, float, State]] = [(bound, 0, 0, 0.0, ())]
    best: list[dict[State, tuple[float, State, Move | None]]] = [{} for _ in range(end + 1)]
    best[0][()] = (0.0, (), None)
    looked_at: list[list[tuple[float, State]]] = [[] for _ in range(end + 1)]
    tickets = expanded = 0
    while heap:
        _, depth, _, spent, state = heapq.heappop(heap)
        position = -depth
        if best[position][state][0] < spent or _is_dominated(
            guide, position, state, spent, looked_at[position]
        ):
            continue
        expanded += 1
        if position == end:
            return Path(tuple(_trace(best, end, state)), spent, expanded)
        if limit is not None and expanded > limit:
            return None
        looked_at[position].append((spent, state))
        following = best[position + 1]
        for price, move in guide.priced(position, state):
            after = moves.after(position, state, move)
            total = spent + price
            if after in following and following[after][0] <= total:
                continue
            to_go = guide.to_go(position + 1, after)
            if to_go == np.inf:
                continue
            following[after] = (total, state, move)
            tickets += 1
            heapq.heappush(heap, (total + to_go, depth - 1, tickets, total, after))
    return None


def _is_dominated(
    guide: Guide, position: int, state: State, spent: float, others: list[tuple[float, State]]
) -> bool:
    """Whether a state looked at before has all these layouts and was no dearer."""
    if not others:
        return False
    ways = guide.moves.network.ways
    masks = [ways[value].masks for value in guide.moves.stages[position].live]
    for paid, other in others:
        if paid <= spent and all(
            not mask[mine] & ~mask[its] for mask, mine, its in zip(masks, state, other, strict=True)
        ):
            return True
    return False


def _trace(
    best: list[dict[State, tuple[float, State, Move | None]]], end: int, state: State
) -> Iterator[Move]:
    found: list[Move] = []
    for position in range(end, 0, -1):
        _, state, move = best[position][state]
        assert move is not None  # only the start has none
        found.append(move)
    return reversed(found)
