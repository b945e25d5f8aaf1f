"""The keys of a user's catalog file, checked for sense; those of the data files.

Every key is optional; the catalog decides what a new entry needs. Numbers are positive and at most
`LARGEST_FIGURE`. The reader of models checks model entries. Imported only when there is a file.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

# No figure of the catalog comes near these; larger ones are typing errors.
LARGEST_FIGURE = 1e12
LARGEST_COUNT = 10**6

Figure: TypeAlias = Annotated[float, Meta(gt=0, le=LARGEST_FIGURE)] | UnsetType
Count: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST_COUNT)] | UnsetType
Counts: TypeAlias = list[Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]] | UnsetType
Text: TypeAlias = Annotated[str, Meta(min_length=1)] | UnsetType
Texts: TypeAlias = list[Annotated[str, Meta(min_length=1)]] | UnsetType


class GpuEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table `[gpus.NAME]`."""

    like: Text = UNSET
    aliases: Texts = UNSET
    vendor: Text = UNSET
    architecture: Text = UNSET
    compute_capability: Figure = UNSET
    form_factor: Text = UNSET
    release_year: Count = UNSET
    memory_gib: Figure = UNSET
    memory_bandwidth_gbytes_per_s: Figure = UNSET
    tdp_watts: Figure = UNSET
    fp32_tflops: Figure = UNSET
    tf32_tflops: Figure = UNSET
    fp16_tflops: Figure = UNSET
    bf16_tflops: Figure = UNSET
    fp8_tflops: Figure = UNSET
    fp4_tflops: Figure = UNSET
    measured_bf16_matmul_tflops: Figure = UNSET
    measured_fp8_matmul_tflops: Figure = UNSET
    link_type: Text = UNSET
    link_gbytes_per_s: Figure = UNSET
    link_to_peer_gbytes_per_s: Figure = UNSET
    pcie_type: Text = UNSET
    pcie_gbytes_per_s: Figure = UNSET
    peer_access: bool | UnsetType = UNSET
    gpus_per_node: Count = UNSET
    nvlink_domain: Count = UNSET
    inter_node_gbits_per_s: Figure = UNSET
    inter_node_instance: Text = UNSET
    usd_per_gpu_hour: Figure = UNSET
    spot_usd_per_gpu_hour: Figure = UNSET
    rented_sizes: Counts = UNSET


class InstanceEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table `[instances.NAME]`."""

    like: Text = UNSET
    cloud: Text = UNSET
    gpu: Text = UNSET
    gpus_per_node: Count = UNSET
    vcpus: Count = UNSET
    host_memory_gib: Figure = UNSET
    intra_node_link: Text = UNSET
    intra_node_gbytes_per_s: Figure = UNSET
    fabric: Text = UNSET
    inter_node_gbits_per_s: Figure = UNSET
    inter_node_total_gbits_per_s: Figure = UNSET
    adapters: Count = UNSET
    gpudirect: Text = UNSET
    availability: Text = UNSET
    usd_per_hour: Figure = UNSET
    spot_usd_per_hour: Figure = UNSET


class CatalogFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A user's catalog file."""

    gpus: dict[str, GpuEntry] = {}
    instances: dict[str, InstanceEntry] = {}
    models: dict[str, dict[str, object]] = {}
