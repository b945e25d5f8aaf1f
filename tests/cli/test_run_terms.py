"""Flags of a whole run: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from small import small_model

from astrarium.api import request
from astrarium.api.asked import PlanAsked, asked
from astrarium.api.flags import PLAN_FLAGS
from astrarium.cli.plan import plan
from astrarium.cluster import parse_gpus
from astrarium.cost.checkpoints import Storage
from astrarium.cost.interruptions import DEFAULT_FAILURES_PER_HOUR, DEFAULT_INTERRUPTIONS_PER_HOUR
from astrarium.cost.training_run import Evaluation, Ramp, RunTerms, Spot
from astrarium.errors import InputError
from astrarium.model.workload import Workload


def asked_by(*arguments: str) -> PlanAsked:
    """What `astrarium plan` reads of flags."""
    given = ["llama-2-7b", "--global-batch", "1024", "--gpus", "h100:8", *arguments]
    return asked(PlanAsked, PLAN_FLAGS, plan.make_context("plan", given).params)


def terms_of(*arguments: str) -> tuple[RunTerms, int | None]:
    """What the command makes of them, for a run of a known length."""
    flags = asked_by(*arguments)
    workload = Workload(small_model(), seq_length=2048, global_batch=1024, tokens=10**9)
    return request.run_terms(flags, workload), request.run_length(flags)


def test_without_flags_there_are_defaults() -> None:
    terms, tokens = terms_of()
    assert terms == RunTerms()
    assert tokens is None
    assert (terms.spot, terms.failures_per_hour) == (Spot.NEVER, DEFAULT_FAILURES_PER_HOUR)
    assert terms.interruptions_of("H100-SXM5-80GB") == DEFAULT_INTERRUPTIONS_PER_HOUR


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (("--spot", "MIX"), "spot", Spot.MIX),
        (("--checkpoint-every", "30 min"), "checkpoint_interval_seconds", 1800.0),
        (("--storage-bandwidth", "20 GB/s"), "storage", Storage(20e9, 20e9)),
        (("--storage-bandwidth", "16 Gb/s/node"), "storage", Storage(2e9)),
        (("--restart-time", "0 s"), "restart_seconds", 0.0),
        (("--rampup-batch", "16,16,6M"), "ramp", Ramp(16, 16, 6_000_000)),
        (("--eval-every", "1k"), "evaluation", Evaluation(1000, 100)),
        (("--eval-every", "10", "--eval-iterations", "2"), "evaluation", Evaluation(10, 2)),
        (("--co2", "0.39"), "co2_kilograms_per_kwh", 0.39),
    ],
)
def test_flags(arguments: tuple[str, ...], field: str, value: Any) -> None:
    terms, _ = terms_of(*arguments)
    assert getattr(terms, field) == value


def test_interruptions_by_type_and_for_all_others() -> None:
    each = ("--interruptions", "h100=0.02", "--interruptions", "10%/day", "--interruptions", "t4=0")
    terms, _ = terms_of("--spot", "mix", *each)
    assert terms.interruptions_of("H100-SXM5-80GB") == 0.02
    assert terms.interruptions_of("A100-SXM4-80GB") == pytest.approx(DEFAULT_INTERRUPTIONS_PER_HOUR)
    assert terms.interruptions_of("T4-16GB") == 0


def test_epochs_of_a_dataset() -> None:
    assert terms_of("--tokens", "2T")[1] == 2 * 10**12
    assert terms_of("--epochs", "1.5", "--dataset-tokens", "3B")[1] == 4_500_000_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--spot", "maybe"), "--spot 'maybe': expected one of never, always, mix"),
        (("--interruptions", "often"), "--interruptions 'often': not a number"),
        (("--interruptions", "1/fortnight"), "unknown time 'fortnight'"),
        (("--interruptions", "1e9"), "--interruptions '1e9': too large"),
        (("--interruptions", "h10=1"), "unknown GPU type 'h10'"),
        (("--checkpoint-every", "30"), "--checkpoint-every '30': the unit is missing"),
        (("--checkpoint-every", "0 s"), "must be greater than zero"),
        (("--storage-bandwidth", "20"), "--storage-bandwidth '20': the unit is missing"),
        (("--restart-time", "-1 s"), "--restart-time '-1 s': negative"),
        (("--rampup-batch", "16,16"), "expected START,INCREMENT,SAMPLES"),
        (("--rampup-batch", "16,0,5"), "--rampup-batch '0': must be greater than zero"),
        (("--rampup-batch", "16,17,5"), "--rampup-batch '16,17,5': steps of 17 do not lead"),
        (("--eval-iterations", "5"), "--eval-iterations is given without --eval-every"),
        (("--co2", "a lot"), "--co2 'a lot': not a number"),
        (("--tokens", "5", "--epochs", "1"), "--tokens and --epochs are both given"),
        (("--epochs", "1"), "--epochs and --dataset-tokens are needed together"),
        (("--epochs", "0", "--dataset-tokens", "1B"), "--epochs '0': must be greater than zero"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputError) as caught:
        terms_of(*arguments)
    assert says in str(caught.value)


def test_terms_of_a_run_need_its_length() -> None:
    workload = Workload(small_model(), seq_length=2048, global_batch=1024)
    assert request.run_terms(asked_by("--spot", "never"), workload) == RunTerms()
    with pytest.raises(InputError, match="give --tokens or --epochs"):
        request.run_terms(asked_by("--spot", "mix"), workload)


def test_interruptions_are_those_of_spot_nodes() -> None:
    with pytest.raises(InputError, match="add --spot"):
        terms_of("--interruptions", "0.1")


def test_spot_needs_a_price() -> None:
    mixed = RunTerms(spot=Spot.MIX)
    assert request.spot_notes(mixed, parse_gpus("h100:8")) == ()
    (note,) = request.spot_notes(mixed, parse_gpus("h100:8,l40:8"))
    assert note == "no spot price is known for L40-48GB: on demand"
    with pytest.raises(InputError, match="no spot price is known for L40-48GB"):
        request.spot_notes(mixed, parse_gpus("l40:8"))
    strange = RunTerms(spot=Spot.MIX, interruptions_per_hour={"A100-SXM4-80GB": 0.1})
    with pytest.raises(InputError, match="no pool has this type"):
        request.spot_notes(strange, parse_gpus("h100:8"))
