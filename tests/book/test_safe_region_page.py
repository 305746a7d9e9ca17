"""The interactive picture of the safe region on its page: first state, controls, colours.

A headless Chromium works the controls, without a network; without it these tests are skipped.
"""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from bs4 import BeautifulSoup

from lib.book.figures import colours
from tests.book import site_checks
from tests.book.take_screenshot import PROGRAMS, QUIET
from tests.book.test_safe_region import ASSETS, SCRIPTS, node

FRAGMENT = ASSETS / "safe-region.html"
STYLE = ASSETS / "css" / "safe-region.css"


@pytest.fixture(scope="module")
def fragment():
    return BeautifulSoup(FRAGMENT.read_text(encoding="utf-8"), "html.parser")


def test_without_scripts_the_page_shows_what_they_would_draw(fragment):
    expected = node("show.picture(show.start())")
    parts = {tag["data-part"]: tag for tag in fragment.select("[data-part]")}
    assert set(parts) == set(expected)
    for name, attributes in expected.items():
        text = attributes.pop("text", None)
        assert text is None or parts[name].text == text, name
        assert {key: parts[name].get(key) for key in attributes} == attributes, name


def test_fragment_is_accessible_and_loads_only_the_site(fragment):
    article = f"<article class='bd-article'><h1>Try it</h1>{FRAGMENT.read_text()}</article>"
    html = BeautifulSoup(f"<title>T</title>{article}", "html.parser")
    page = site_checks.Page("page", FRAGMENT, html)
    for check in (site_checks.picture_problems, site_checks.form_problems):
        assert check(page) == []
    assert site_checks.outside_requests(page) == []
    loaded = [tag.get("src") or tag.get("href") for tag in fragment.select("script, link")]
    assert len(loaded) == 4
    assert [
        name for name in loaded if not (ASSETS / name.removeprefix("../_static/")).exists()
    ] == []


def test_colours_are_the_palette_of_the_figures():
    style = STYLE.read_text(encoding="utf-8")
    roles = re.findall(r"--sr-(?:teacher|student|safe|label-only|now): (#\w+)", style)
    assert len(roles) >= 10
    assert set(roles) <= set(colours.values())


@pytest.mark.parametrize(
    ("setting", "blocked", "cost"),
    [
        ("figure-1", True, np.log(35 / 18)),
        ("not-blocked", False, np.log(5 / 2)),
        ("same-ratio", True, 0.0),
        ("sure", True, np.log(35 / 18)),
    ],
)
def test_settings_show_what_their_names_say(setting, blocked, cost):
    given = node(f"show.SETTINGS[{json.dumps(setting)}]")
    parts = node("show.picture({...given, s: 1})", given)
    verdict = "Full imitation is blocked." if blocked else "Full imitation is not blocked."
    assert parts["words.verdict"]["text"] == verdict
    assert parts["words.cost"]["text"] == f"{cost:.3f}"
    for row in ("student", "teacher"):
        assert sum(given[row]) == pytest.approx(1, abs=1e-12)


