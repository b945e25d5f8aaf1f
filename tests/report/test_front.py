"""The front as text: plot and table at 80 columns, its marks, near-ties, and what is left out."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from astrarium.cluster import parse_gpus
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.plans.document import ParetoPart, PlanDocument, pareto_of, with_ties
from astrarium.report.front.points import PlottedFront, PointKind, front_of
from astrarium.report.front.table import ROWS, FrontPlot, front_section, front_table, thinned
from astrarium.report.plan.document import document_of
from astrarium.report.plan.text import plan_report
from astrarium.search import planner
from astrarium.search.outcome import Mode
from astrarium.strategy.estimate import Twin

MakeFront = Callable[..., PlanDocument]

PLOT = """\
money for the run, US dollars
     │                                                                     ╎
     │╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╎╌╌╌╌
     │                                                                     ╎
$60k ┤    •···                                                             ╎
     │        ···◆··                                                       ╎
     │              ···                                                    ╎
$50k ┤                 ··•···                                              ╎
     │                       ···•·                                         ╎
     │                            ····                                     ╎
     │                                ·•···                                ╎
$40k ┤                                     ····•···                        ╎
     │                                             ···•···                 ╎
     │                                                    ···•····         ╎
$30k ┤                                                            ···•     ╎
     │                                                                     ╎
     └──────┬─────────────┬──────────────┬──────────────────┬──────────────┬────
           0.5            1              2                  5             10
                                              time of the run, days, logarithmic
◆ chosen   • other plan   ╌ budget $65,000   ╎ deadline 10.0 days
"""

TABLE = """\
plan      time   money GPUs                    cloud    spot tp/pp/dp
──────────────────────────────────────────────────────────────────────────────
   2    11.1 h $60,000 512 x H100              aws           4/4/32   fastest
   1    15.7 h $55,020 328 x H100              aws           4/4/20   chosen
   3    22.2 h $50,454 108 x H100 + 108 x A100 aws, gcp 50 % 4/4/13
   4    31.4 h $46,266 136 x H100              aws           4/4/8
   5    44.4 h $42,426 88 x H100               aws           4/4/5
   6 2.62 days $38,905 28 x H100 + 28 x A100   aws, gcp 50 % 4/4/3
   7 3.70 days $35,676 40 x H100               aws           4/4/2
   8 5.24 days $32,715 24 x H100               aws           4/4/1
   9 7.41 days $30,000 8 x H100 + 8 x A100     aws, gcp 50 % 4/4/1    cheapest
not shown: likely, goodput; 110 columns have room for all, or --json
"""

ASCII = {"│": "|", "┤": "+", "└": "+", "─": "-", "┬": "+", "╌": "-", "╎": ":", "·": ".", "•": "*"}
ASCII |= {"◆": "@", "○": "o"}

THINNED = """\
plan      time   money GPUs                cloud    spot near-ties
───────────────────────────────────────────────────────────────────────────
   2    11.1 h $60,000 512 x H100          aws           of 1      fastest
   1    11.2 h $59,861 504 x H100          aws           12 more   chosen
  26    14.0 h $56,622 384 x H100          aws           11 more
  62    19.6 h $52,088 256 x H100          aws           11 more
  98    27.3 h $47,917 168 x H100          aws           11 more
 134    38.1 h $44,081 112 x H100          aws           11 more
 170 2.22 days $40,551 72 x H100           aws           11 more
 194 2.77 days $38,357 56 x H100           aws           11 more
 218 3.46 days $36,281 40 x H100           aws           11 more
 254 4.84 days $33,376 24 x H100           aws           11 more
 278 6.04 days $31,570 24 x H100           aws           11 more
 300 7.41 days $30,000 8 x H100 + 8 x A100 aws, gcp 50 % of 290    cheapest
