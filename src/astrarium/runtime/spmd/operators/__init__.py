"""Operators on the pieces that a device has."""

from astrarium.runtime.spmd.operators.context import Context as Context
from astrarium.runtime.spmd.operators.positions import attention_of as attention_of
from astrarium.runtime.spmd.operators.positions import chosen_of as chosen_of
from astrarium.runtime.spmd.operators.positions import dropped as dropped
from astrarium.runtime.spmd.operators.positions import kept_of as kept_of
from astrarium.runtime.spmd.operators.positions import key_of as key_of
from astrarium.runtime.spmd.operators.positions import likelihood as likelihood
from astrarium.runtime.spmd.operators.positions import numbers_of as numbers_of
from astrarium.runtime.spmd.operators.table import run_local as run_local
