"""Whatever a model or a pool is called, what is written stays what it is meant to be."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import exported_others
import exported_plans
import launched
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from astrarium.cluster.clusterfile import load_cluster
from astrarium.errors import InputError
from astrarium.export.folder import folder_of
from astrarium.export.header import header_lines
from astrarium.export.target import find_target, target_names
from astrarium.plans.job import Job

QUICK = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
EVIL: Final = "x\ntouch harmed\n'\"$(touch harmed)`touch harmed`\\\r# {{ }} %s: - \u2028\x85\x00"


def bash(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def yaml_documents(text: str) -> None:
    assert all(isinstance(one, dict) for one in yaml.safe_load_all(text))


READERS: Final[dict[str, Callable[[str], object]]] = {
    ".sh": bash,
    ".sbatch": bash,
    ".yaml": yaml_documents,
    ".json": json.loads,
    ".py": ast.parse,
}
COMMENTED: Final = (".sh", ".sbatch", ".yaml", ".toml")


def job_for(target: str) -> Job:
    """A plan on two pools where the target takes one."""
    if target in launched.LAUNCHERS:
        return launched.job("alike" if target == "ray" else "mixed")
    if target in exported_plans.TARGETS:
        return exported_plans.job("uneven")
    return exported_others.job(target, next(iter(exported_others.CASES[target])))


def named(job: Job, model: str, pool: str) -> Job:
    """The job with these names, as if nothing had looked at them before."""
    groups = [
        replace(group, pool=replace(group.pool, name=f"{pool}{index}"))
        for index, group in enumerate(job.nodes)
    ]
    called = replace(job.workload, model=replace(job.model, name=model))
    return replace(job, workload=called, nodes=tuple(groups))


def files_of(target: str, job: Job) -> Iterator[tuple[Path, str]]:
    one = find_target(target)
    files = folder_of(job, one, launched.SOFTWARE if one.is_launcher else one).files
    return ((Path(name), text) for name, text in files.items())


def check_header(job: Job, path: Path, text: str) -> None:
    """The lines up to the first empty one are comments, as many as they should be."""
    first = text.split("\n\n")[0].split("\n")
    comments = [line for line in first if line.startswith("# ")]
    held = len(header_lines(job, ""))
    assert len(comments) >= held, path
    begun = first.index(comments[0])
    assert first[begun : begun + held] == comments[:held], path


@pytest.mark.parametrize("target", target_names())
@QUICK
@given(model=st.text(), pool=st.text())
@example(model=EVIL, pool=EVIL)
def test_names_break_no_file(target: str, model: str, pool: str) -> None:
    job = named(job_for(target), model, pool)
    for path, text in files_of(target, job):
        if path.suffix in READERS:
            READERS[path.suffix](text)
        if path.suffix in COMMENTED:
            check_header(job, path, text)


def test_no_name_is_run(tmp_path: Path) -> None:
    """Neither at a line break nor as an expansion; launch.sh stops before it starts anything."""
    job = named(job_for("torchrun"), EVIL, EVIL)
    text = dict(files_of("torchrun", job))[Path("launch.sh")]
    bench = launched.Bench(tmp_path)
    (tmp_path / "launch.sh").write_text(text, encoding="utf-8")
    numbers = {"NODE_RANK": "0", "MASTER_ADDR": "there", "TRAINER_PATH": "/opt/trainer"}
    bench.run("bash", "launch.sh", cwd=tmp_path, **numbers)
    assert len(bench.starts()) == 1
    assert not (tmp_path / "harmed").exists()


def test_a_readme_has_its_own_headings_only() -> None:
    job = named(job_for("torchrun"), "x\n# Other\n", "y\n## More\n")
    text = dict(files_of("torchrun", job))[Path("README.md")]
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings[0] == "# x # Other with Trainer 1.2"
    assert all("More" not in line for line in headings)


def test_cluster_files_with_such_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"pools": [{"gpu": "h100", "nodes": 1, "name": "a\nreboot"}]}))
    with pytest.raises(InputError, match=r"pools\[0\]\.name: 'a\\nreboot' holds control"):
        load_cluster(path)