not shown: likely, goodput, tp/pp/dp; 117 columns have room for all, or --json
near-ties: plans that the prediction does not tell apart in time and money
288 more of the 300 are not shown; --json and --front FILE have all
"""


def text(parts: Iterable[RenderableType], width: int = 80, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, highlight=False, markup=False)
    for part in parts:
        console.print(part)
    stream.seek(0)
    lines = stream.read().splitlines()
    assert max(map(len, lines), default=0) <= width
    return "".join(f"{line.rstrip()}\n" for line in lines)


def test_the_plot_at_80_columns(make_front: MakeFront) -> None:
    assert text([FrontPlot(front_of(make_front(9)), 80)]) == PLOT


def test_the_plot_of_a_terminal_without_unicode(make_front: MakeFront) -> None:
    shown = text([FrontPlot(front_of(make_front(9)), 80)], encoding="ascii")
    assert shown == "".join(ASCII.get(sign, sign) for sign in PLOT)


def test_colours_add_nothing_that_signs_do_not_say(make_front: MakeFront) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system="standard")
    console.print(FrontPlot(front_of(make_front(9)), 80))
    coloured = stream.getvalue()
    assert "\x1b[1;35m◆" in coloured
    plain = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == PLOT.splitlines()


def test_the_table_at_80_columns(make_front: MakeFront) -> None:
    assert text(front_table(front_of(make_front(9)), 80)) == TABLE


def test_a_wide_table_has_intervals_and_clouds(make_front: MakeFront) -> None:
    shown = text(front_table(front_of(make_front(9)), 120), 120)
    assert "not shown" not in shown
    assert "10.0-12.8 h" in shown
    assert "aws, gcp" in shown


def test_a_long_front_is_thinned_and_says_so(make_front: MakeFront) -> None:
    assert text(front_table(front_of(make_front(300)), 80)) == THINNED


@pytest.mark.parametrize("points", [13, 57, 400])
def test_a_thinned_front_keeps_its_ends_and_the_chosen(make_front: MakeFront, points: int) -> None:
    front = front_of(make_front(points))
    shown = thinned(front, ROWS)
    assert len(shown) == ROWS
    assert [point for point in front.points if point.marks] == [p for p in shown if p.marks]
    assert shown[0] is front.points[0]
    assert shown[-1] is front.points[-1]
    order = [front.points.index(point) for point in shown]
    assert order == sorted(order)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("points", [2, 9, 300])
def test_nothing_overflows(make_front: MakeFront, width: int, points: int) -> None:
    shown = text(front_section(make_front(points), width), width)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert f"Time against money: {points} plans that no other beats in both" in shown


def test_without_prices_gpus_stand_for_the_money(make_front: MakeFront) -> None:
    shown = text(front_section(make_front(6, priced=False), 80))
    assert "Time against GPUs: 6 plans" in shown
    assert "GPUs, as no prices are known, logarithmic" in shown
    assert "fewest GPUs" in shown
    assert "$" not in shown
    assert "budget" not in shown
    assert "deadline 10.0 days" in shown


def test_without_tokens_it_is_an_iteration(make_front: MakeFront) -> None:
    shown = text(front_section(make_front(6, tokens=False), 80))
    assert "money for an iteration, US dollars" in shown
    assert "time of an iteration, ms" in shown
    assert "$0.0522" in shown  # cents alone would make it that of the next
    assert "$0.0455" in shown
    assert "deadline" not in shown


def test_one_point_is_no_choice(make_front: MakeFront) -> None:
    assert "Time against money" not in text(plan_report(make_front(1), 80))
    (point,) = front_of(make_front(1)).points
    assert point.marks == ("chosen",)
    assert "◆" in text([FrontPlot(front_of(make_front(1)), 80)])


def test_a_plan_shows_its_front(make_front: MakeFront, document: PlanDocument) -> None:
    assert "Time against money" in text(plan_report(make_front(4), 80))
    assert len(document.pareto) == 1
    assert "Time against money" not in text(plan_report(document, 80))


def test_limits_far_off_are_named_and_not_drawn(make_front: MakeFront) -> None:
    front = replace(front_of(make_front(9)), budget_usd=9e6, deadline_seconds=1e9)
    shown = text([FrontPlot(front, 80)])
    assert "budget $9M, beyond the plot" in shown
    assert "deadline 11,574 days, beyond the plot" in shown
    assert shown.count("╌") == shown.count("╎") == 1


def tied(front: PlottedFront) -> dict[int, tuple[int | None, int]]:
    return {point.plan.rank: (point.like, point.likes) for point in front.points}


def test_near_ties_are_grouped_under_the_chosen_first(make_front: MakeFront) -> None:
    """Five points of which neighbours are tied: the chosen, second, takes both of its own."""
    made = make_front(5)
    along = sorted(range(5), key=lambda i: made.pareto[i].train_seconds or 0)
    beside = {i: (*along[max(n - 1, 0) : n], *along[n + 1 : n + 2]) for n, i in enumerate(along)}
    parts = [replace(part, tied_with=beside[i]) for i, part in enumerate(made.pareto)]
    front = front_of(replace(made, pareto=tuple(parts)))
    assert tied(front) == {2: (1, 0), 1: (None, 2), 3: (1, 0), 4: (None, 1), 5: (4, 0)}
    kinds = [point.kind for point in front.points]
    assert kinds == [
        PointKind.TIED,
        PointKind.CHOSEN,
        PointKind.TIED,
        PointKind.OTHER,
        PointKind.OTHER,
    ]
    shown = text(front_section(replace(made, pareto=tuple(parts)), 80))
    assert shown.count("of 1") == 2
    assert "○ near-tie of the chosen" in shown


def test_a_chosen_plan_off_the_front_is_not_marked(make_front: MakeFront) -> None:
    made = make_front(4)
    front = front_of(replace(made, pareto=with_ties(made.pareto[1:])))
    assert front.chosen is None
    assert {point.kind for point in front.points} == {PointKind.OTHER}
    assert "chosen" not in text([FrontPlot(front, 80)])


spreads = st.tuples(st.floats(0.5, 1.0), st.floats(1.0, 2.0))


@given(st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 100.0), spreads), max_size=12))
def test_ties_are_mutual_and_within_the_intervals(
    rows: list[tuple[float, float, tuple[float, float]]],
) -> None:
    parts = with_ties(
        [
            ParetoPart(
                {},
                1.0,
                usd,
                seconds,
                index,
                train_seconds_interval=(low * seconds, high * seconds),
                usd_interval=(low * usd, high * usd),
            )
            for index, (seconds, usd, (low, high)) in enumerate(rows)
        ]
    )
    for index, one in enumerate(parts):
        assert index not in one.tied_with
        for number, other in enumerate(parts):
            near = inside(one, other) and inside(other, one)
            assert (number in one.tied_with) == (near and number != index)
            assert (number in one.tied_with) == (index in other.tied_with)


def inside(one: ParetoPart, other: ParetoPart) -> bool:
    assert one.train_seconds is not None
    assert one.usd_total is not None
    assert other.train_seconds_interval is not None
    assert other.usd_interval is not None
    early, late = other.train_seconds_interval
    low, high = other.usd_interval
    return early <= one.train_seconds <= late and low <= one.usd_total <= high


def test_the_front_of_listed_plans_has_intervals_and_ties(document: PlanDocument) -> None:
    """Within a tenth the prediction does not tell plans apart; a sixth of the money it does."""
    first = document.plans[0]
    third = replace(first, rank=3, usd_per_hour=200.0, train_seconds=11e3, usd_total=611.1)
    fourth = replace(first, rank=4, usd_per_hour=50.0, train_seconds=20e3, usd_total=277.8)
    points = pareto_of((first, document.plans[1], third, fourth))
    assert [point.plan for point in points] == [0, 2, 3]
    assert [point.tied_with for point in points] == [(), (), ()]
    near = replace(third, train_seconds=10.5e3, usd_per_hour=240.0, usd_total=700.0)
    points = pareto_of((first, near, fourth))
    assert [point.tied_with for point in points] == [(1,), (0,), ()]
    assert points[0].train_seconds_interval == pytest.approx((10e3 / 1.1, 11e3))
    assert points[0].usd_interval == pytest.approx((711.1 / 1.1, 711.1 * 1.1), rel=1e-4)
    assert points[0].usd_per_hour == 256.0


def test_a_chosen_plan_with_twins_is_on_the_front_and_not_listed_twice() -> None:
    """The search folds twins into the plans of the list, not into the points of the front."""
    workload = Workload(load_model("llama-2-7b"), 4096, 64, 10**9)
    cluster = parse_gpus("h100:8")
    found = planner.plan(workload, cluster, mode=Mode.UP_TO, top=1)
    point, *others = found.front
    twin = Twin(1, 1, 8, 1, found.plans[0].iteration_seconds)
    listed = replace(found, plans=(replace(point, twins=(twin,)),), front=(point, *others))
    made = document_of(listed, reference="llama-2-7b", objective="time", mode="up-to")
    assert made.pareto[0].plan == 0
    assert len(made.plans) == 1 + len(others)