ACT = """
const log = {};
const widget = document.querySelector(".safe-region");
const part = (name) => widget.querySelector(`[data-part="${name}"]`);
const read = () => ({ p: part("table.p1").textContent, t: part("table.t1").textContent,
  cost: part("words.cost").textContent, verdict: part("words.verdict").textContent,
  s: part("table.s").textContent, now: part("table.now1").textContent });
const press = (who, key, shiftKey = false) => part(`whole.${who}`).dispatchEvent(
  new KeyboardEvent("keydown", { key, shiftKey, bubbles: true, cancelable: true }));
const click = (selector) => widget.querySelector(selector).click();
const pointer = (target, type, x, y) => target.dispatchEvent(new PointerEvent(type,
  { pointerId: 1, button: 0, clientX: x, clientY: y, bubbles: true, cancelable: true }));
function drag(name, dx, dy) {
  const box = part(name).querySelector(".sr-dot").getBoundingClientRect();
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  pointer(part(name), "pointerdown", x, y);
  pointer(window, "pointermove", x + dx, y + dy);
  pointer(window, "pointerup", x + dx, y + dy);
}
log.start = read();
const spoken = ["role", "tabindex", "aria-label", "aria-valuenow", "aria-valuetext"];
log.handle = Object.fromEntries(
  spoken.map((name) => [name, part("whole.student").getAttribute(name)]));
log.hidden = [...widget.querySelectorAll("[hidden]")].map((node) => node.tagName);
press("student", "ArrowUp"); log.up = read();
press("student", "ArrowDown"); press("student", "ArrowRight", true); log.right = read();
click("[data-action=reset]");
for (let i = 0; i < 6; i += 1) press("teacher", "ArrowUp", true);
log.teacher = read();
click("[data-action=reset]"); log.reset = read();
drag("whole.teacher", 0, -80); log.dragged = read();
click("[data-action=reset]");
drag("corner.student", 0, -20); log.corner = read();
click("[data-action=reset]");
drag("whole.student", 3000, 3000); log.far = read();
click("[data-setting=sure]"); log.sure = read();
const pressed = [...widget.querySelectorAll("[aria-pressed=true]")];
log.pressed = pressed.map((node) => node.dataset.setting);
const slider = widget.querySelector("input");
slider.value = 1; slider.dispatchEvent(new Event("input")); log.end = read();
click("[data-action=reset]"); click("[data-action=play]"); log.played = read();
const print = document.createElement("pre");
print.id = "log"; print.textContent = JSON.stringify(log); document.body.append(print);
"""


@pytest.fixture(scope="module")
def acted(tmp_path_factory):
    """What the picture shows after each action, in a browser without a network."""
    browser = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(SCRIPTS, site / "_static" / "js")
    shutil.copytree(STYLE.parent, site / "_static" / "css")
    page = site / "part" / "page.html"
    page.parent.mkdir()
    act = f"<script>addEventListener('load', () => {{ {ACT} }});</script>"
    page.write_text(
        '<!DOCTYPE html><html data-theme="light"><meta charset="utf-8"><body>'
        f"{FRAGMENT.read_text(encoding='utf-8')}{act}</body></html>",
        encoding="utf-8",
    )
    command = [browser, *QUIET, f"--user-data-dir={site / 'profile'}", "--window-size=900,1400"]
    command += ["--force-prefers-reduced-motion"]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    log = BeautifulSoup(done.stdout, "html.parser").select_one("#log")
    assert log is not None, done.stderr[-2000:]
    return json.loads(log.text)


def test_handles_speak(acted):
    assert acted["handle"] == {
        "role": "slider",
        "tabindex": "0",
        "aria-label": "Student’s prediction",
        "aria-valuenow": "0.900",
        "aria-valuetext": "class 1: 0.900, class 2: 0.070, class 3: 0.030",
    }
    assert acted["hidden"] == ["P"]


def test_arrow_keys_move_the_handle(acted):
    up = 1 / (1 + np.exp(-np.log(9) - 0.1))
    assert acted["up"]["p"] == f"{up:.3f}"
    assert acted["up"]["cost"] == acted["start"]["cost"] == "0.665"
    r = 3 * np.exp(0.5) / (7 + 3 * np.exp(0.5))
    assert acted["right"]["p"] == "0.900"
    assert acted["right"]["cost"] == f"{np.log(7 / 12 / r):.3f}"


def test_a_surer_teacher_opens_imitation_at_the_same_price(acted):
    assert acted["teacher"]["cost"] == "0.665"
    assert acted["start"]["verdict"] == "Full imitation is blocked."
    assert acted["teacher"]["verdict"] == "Full imitation is not blocked."


def test_pointer_drags_in_both_triangles(acted):
    assert float(acted["dragged"]["t"]) > 0.5
    assert acted["dragged"]["p"] == "0.900"
    assert 0.905 < float(acted["corner"]["p"]) < 0.935
    assert 0.0005 <= float(acted["far"]["p"]) <= 0.01


def test_buttons_and_slider(acted):
    assert acted["reset"] == acted["start"]
    assert acted["start"]["s"] == "0.50"
    assert acted["sure"]["p"] == "0.9990"
    assert acted["pressed"] == ["sure"]
    assert acted["end"]["s"] == "1.00"
    assert acted["end"]["now"] == "0.99949"


def test_play_jumps_where_motion_is_unwanted(acted):
    assert acted["played"]["s"] == "1.00"
