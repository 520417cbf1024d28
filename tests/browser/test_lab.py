"""Notebook 05 in a real JupyterLab, by a real browser: run all, move a slider, break it, see a vector turn red.

Needs Debian's chromium and Python Playwright (extra: browser). RLCORR_BROWSER=1 insists: without them the test then fails.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from lab_server import FLAGS, lab

PLAYWRIGHT = importlib.util.find_spec("playwright") is not None
if PLAYWRIGHT:
    from playwright.sync_api import Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "05_drift_and_score_centering.ipynb"
RUN, ANSWER = 180_000, 30_000  # milliseconds to wait for: the whole notebook, one answer of the kernel
COMPLAINTS = ", ".join(f'[data-mime-type="application/vnd.jupyter.{kind}"]' for kind in ("stderr", "error"))
FINISHED = """complaints => document.querySelector(complaints) !== null
    || ![...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")].some(prompt => /\\[[ *]\\]:/.test(prompt.textContent))"""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(
    not (PLAYWRIGHT and CHROMIUM) and os.environ.get("RLCORR_BROWSER") != "1",
    reason="not run: needs chromium and playwright",
)
P = np.array([0.40, 0.25, 0.15, 0.10, 0.06, 0.04])  # the notebook's trainer, sampler and reward
Q = np.array([0.30, 0.04, 0.36, 0.18, 0.05, 0.07])
R = np.array([1.0, 2.0, 0.0, 0.5, 0.5, -1.0])


@pytest.fixture
def page(tmp_path):
    """The notebook, open in a browser, with its kernel ready."""
    assert PLAYWRIGHT and CHROMIUM, "RLCORR_BROWSER=1 needs chromium (apt-get) and playwright (pip)"
    (tmp_path / "lab").mkdir()
    with lab(tmp_path / "lab", NOTEBOOK, ROOT) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            page = browser.new_page(viewport={"width": 1400, "height": 1300})
            page.goto(server.page(NOTEBOOK.name))
            page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=RUN)
            expect(page.get_by_role("button", name="| Idle")).to_be_visible(timeout=RUN)
            yield page
        finally:
            browser.close()


def run_all(page: Page) -> None:
    """The menu's own command; done when every cell has its number (hidden solutions show none), or when one complains."""
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
    expect(page.locator(".jp-CodeCell .jp-InputPrompt", has_text="[1]:")).to_be_attached(timeout=RUN)
    page.wait_for_function(FINISHED, arg=COMPLAINTS, timeout=RUN)
    assert page.locator(COMPLAINTS).all_text_contents() == []
    expect(page.get_by_role("button", name="| Idle")).to_be_visible(timeout=RUN)


def output(page: Page, code: str) -> Locator:
    """The output of the one code cell whose source holds `code`."""
    cell = page.locator(".jp-CodeCell", has=page.locator(".jp-InputArea-editor", has_text=code))
    expect(cell).to_have_count(1)
    cell.scroll_into_view_if_needed()
    return cell.locator(".jp-OutputArea")


def split(scale: float, shift: float) -> str:
    """eq-drift by hand: what the notebook's figure has to say."""
    sampler = P ** (1 - scale) * Q**scale
    sampler /= sampler.sum()
    reward = R + shift
    drift, signal = (sampler @ reward) * (sampler - P), sampler * (reward - sampler @ reward)
    return f"|drift|/|signal| = {np.linalg.norm(drift) / np.linalg.norm(signal):.2f}"


def verdict(shown: Locator, vector: str) -> Locator:
    """The cell of the table that holds the verdict of a vector."""
    return shown.locator("tr", has_text=vector).locator("td").nth(2)


def redness(cell: Locator) -> int:
    """Red minus green of the cell's background."""
    colour = cell.evaluate("cell => getComputedStyle(cell).backgroundColor")
    red, green = map(int, re.findall(r"\d+", colour)[:2])
    return red - green


@pytest.mark.slow
@needs_browser
def test_notebook_answers_to_a_reader(page, tmp_path):
    run_all(page)
    assert page.locator(".jupyter-widgets-error-widget").count() == 0, "a widget that JupyterLab cannot show"
    assert page.get_by_text("No front end").count() == 0, "the static fallback was drawn although widgets can answer"

    dial = output(page, "def draw_split")
    number, picture = dial.locator(".widget-html-content b"), dial.locator("img")
    expect(number).to_have_text(split(1.0, 2.0), timeout=ANSWER)
    expect(picture).to_have_js_property("complete", True)
    before = picture.get_attribute("src")
    dial.locator(".noUi-handle").first.press("ArrowRight")
    expect(number).to_have_text(split(1.25, 2.0), timeout=ANSWER)
    expect(picture).not_to_have_attribute("src", before, timeout=ANSWER)
    page.screenshot(path=tmp_path / "slider.png")

    bench = output(page, "teaching.break_it(")
    for vector in ("centre.0102", "centre.0007", "centre.0001", "grad.0012"):
        expect(verdict(bench, vector)).to_contain_text("passes", timeout=ANSWER)
        assert redness(verdict(bench, vector)) < 0, "a passing vector is not green"
    bench.get_by_role("button", name="Break it").click()
    expect(verdict(bench, "centre.0102")).to_contain_text("fails", timeout=ANSWER)
    assert redness(verdict(bench, "centre.0102")) > 50, "a failing vector is not red"
    expect(verdict(bench, "grad.0012")).to_contain_text("passes")
    expect(bench.locator("p", has_text="centering-sign")).to_contain_text("the drift is doubled")
    bench.scroll_into_view_if_needed()
    page.screenshot(path=tmp_path / "broken.png")

    bench.locator("select").select_option("centering-without-advantage")
    expect(verdict(bench, "centre.0102")).to_contain_text("passes", timeout=ANSWER)
    expect(verdict(bench, "centre.0007")).to_contain_text("fails")
    bench.get_by_role("button", name="Repair it").click()
    expect(verdict(bench, "centre.0007")).to_contain_text("passes", timeout=ANSWER)
    assert (tmp_path / "slider.png").stat().st_size > 10_000 and (tmp_path / "broken.png").stat().st_size > 10_000
