"""SkyPilot 0.14.1: a task as `sky launch` reads it, before any cloud is asked."""

from __future__ import annotations

from typing import Any

import sky
import yaml
from sky.utils import common_utils, dag_utils, schemas
from upstream.drivers.serving import serve


def answer(request: dict[str, Any]) -> Any:
    """`config`: the mapping of one task; `text`: a file, of one task or of a group of them.

    With `schema` only the keys are checked: regions and instances are looked up in catalogs that
    SkyPilot would download.
    """
    if "schema" in request:
        return [check_keys(task) for task in yaml.safe_load_all(request["schema"])]
    if "config" in request:
        return sky.Task.from_yaml_config(request["config"]).to_yaml_config()
    dag = dag_utils.load_dag_from_yaml_str(request["text"])
    return {
        "name": dag.name,
        "is_group": dag.is_job_group(),
        "tasks": [task.to_yaml_config() for task in dag.tasks],
    }


def check_keys(task: dict[str, Any]) -> dict[str, Any]:
    common_utils.validate_schema(task, schemas.get_task_schema(), "Invalid task: ")
    common_utils.validate_schema(
        task["resources"], schemas.get_resources_schema(), "Invalid resources: "
    )
    return task


serve(answer)
