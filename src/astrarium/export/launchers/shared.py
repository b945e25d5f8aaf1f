"""Shared by launchers of clusters: groups of nodes with names, YAML with a header.

Nodes of a group are alike and next to each other in the order of ranks. A launcher that asks for
nodes asks for each group by itself, and numbers its nodes from the first of the group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from astrarium.export.header import commented, header_lines
from astrarium.export.program import RankProgram
from astrarium.export.run_length import CHECKPOINTS
from astrarium.plans.job import Job, NodeGroup
from astrarium.value import Value

POOL_LABEL: Final = "astrarium.pool"  # that users give to nodes of pools of one GPU type
LONGEST_NAME: Final = 24  # leaves room for what launchers append, of 63 letters


class NamedNodes(Value, frozen=True):
    """Nodes that are asked for together: `first` is the number of the first one."""

    name: str
    first: int
    group: NodeGroup

    @property
    def gpu(self) -> str:
        return self.group.pool.gpu.name

    @property
    def pool(self) -> str:
        return self.group.pool.name

    @property
    def words(self) -> str:
        last = self.first + self.group.nodes - 1
        nodes = f"nodes {self.first} to {last}" if last > self.first else f"node {self.first}"
        return f"{nodes}: {self.group.gpus_per_node} x {self.gpu} each"


def named_nodes(job: Job) -> tuple[NamedNodes, ...]:
    """All groups in the order of ranks, with names of their own."""
    short = [family(group.pool.gpu.name) for group in job.nodes]
    found, first = [], 0
    seen: Counter[str] = Counter()
    for name, group in zip(short, job.nodes, strict=True):
        seen[name] += 1
        alone = short.count(name) == 1
        found.append(NamedNodes(name if alone else f"{name}-{seen[name]}", first, group))
        first += group.nodes
    return tuple(found)


def family(gpu: str) -> str:
    """The short name of a GPU type: "h100" of H100-SXM5-80GB."""
    return _lettered("gpu", label(re.split(r"-(?:SXM|PCIe|NVL|\d+GB)", gpu)[0]))


def pool_labels(job: Job, sort: Callable[[str], str]) -> dict[str, str]:
    """Labels, by pool, for pools of one type; `sort` is the launcher's name of a GPU type."""
    pools = {group.pool.name: sort(group.pool.gpu.name) for group in job.nodes}
    if len(pools) == 1:
        return {}
    sorts = Counter(pools.values())
    found: dict[str, str] = {}
    for name, kind in pools.items():
        if kind and sorts[kind] == 1:
            continue
        short = label(name)[:LONGEST_NAME].strip("-") or "pool"
        again = short in found.values()
        found[name] = f"{short}-{len(found) + 1}" if again else short
    return found


def pool_notes(labels: Mapping[str, str], how: str) -> Iterator[str]:
    """Nodes that the user has to label; `how` is the way of the launcher."""
    if labels:
        named = ", ".join(f"`{value}` (pool {name})" for name, value in labels.items())
        yield (
            "GPU types do not distinguish all pools of this plan, so these nodes are selected by"
            f" labels that you assign: {named}. {how}"
        )


def job_name(job: Job) -> str:
    name = _lettered("job", label(job.model.name) or "training")
    return name[:LONGEST_NAME].strip("-")


def _lettered(word: str, name: str) -> str:
    """A name that begins with a letter, as those of services must."""
    return f"{word}-{name}" if name[:1].isdigit() else name


def label(text: str) -> str:
    """A text as a label of DNS: lower case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def usual_value(variable: str) -> str:
    """The usual value of a variable in a file: a folder of the image, or a mounted one."""
    if variable == CHECKPOINTS:
        return "/checkpoints"
    return f"/opt/{label(variable.removesuffix('_PATH'))}" if variable.endswith("_PATH") else ""


def usual_values(program: RankProgram) -> dict[str, str]:
    """All variables of a program with such values."""
    return {name: usual_value(name) for name in program.variables}


def variable_notes(program: RankProgram, where: str) -> tuple[str, ...]:
    """Variables that a file sets to guesses."""
    return tuple(
        f"{name} is `{usual_value(name)}` in {where}; change it if yours differs: {meaning}."
        for name, meaning in program.variables.items()
    )


def spot_gpus(job: Job, gpu: str) -> int:
    """GPUs of a type that may be taken away."""
    return job.plan.run.spot_gpus.get(gpu, 0) if job.plan.run else 0


def yaml_text(job: Job, software: str, documents: Sequence[Mapping[str, Any]]) -> str:
    """Documents of a YAML file under the header of the plan."""
    import yaml

    texts = [
        yaml.dump(document, Dumper=_dumper(), sort_keys=False, width=100) for document in documents
    ]
    return commented(header_lines(job, software)) + "---\n".join(texts)


def _dumper() -> Any:  # noqa: ANN401  a class made from one of yaml's
    """Texts of several lines are written as blocks, as a person would."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper
