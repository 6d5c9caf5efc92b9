"""Reports in a real browser: they load, ask for nothing, complain about nothing, and every figure is seen."""

import json
import shutil
from pathlib import Path

import pytest

from testbed.report import write_comparison, write_report
from testbed.results import read_results
from tests.testbed.chromium import COMMAND, Browser
from tests.testbed.report_samples import CANDIDATES, make
from tests.testbed.test_report import EVIL, FIGURES

SAMPLE = Path(__file__).parent / "data" / "sample"

pytestmark = pytest.mark.skipif(COMMAND is None, reason="needs the command chromium, chromium-browser or google-chrome")

# Of every drawing: whether all its marks, and their texts, are within it and have an extent and a colour of their own.
LOOK = """
[...document.querySelectorAll("figure")].map((figure) => {
  for (const details of figure.querySelectorAll("details")) details.open = true;
  const drawings = [...figure.querySelectorAll("svg[data-marks]")].map((svg) => {
    const frame = svg.getBoundingClientRect();
    const marks = [...svg.querySelectorAll(".curve, .flag, .tail, .fill, .cell, .box, .dot")];
    const paint = (mark) => {
      const style = getComputedStyle(mark);
      return mark.classList.contains("curve") ? style.stroke : style.fill;
    };
    const paper = getComputedStyle(document.body).backgroundColor;
    const outside = [...svg.querySelectorAll("text, rect, circle, line")].filter((node) => {
      const box = node.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    });
    return {
      title: svg.querySelector("title").textContent,
      marks: marks.length,
      unseen: marks.filter((mark) => ["none", "rgba(0, 0, 0, 0)", paper, "rgb(0, 0, 0)"].includes(paint(mark))).length,
      outside: outside.map((node) => node.outerHTML.slice(0, 90)),
      size: [frame.width, frame.height],
    };
  });
  return {
    key: figure.id, drawings, empty: figure.querySelectorAll(".nothing").length,
    rows: figure.querySelectorAll("tbody tr").length, caption: figure.querySelector("figcaption").textContent.length,
  };
})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report(make(folder, seeds=(1, 2)), folder)


@pytest.fixture(autouse=True)
def quiet(request):
    """No page may complain about anything, or ask for anything but itself."""
    browser = request.getfixturevalue("browser")
    for heard in (browser.messages, browser.requests, browser.violations):
        heard.clear()
    yield
    assert browser.messages == [] and browser.violations == []
    assert all(address.startswith("file://") and address.endswith(".html") for address in browser.requests), browser.requests


@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_is_seen(browser, report, dark):
    browser.open(report, dark=dark)
    assert len(browser.requests) == 1
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    figures = browser.run(LOOK)
    assert [each["key"] for each in figures] == FIGURES
    for each in figures:
        assert each["drawings"] and not each["empty"] and each["rows"] and each["caption"] > 20, each["key"]
        for drawing in each["drawings"]:
            assert drawing["marks"] and not drawing["unseen"] and not drawing["outside"], (each["key"], drawing)
            assert min(drawing["size"]) > 60


def test_a_narrow_window_needs_no_sideways_scrolling(browser, report):
    browser.open(report, width=420)
    assert browser.run("document.documentElement.scrollWidth <= 420")


def test_text_can_be_read(browser, report):
    # Contrast of text and background as WCAG 2.2 defines it; 4.5 is its level AA.
    contrast = """
    [...document.querySelectorAll("p, li, td, th, figcaption, summary, caption, .drawing text")].map((node) => {
      const luminance = (colour) => {
        const parts = colour.match(/[\\d.]+/g).map(Number).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const style = getComputedStyle(node), svg = node.tagName === "text";
      const box = svg && node.previousElementSibling;
      let behind = box && box.classList.contains("box") ? getComputedStyle(box).fill : null;
      for (let up = node; !behind && up; up = up.parentElement) {
        const colour = getComputedStyle(up).backgroundColor;
        if (colour !== "rgba(0, 0, 0, 0)") behind = colour;
      }
      const [a, b] = [luminance(svg ? style.fill : style.color), luminance(behind)].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), node.textContent.slice(0, 40), node.className.baseVal ?? node.className];
    }).filter(([ratio]) => ratio < 4.5)
    """
    for dark in (False, True):
        browser.open(report, dark=dark)
        assert browser.run(contrast) == [], dark


def test_names_in_legends_hide_and_show_their_curves(browser, report):
    browser.open(report)
    state = """(() => {
      const figure = document.getElementById("accuracy"), button = figure.querySelector(".legend button:last-child");
      const last = [...figure.querySelectorAll(".legend button")].at(-1);
      last.click();
      const marks = [...figure.querySelectorAll(".drawing svg ." + last.dataset.style)];
      return [last.getAttribute("aria-pressed"), marks.length, marks.filter((mark) => mark.classList.contains("off")).length,
              figure.querySelectorAll(".off").length];
    })()"""
    pressed, marks, off, all_off = browser.run(state)
    assert pressed == "false" and marks == off == all_off >= 2
    assert browser.run(state) == ["true", marks, 0, 0]


def test_headings_sort_their_tables(browser, report):
    browser.open(report)
    order = """((clicks) => {
      const table = document.querySelector("#ranking table"), heading = table.querySelectorAll("thead button")[3];
      for (let click = 0; click < clicks; click += 1) heading.click();
      return [...table.tBodies[0].rows].map((row) => Number(row.children[3].dataset.value));
    })"""
    once, twice = browser.run(f"{order}(1)"), browser.run(f"{order}(1)")
    assert once == sorted(once) and twice == once[::-1] and len(set(once)) > 5


def test_names_run_no_scripts(browser, tmp_path):
    results = make(tmp_path, candidates=CANDIDATES[3:6], seeds=(1,), prefix=EVIL)
    browser.open(write_report(results, tmp_path))
    browser.run("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    assert browser.run("document.querySelectorAll('img, [onerror]').length") == 0
    assert browser.run("document.body.textContent.includes('<script>alert(2)')")


def test_the_sample_and_comparisons_and_nothing(browser, tmp_path):
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLE, folder)
    results = read_results(folder)
    browser.open(write_report(results, folder))
    for each in browser.run(LOOK):
        assert each["drawings"] and all(drawing["marks"] and not drawing["outside"] for drawing in each["drawings"]), each
    browser.open(write_comparison([folder], tmp_path / "compared.html"))
    assert browser.run("document.querySelectorAll('figure svg[data-marks]').length") == 2
    (tmp_path / "nothing").mkdir()
    browser.open(write_report(json.loads("{}"), tmp_path / "nothing"))
    assert browser.run("document.querySelectorAll('figure .nothing').length") == len(FIGURES)
