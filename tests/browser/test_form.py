"""The form: rows of GPUs, a model of one's own, and mistakes told where they were made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browser_page import (
    NARROW,
    PATIENCE,
    SMALL,
    WIDE,
    Planner,
    command_line,
    printed,
    refusal,
    state_of,
)
from playwright.sync_api import expect

Open = Callable[..., Planner]
ONE_POOL = {
    "model": "llama-2-7b",
    "pools": [{"type": "h100", "count": "8"}],
    "global_batch": "64",
    "seq_length": "4096",
    "tokens": "1T",
}
OWN_CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def plain(text: str) -> str:
    """A text without its warning sign, in one line."""
    return " ".join(text.removeprefix("⚠").split())


def said(told: str) -> re.Pattern[str]:
    """What the command line says, with the names of fields in the place of flags."""
    told = re.sub(r"; `astrarium catalog .*|, or give the machines in a cluster file", "", told)
    parts = re.split(r"--[a-z][a-z0-9-]*", told)
    return re.compile("“[^”]+”".join(map(re.escape, parts)))


def dollars(text: str) -> float:
    """`$1.76M` as a number."""
    found = re.fullmatch(r"\$([\d.,]+)([kMB]?)", text)
    assert found, text
    size = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}[found[2]]
    return float(found[1].replace(",", "")) * size


def test_rows_of_gpus_are_added_priced_and_removed(planner: Planner) -> None:
    planner.open(ONE_POOL)
    page = planner.page
    cost = planner.answer.locator("dl div", has_text="Cost").locator("b")
    told = cost.inner_text()
    price = page.get_by_label("Dollars per GPU and hour in row 1")
    listed = float(price.get_attribute("placeholder") or "")
    price.fill(f"{2 * listed:g}")
    expect(cost).not_to_have_text(told)
    planner.settled()
    assert dollars(cost.inner_text()) == pytest.approx(2 * dollars(told), rel=0.01)
    expect(planner.command).to_contain_text(f"--price h100={2 * listed:g}")

    page.get_by_role("button", name="+ Add GPUs").click()
    expect(page.get_by_label("GPU type of row 2")).to_have_value("a100")
    page.get_by_label("Number of GPUs in row 2").fill("16")
    expect(planner.lead).to_contain_text("16 x A100")
    planner.settled()
    planner.keep_picture("two-pools-1280-light")
    page.get_by_role("button", name="Remove row 1: h100").click()
    expect(planner.lead).not_to_contain_text("H100")
    expect(planner.lead).to_contain_text("on 16 x A100")
    planner.settled()
    assert state_of(page.url)["pools"] == [{"type": "a100", "count": "16"}]


MISTAKES = [
    ("global_batch", "12x", {"global_batch": "12x"}),
    ("seq_length", "1.5", {"seq_length": "1.5"}),
    ("tokens", "many", {"tokens": "many"}),
    ("budget", "lots", {"budget": "lots"}),
    ("deadline", "-3", {"deadline": "-3"}),
    ("rule", "$tp >", {"rule": "$tp >"}),
    ("model", "lama-2-7b", {"model": "lama-2-7b"}),
    ("pool-0-count", "0", {"gpus": "h100:0"}),
    ("pool-0-price", "x", {"price": "h100=x"}),
    ("pool-0-type", "h1000", {"gpus": "h1000:8"}),
]

# Where everything of the form is that can be typed into or pressed.
# Within the form, to a hundredth of a pixel: whole pixels depend on where the form begins.
PLACES = """form => [...form.querySelectorAll('input, select, textarea, button')].map((one) => {
  if (one.getClientRects().length === 0) return null;
  const [place, all] = [one, form].map((box) => box.getBoundingClientRect());
  return [Math.round(100 * (place.top - all.top)), place.left];
})"""


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_mistakes_are_told_beside_their_fields_as_on_the_command_line(
    opened: Open, size: tuple[int, int]
) -> None:
    planner = opened(size)
    planner.open(ONE_POOL)
    page = planner.page
    height = planner.answer.evaluate("answer => answer.offsetHeight")
    places = page.locator(".form").evaluate(PLACES)
    for field, typed, flags in MISTAKES:
        place = page.locator(f"#{field}")
        before = place.input_value()
        place.fill(typed)
        place.blur()
        message = page.locator(f"#{re.sub('^pool-.*', 'pools', field)}-message")
        expect(message).to_have_class(re.compile("mistake"))
        expect(place).to_have_attribute("aria-invalid", "true")
        expect(place).to_have_attribute("aria-describedby", message.get_attribute("id") or "")
        assert said(refusal(command_line(ONE_POOL, **flags))).fullmatch(plain(message.inner_text()))
        # The last answer stays where it is, and is said to be old.
        expect(page.locator(".results.stale")).to_have_count(1)
        assert planner.answer.evaluate("answer => answer.offsetHeight") == height
        assert page.locator(".form").evaluate(PLACES) == places
        if field != MISTAKES[-1][0]:
            place.fill(before)
            place.blur()
            expect(place).not_to_have_attribute("aria-invalid", "true")
    planner.keep_picture(f"mistake-{size[0]}-light")
    place.fill(before)
    place.blur()
    planner.settled()


def test_a_mistake_in_a_folded_field_unfolds_it(planner: Planner) -> None:
    planner.open({**ONE_POOL, "top": "none"}, is_settled=False)
    message = planner.page.locator("#top-message")
    expect(message).to_be_visible()
    told = refusal(command_line(ONE_POOL, top="none"))
    assert said(told).fullmatch(plain(message.inner_text()))


def test_too_few_gpus_are_told_as_on_the_command_line(planner: Planner) -> None:
    asked = {**ONE_POOL, "model": "llama-2-70b", "pools": [{"type": "h100", "count": "1"}]}
    planner.open(asked, is_settled=False)
    expect(planner.answer).to_have_attribute("data-state", "failed")
    told = refusal(command_line(asked, gpus="h100:1"), code=1)
    assert plain(planner.status.inner_text()) == told
    assert "does not fit" in told
    planner.keep_picture("no-plan-1280-light")


def drop(planner: Planner, content: str) -> None:
    """Drops a config.json on the field of the model, as from a file manager."""
    files = planner.page.evaluate_handle(
        """(content) => {
          const files = new DataTransfer();
          files.items.add(new File([content], "config.json", { type: "application/json" }));
          return files;
        }""",
        content,
    )
    place = planner.page.get_by_role("group", name="Model")
    place.dispatch_event("dragover", {"dataTransfer": files})
    place.dispatch_event("drop", {"dataTransfer": files})


def test_a_config_json_is_dropped(planner: Planner, tmp_path: Path) -> None:
    planner.open(ONE_POOL)
    drop(planner, json.dumps(OWN_CONFIG))
    page = planner.page
    expect(page.get_by_role("button", name="Remove config.json")).to_be_visible()
    expect(planner.lead).to_contain_text("Your model on 8 x H100")
    planner.settled()
    assert state_of(page.url)["config"] == OWN_CONFIG
    path = tmp_path / "config.json"
    path.write_text(json.dumps(OWN_CONFIG), encoding="utf-8")
    asked = [*command_line(ONE_POOL, model=str(path)), "--json"]
    best = json.loads(printed(asked).stdout)["plans"][0]
    expect(planner.answer.locator("dl")).to_contain_text(f"{best['tokens_per_second']:,.0f}")
    page.get_by_role("button", name="Remove config.json").click()
    expect(planner.lead).to_contain_text("Llama-2-7B")
    planner.settled()


def test_a_config_json_is_chosen_in_a_dialog(planner: Planner, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(OWN_CONFIG), encoding="utf-8")
    planner.open(ONE_POOL)
    with planner.page.expect_file_chooser(timeout=PATIENCE) as chooser:
        planner.page.get_by_role("button", name="config.json…", exact=False).click()
    chooser.value.set_files(path)
    expect(planner.page.get_by_role("button", name="Remove own.json")).to_be_visible()
    expect(planner.lead).not_to_contain_text("Llama-2-7B")
    planner.settled()
    expect(planner.command).to_contain_text("astrarium plan own.json")


def test_a_bad_config_json_is_refused_and_the_answer_stays(
    planner: Planner, tmp_path: Path
) -> None:
    planner.open(ONE_POOL)
    message = planner.page.locator("#model-message")
    drop(planner, "{ no JSON")
    expect(message).to_have_text("⚠ config.json is not JSON; expected the config.json of a model")
    drop(planner, "[]")
    expect(message).to_have_text("⚠ config.json holds no JSON object; a config.json does")
    planner.settled()
    expect(planner.lead).to_contain_text("Llama-2-7B")
    bad = {**OWN_CONFIG, "num_attention_heads": 0}
    drop(planner, json.dumps(bad))
    expect(planner.page.get_by_role("button", name="Remove config.json")).to_be_visible()
    expect(message).to_contain_text("num_attention_heads")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(bad), encoding="utf-8")
    told = refusal(command_line(ONE_POOL, model=str(path)))
    assert plain(message.inner_text()).endswith(told.partition("num_attention_heads")[2])
    planner.keep_picture("bad-config-1280-light")


def test_a_choice_asks_again_at_once(planner: Planner) -> None:
    planner.open(SMALL)
    page = planner.page
    page.locator("#objective").select_option("throughput")
    expect(planner.command).not_to_contain_text("--objective")
    page.locator("#rule").fill("$tp > 1")
    expect(planner.command).to_contain_text("--rule '$tp > 1'")
    expect(page.locator(".results.stale")).to_have_count(0)
    planner.settled()
    assert state_of(page.url)["rule"] == ["$tp > 1"]
    expect(planner.rows.filter(has_text=re.compile(r"\btp \d"))).to_have_count(0)
