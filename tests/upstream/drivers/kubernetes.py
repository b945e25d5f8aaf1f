"""Kubernetes objects read by the models of kubeflow-trainer-api 2.3: TrainJob, JobSet and below.

The models drop keys that they do not know, as a client does; an API server would refuse them
under strict validation. Here they are refused with their path.
"""

from __future__ import annotations

import typing
from typing import Any

from kubeflow_trainer_api import models
from pydantic import BaseModel
from upstream.drivers.serving import serve

KINDS: dict[tuple[str, str], type[Any]] = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): models.TrainerV1alpha1TrainJob,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): models.JobsetV1alpha2JobSet,
}


def answer(request: dict[str, Any]) -> Any:
    """`object`: a manifest."""
    manifest = request["object"]
    kind = (manifest.get("apiVersion"), manifest.get("kind"))
    if kind not in KINDS:
        raise ValueError(f"{kind[0]} {kind[1]}: not one of {sorted(KINDS)}")
    refuse_unknown(KINDS[kind], manifest, "")
    return KINDS[kind].from_dict(manifest).to_dict()


def refuse_unknown(model: type[BaseModel], values: dict[str, Any], path: str) -> None:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    for key, value in values.items():
        if key not in fields:
            raise ValueError(f"{path}{key}: unknown field of {model.__name__}")
        inner = model_in(fields[key].annotation)
        if inner is None:
            continue
        for position, one in enumerate(value if isinstance(value, list) else [value]):
            place = f"{key}[{position}]" if isinstance(value, list) else key
            if isinstance(one, dict):
                refuse_unknown(inner, one, f"{path}{place}.")


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model within an optional type or a list of it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) is dict:
        return None  # labels, limits: keys are free
    found = (model_in(one) for one in typing.get_args(annotation))
    return next((one for one in found if one), None)


serve(answer)
