"""Time against money: whole runs, the front of plans, what pools promise.

`sensitivity`, which few questions need, is a module of its own.
"""

from astrarium.search.money.frontier import Front as Front
from astrarium.search.money.frontier import best_paid as best_paid
from astrarium.search.money.frontier import check_headway as check_headway
from astrarium.search.money.frontier import find_front as find_front
from astrarium.search.money.frontier import front_of as front_of
from astrarium.search.money.frontier import keeps as keeps
from astrarium.search.money.frontier import money_of as money_of
from astrarium.search.money.frontier import nearest as nearest
from astrarium.search.money.frontier import rank_key as rank_key
from astrarium.search.money.frontier import time_of as time_of
from astrarium.search.money.prospects import Prospects as Prospects
from astrarium.search.money.runs import Runs as Runs
