"""The catalog: GPU types, instances and models, each figure with source and date.

Data files are read when they are first asked for; `astrarium.catalog.overrides` says how users
replace or add entries.
"""

from __future__ import annotations

from astrarium.catalog.gpus import Dtype as Dtype
from astrarium.catalog.gpus import Gpu as Gpu
from astrarium.catalog.gpus import Instance as Instance
from astrarium.catalog.gpus import describe_gpu as describe_gpu
from astrarium.catalog.gpus import describe_instance as describe_instance
from astrarium.catalog.gpus import find_gpu as find_gpu
from astrarium.catalog.gpus import find_instance as find_instance
from astrarium.catalog.gpus import gpus as gpus
from astrarium.catalog.gpus import instances as instances
from astrarium.catalog.models import ModelEntry as ModelEntry
from astrarium.catalog.models import find_model_entry as find_model_entry
from astrarium.catalog.models import is_model_name as is_model_name
from astrarium.catalog.models import model_entries as model_entries
from astrarium.catalog.models import model_names as model_names
from astrarium.catalog.records import Figure as Figure
from astrarium.catalog.records import Source as Source
from astrarium.catalog.records import sources as sources
