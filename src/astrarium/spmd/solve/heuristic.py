"""A bound on what is still to be paid: chains through the graph, each solved exactly.

Every place hangs on at most one value that it reads, and at most one place hangs on a value. So
places form chains (trees, where a place makes several values). Along a chain the layouts are
chosen exactly, from its end backwards; what other values than the one it hangs on cost to convert
is left out. Each place's price and each conversion is counted in one chain at most, so the sum
over chains never exceeds the true price; and a step of the search never lowers it by more than
the step costs, so no state has to be looked at twice.
"""

from __future__ import annotations

import numpy as np

from astrarium.arrays import Floats
from astrarium.spmd.solve.parts import Part, PartNetwork
from astrarium.spmd.solve.ways import Ways


class Chains:
    """The bound for a network whose prices are weighted into one number."""

    def __init__(self, network: PartNetwork, weights: Floats) -> None:
        self._places = network.places
        self._weights = weights
        self._follower, roots = _hang(network)  # by value: the place that hangs on it
        self._column = {
            value: self._places[position].reads.index(value)
            for value, position in self._follower.items()
        }
        self._own: dict[int, Floats] = {}  # by part: its prices, weighted
        self._bridges: dict[tuple[int, int, int], Floats] = {}
        self._rest: list[Floats] = [np.zeros(0)] * len(self._places)
        self._known: dict[tuple[int, int], float] = {}
        self.unstarted = [0.0] * (len(self._places) + 1)
        for position in reversed(range(len(self._places))):
            rest = self._to_go(position)
            self._rest[position] = rest
            start = float(rest.min(initial=np.inf)) if roots[position] else 0.0
            self.unstarted[position] = self.unstarted[position + 1] + start

    def is_hung_on(self, value: int, position: int) -> bool:
        """Whether a place from this position on hangs on a value."""
        return self._follower.get(value, -1) >= position

    def of_value(self, value: int, there: int) -> float:
        """The price of the chain that hangs on a value, of which these layouts are there."""
        key = (value, there)
        found = self._known.get(key)
        if found is None:
            position = self._follower[value]
            part = self._places[position].part
            bridge = self._bridge(part, self._column[value], there)
            found = float((bridge + self._rest[position]).min(initial=np.inf))
            self._known[key] = found
        return found

    def _to_go(self, position: int) -> Floats:
        """By option of a place: its price and that of all that hangs on what it makes."""
        place = self._places[position]
        part = place.part
        if id(part) not in self._own:
            self._own[id(part)] = part.prices @ self._weights
        total = self._own[id(part)].copy()
        for column, value in enumerate(place.makes):
            if value in self._follower:
                sets, index = np.unique(part.gives[:, column], return_inverse=True)
                known = np.array([self.of_value(value, there) for there in sets.tolist()])
                total += known[index.reshape(-1)]
        return total

    def _bridge(self, part: Part, column: int, there: int) -> Floats:
        """By option of a part: the least price of the conversions of one value that it reads."""
        key = (id(part), column, there)
        found = self._bridges.get(key)
        if found is None:
            needs, index = np.unique(part.needs[:, column], return_inverse=True)
            prices = [self._way(part.reads[column], there, wanted) for wanted in needs.tolist()]
            found = self._bridges[key] = np.array(prices)[index.reshape(-1)]
        return found

    def _way(self, ways: Ways, there: int, wanted: int) -> float:
        found = ways.covers(there, wanted)
        return min((float(np.dot(way.price, self._weights)) for way in found), default=np.inf)


def _hang(network: PartNetwork) -> tuple[dict[int, int], list[bool]]:
    """Who hangs on every value, and which places hang on none.

    A place takes the value made last of those it reads: values that live long are read by many
    others. Sources come last: their layouts are the easiest to choose.
    """
    maker: dict[int, tuple[bool, int, int]] = {}
    follower: dict[int, int] = {}
    roots = []
    for position, place in enumerate(network.places):
        free = [value for value in place.reads if value not in follower]
        if free:
            follower[max(free, key=maker.__getitem__)] = position
        roots.append(not free)
        for column, value in enumerate(place.makes):
            maker[value] = (bool(place.reads), position, column)
    return follower, roots
