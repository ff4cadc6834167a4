"""The page of the model server in a real browser: what a person sees, types and clicks."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from ratchet.kinds import Column, TableInput
from ratchet.problems import Classes, Numbers
from tests.servers.browser import Browser, chromium, needs_chromium
from tests.serving.test_model_server import (  # noqa: F401
    COLUMNS,
    ROWS,
    SPECS,
    Served,
    png,
    registry,
    serve,
    shared,
    tokens,
)

pytestmark = [pytest.mark.system, needs_chromium]

PHONE, DESKTOP = (390, 844), (1280, 800)
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked = 1'>",
    "\u202eeert & \u05e2\u05e5 'quoted' \"twice\"",
    "x" * 300,
    "__proto__",
)
UNTIL = "while (!(() => {%s})()) await new Promise(done => setTimeout(done, 50));"
ANSWERED = UNTIL % "return document.querySelector('.ids')"
FORM = UNTIL % "return document.getElementById('sample').offsetParent"
TEXT = "return document.getElementById(args[0]).textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser"), {}) as window:
        yield window


def opened(browser: Browser, served: Served, size: tuple[int, int] = PHONE) -> None:
    browser.resize(*size)
    browser.open(served.url("/"))
    browser.run(FORM)


def click(browser: Browser, element: str) -> None:
    browser.run("document.getElementById(args[0]).click()", element)


def choose_image(browser: Browser) -> None:
    browser.run(
        "const bytes = Uint8Array.from(atob(args[0]), c => c.charCodeAt(0));"
        "const list = new DataTransfer();"
        "list.items.add(new File([bytes], 'a.png', {type: 'image/png'})); "
        "const chooser = document.getElementById('file');"
        "chooser.files = list.files; chooser.dispatchEvent(new Event('change'));",
        base64.b64encode(png(ROWS["image"][0])).decode(),
    )


@pytest.mark.parametrize("name", ["image", "table", "text", "tokens"])
def test_page_predicts_and_explains_in_a_browser(
    name: str,
    browser: Browser,
    tmp_path: Path,
    shared: Callable[[str], Served],  # noqa: F811
) -> None:
    served = shared(name)
    (about,) = served.get("/v1/models")[1]["models"]
    opened(browser, served)
    assert browser.run(TEXT, "model") == f"{name} version {about['version']}"
    if name == "image":
        choose_image(browser)
    else:
        browser.run(
            "const text = document.querySelector('#fields textarea'); if (text) text.value = 'a';"
            "const age = document.querySelector('[data-name=age]'); if (age) age.value = 1e6;"
        )
        click(browser, "predict")
    browser.run(ANSWERED)
    warnings = browser.run("return [...document.querySelectorAll('.warnings li')].map(each => each.textContent)")
    assert [each.partition(":")[0] for each in warnings] == (["age"] if name == "table" else [])
    assert f"{name}/{about['version']}, provenance {about['provenance']}" in browser.run(TEXT, "answer")
    if name != "tokens":
        click(browser, "explain")
        browser.run(UNTIL % "return document.querySelector('#explanation *')")
        unit = {"image": "support", "table": "In the unit of \u2068price\u2069.", "text": "In logits (log-odds)."}[name]
        assert unit in browser.run(TEXT, "explanation")
    assert browser.run(TEXT, "error") == ""
    for width in (390, 1280):
        assert browser.screenshot(tmp_path / f"{name}-{width}.png", width) <= width, "wider than the window"


@pytest.mark.parametrize("name", ["table", "image"])
def test_one_click_on_a_sample_gives_an_answer_in_view(
    name: str,
    browser: Browser,
    shared: Callable[[str], Served],  # noqa: F811
) -> None:
    opened(browser, shared(name))
    browser.run(
        "window.signs = [];"
        "new MutationObserver(() => signs.push(document.getElementById('working').checkVisibility()))"
        ".observe(document.getElementById('result'), {attributes: true, attributeFilter: ['aria-busy']});"
    )
    click(browser, "sample")
    browser.run(ANSWERED)
    bounds = "const {top, bottom} = document.querySelector('#answer .result').getBoundingClientRect();"
    browser.run(UNTIL % f"{bounds} return 0 <= top && bottom <= innerHeight")
    assert browser.run("return signs") == [True, False]
    if name == "image":
        names = "return [...document.querySelectorAll('.names li')].map(each => each.textContent)"
        assert browser.run(names) == ["ant", "bee", "cat"]
    else:
        assert "training values: mean 50, standard deviation 7" in browser.run(TEXT, "answer")


def test_text_appears_while_it_is_generated(browser: Browser, shared: Callable[[str], Served]) -> None:  # noqa: F811
    served = shared("tokens")
    opened(browser, served)
    browser.run(
        "document.querySelector('#fields textarea').value = 'ab'; window.lengths = [];"
        "document.querySelector('[data-name=max_tokens]').value = 40;"
        "new MutationObserver(() => document.querySelector('.text') && !document.querySelector('.ids')"
        " && lengths.push(document.querySelector('.text').textContent.length))"
        ".observe(document.getElementById('answer'), {childList: true, subtree: true});"
    )
    click(browser, "predict")
    browser.run(ANSWERED)
    lengths = browser.run("return lengths")
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 5, "the text came at once"
    _, answer, _ = served.ask("/v1/predict", {"input": ["ab"], "options": {"max_tokens": 40}})
    assert browser.run("return document.querySelector('.text').textContent") == "ab" + answer["predictions"][0]["text"]


def test_stopped_text_stays_and_is_called_incomplete(browser: Browser, tokens: Served) -> None:  # noqa: F811
    opened(browser, tokens)
    browser.run(
        "document.querySelector('#fields textarea').value = 'ab';"
        "document.querySelector('[data-name=max_tokens]').value = 1e6;"  # so that it ends by the click alone
    )
    click(browser, "predict")
    browser.run(UNTIL % "return document.querySelector('.text')?.textContent.length > 4")
    click(browser, "stop")
    browser.run(UNTIL % "return document.getElementById('error').textContent")
    assert "not complete" in browser.run(TEXT, "error")
    assert browser.run("return document.querySelector('.text').textContent").startswith("ab")
    assert not browser.run("return document.getElementById('predict').disabled")


def promote(browser: Browser, served: Served, name: str, **fields: Any) -> None:
    served.promote(name, served.add(name, replace(SPECS[name], **fields), seed=2))
    browser.run(UNTIL % "return document.getElementById('model').textContent.endsWith('version 2')")
    assert "Version 2 answers now" in browser.run(TEXT, "news")


def test_promotion_keeps_what_was_typed(browser: Browser, serve: Callable[..., Served]) -> None:  # noqa: F811
    """Also if the new version has another column, and other known values of a column."""
    columns = (replace(COLUMNS[2], categories=("first",)), COLUMNS[0], Column("size", "numeric", 3.0, 1.0, (1.0, 5.0)))
    served = serve("table", poll=0.3)
    opened(browser, served)
    values = (
        "return Object.fromEntries([...document.querySelectorAll('[data-name]')].map(e => [e.dataset.name, e.value]))"
    )
    browser.run(
        "for (const [name, value] of [['age', 31.5], ['class', 'second']]) {"
        "  const input = document.querySelector(`[data-name=${name}]`); input.focus(); input.value = value;"
        "  input.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    click(browser, "predict")
    browser.run(ANSWERED)
    promote(browser, served, "table", input=TableInput(columns))
    assert browser.run(values) == {"age": "31.5", "fare": "15", "class": "second"}, (
        "changed while a field has the focus"
    )
    assert "table/1" in browser.run(TEXT, "answer"), "the answer is gone"
    browser.run("document.activeElement.blur();" + UNTIL % "return document.querySelector('[data-name=size]')")
    assert browser.run(values) == {"age": "31.5", "size": "5", "class": "second"}
    click(browser, "predict")
    browser.run(UNTIL % "return document.getElementById('answer').textContent.includes('table/2')")
    assert browser.run(TEXT, "error") == ""


@pytest.mark.parametrize("name", ["text", "image"])
def test_promotion_keeps_text_and_image(name: str, browser: Browser, serve: Callable[..., Served]) -> None:  # noqa: F811
    served = serve(name, poll=0.3)
    opened(browser, served)
    if name == "image":
        choose_image(browser)
        browser.run(ANSWERED)
        changed: dict[str, Any] = {"input": replace(SPECS["image"].input, height=16, width=16)}
    else:
        browser.run(
            "const text = document.querySelector('#fields textarea'); text.value = 'a good film';"
            "text.dispatchEvent(new Event('input', {bubbles: true}));"
        )
        changed = {"target": Classes(("yes", "no"))}
    promote(browser, served, name, **changed)
    if name == "text":
        assert browser.run("return document.querySelector('#fields textarea').value") == "a good film"
    browser.run(UNTIL % "return !document.getElementById('predict').disabled")
    click(browser, "predict")
    browser.run(UNTIL % f"return document.getElementById('answer').textContent.includes('{name}/2')")
    assert browser.run(TEXT, "error") == ""


@pytest.mark.parametrize("target", [Classes, Numbers])
def test_hostile_names_are_shown_as_text(
    target: type,
    browser: Browser,
    tmp_path: Path,
    serve: Callable[..., Served],  # noqa: F811
    registry: Served,  # noqa: F811
) -> None:
    numbers = np.linspace(0.0, 1.0, 3).tolist()
    columns = tuple(Column(f"{name} column", "categorical", categories=HOSTILE[::-1]) for name in HOSTILE[:3])
    columns += (Column("__proto__", "numeric", 0.5, 1.0, tuple(numbers)), Column("y" * 200, "numeric", 0.5, 1.0))
    described = Numbers(HOSTILE, (0.0,) * 5, (1.0,) * 5) if target is Numbers else target(HOSTILE)
    name = f"hostile-{target.__name__.lower()}"
    registry.add(name, replace(SPECS["labels"], input=TableInput(columns), target=described))
    opened(browser, serve(name))
    click(browser, "sample")
    browser.run(ANSWERED)
    shown = browser.run(TEXT, "answer") + browser.run(TEXT, "facts") + browser.run(TEXT, "fields")
    assert all(each in shown for each in HOSTILE)
    assert browser.run("return [...document.querySelectorAll('[data-name]')].map(e => e.dataset.name)") == [
        column.name for column in columns
    ]
    click(browser, "explain")
    browser.run(UNTIL % "return document.querySelector('#explanation *')")
    assert (" points" in browser.run(TEXT, "explanation")) == (target is not Numbers)
    assert browser.run("return [document.querySelectorAll('main script, main img').length, window.hacked]") == [0, None]
    for width in (390, 1280):
        assert browser.screenshot(tmp_path / f"{name}-{width}.png", width) <= width, "wider than the window"


def test_failed_explanation_leaves_the_answer_as_it_is(
    browser: Browser,
    shared: Callable[[str], Served],  # noqa: F811
) -> None:
    served = shared("table")
    opened(browser, served)
    click(browser, "sample")
    browser.run(ANSWERED)
    answer = browser.run(TEXT, "answer")
    served.project.good("ratchet", "keys", "add", "anna")
    try:
        until(lambda: served.ask("/v1/explain", {})[0] == 401)
        click(browser, "explain")
        browser.run(UNTIL % "return document.querySelector('#explanation *')")
    finally:
        served.project.good("ratchet", "keys", "off")
        until(lambda: served.get("/v1/models")[0] == 200)
    assert browser.run(TEXT, "explanation").startswith("There is no explanation: the request has no valid key.")
    assert browser.run("return document.querySelector('#explanation .none') !== null")  # not red
    assert browser.run("return document.getElementById('error').hidden")
    assert browser.run(TEXT, "answer") == answer
