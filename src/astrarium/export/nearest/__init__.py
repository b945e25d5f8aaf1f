"""The nearest plan that a target can express, where it cannot express the one asked for."""

from astrarium.export.nearest.plan import Nearest as Nearest
from astrarium.export.nearest.plan import nearest as nearest
