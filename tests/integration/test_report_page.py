"""The report in a real browser: it draws, asks for nothing, and hands and keys can use it."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import DESKTOP, PHONE, chromium, missing
from made_campaign import make_campaign, scored_by_conv
from processes import until

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.html_report import write_report
from hydragnn_hpo.report.sections import SECTIONS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

LIGHT_INK, DARK_INK = "rgb(26, 31, 39)", "rgb(232, 235, 240)"


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    run = make_campaign(tmp_path_factory.mktemp("made") / "run")
    return write_report(RunDir(run.path)).as_uri()


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(DESKTOP, "light", id="desktop"),
        pytest.param(PHONE, "dark", id="phone", marks=pytest.mark.stress),
    ],
)
def test_all_charts_are_drawn_and_nothing_is_requested(browser, url, size, scheme):
    with browser.page(url, size, scheme) as seen:
        assert seen.draw_all() >= 20
        assert seen.page.evaluate("report.errors") == []
        assert seen.errors == []
        assert seen.requests == []
        empty = seen.page.evaluate(
            "[...document.querySelectorAll('.chart')].filter(c => !c.querySelector('svg, canvas'))"
            ".length"
        )
        assert empty == 0
        assert "WebGL is not supported" not in seen.page.inner_text("main")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        ink = seen.page.evaluate("getComputedStyle(document.body).color")
        assert ink == (LIGHT_INK if scheme == "light" else DARK_INK)


def test_the_policy_lets_no_request_out_and_no_script_in(browser, url):
    """What a page may not do is tried, so that the empty list of requests means something."""
    with browser.page(url) as seen:
        result = seen.page.evaluate(
            "fetch('http://127.0.0.1:9/').then(() => 'out', () => 'kept in')"
        )
        assert result == "kept in"
        seen.page.evaluate(
            "() => { const s = document.createElement('script');"
            " s.textContent = 'window.strange = 1'; document.body.append(s) }"
        )
        assert seen.page.evaluate("window.strange") is None

        def refused(what: str) -> bool:
            seen.page.wait_for_timeout(20)  # what the page complains of comes by itself
            return any("Content Security Policy" in e and what in e for e in seen.errors)

        until(lambda: refused("Connecting"), "refused request")
        until(lambda: refused("inline"), "refused script")


def test_it_can_be_used_by_keyboard_alone(browser, url):
    with browser.page(url) as seen:
        page = seen.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        fold = page.locator("#slots > details > summary")
        fold.focus()
        page.keyboard.press("Enter")
        table = page.locator('.frame[data-key="slots.causes"]').first
        heads = table.locator("thead button")
        heads.nth(1).focus()
        for order, step in (("ascending", 1), ("descending", -1)):
            page.keyboard.press("Enter")
            assert table.locator("th").nth(1).get_attribute("aria-sort") == order
            cells = table.locator("tbody tr td:nth-of-type(1) data")
            values = [float(v) for v in cells.evaluate_all("all => all.map(d => d.value)")]
            assert values == sorted(values)[::step]
        page.locator("#theme").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("getComputedStyle(document.body).color") == DARK_INK


def lines_of(page):
    """Return the chart of parallel coordinates, and how many lines are kept at the moment."""
    page.locator("#parallel > details > summary").click()
    chart = page.locator('figure[data-key^="parallel."] .chart').first
    chart.scroll_into_view_if_needed()
    chart.locator(".hit").first.wait_for()
    return chart, lambda count: page.wait_for_function(
        "n => document.querySelector('figure[data-key^=\"parallel.\"] .chart').dataset.kept == n",
        arg=count,
    )


def scored_of(url):
    """Count trials with a score by conv, from the journal of the page."""
    run = Path(urlsplit(url).path).parents[1]
    return scored_by_conv((run / "events.jsonl").read_bytes().splitlines())


def test_brushing_keeps_the_lines_that_pass(browser, url):
    """The axis of convs has three places: its upper half holds the last one and half the middle."""
    by_conv = scored_of(url)
    total = sum(by_conv.values())
    with browser.page(url) as seen:
        page = seen.page
        chart, kept = lines_of(page)
        kept(total)
        place = chart.locator(".hit").first.bounding_box()
        x = place["x"] + place["width"] / 2
        page.mouse.move(x, place["y"] + 3)
        page.mouse.down()
        page.mouse.move(x, place["y"] + 0.25 * place["height"], steps=5)
        page.mouse.up()
        kept(by_conv["gat"])  # the last choice stands on top
        page.mouse.move(x, place["y"] + 0.1 * place["height"])
        page.mouse.down()
        page.mouse.move(x, place["y"] + 0.5 * place["height"], steps=5)
        page.mouse.up()
        kept(by_conv["painn"])  # the mark was moved down to the middle
        page.mouse.click(x, place["y"] + 0.95 * place["height"])
        kept(total)


def test_keys_brush_and_order_the_axes(browser, url):
    by_conv = scored_of(url)
    with browser.page(url) as seen:
        page = seen.page
        chart, kept = lines_of(page)
        chart.locator('[data-axis="0"]').focus()
        page.keyboard.press("ArrowUp")
        kept(by_conv["painn"])
        assert "painn" in chart.locator('[data-axis="0"]').get_attribute("aria-label")
        for _ in range(7):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Shift+ArrowUp")
        kept(by_conv["schnet"])
        page.keyboard.press("ArrowRight")
        axes = chart.locator("[data-axis]")
        assert [axes.nth(k).get_attribute("data-axis") for k in range(3)] == ["1", "0", "2"]
        assert page.evaluate("document.activeElement.dataset.axis") == "0"
        page.keyboard.press("Escape")
        kept(sum(by_conv.values()))


def test_a_click_on_a_line_opens_its_trial(browser, url):
    """The line below the pointer is found again from the drawn data: the best trial's, in a gap."""
    with browser.page(url) as seen:
        page = seen.page
        chart, kept = lines_of(page)
        kept(sum(scored_of(url).values()))
        place = chart.locator(".lines svg").bounding_box()
        first, second = (chart.locator("[data-axis]").nth(k) for k in (0, 1))
        left, right = (of.locator("line").first.bounding_box()["x"] for of in (first, second))
        for step in range(1, 40):
            page.mouse.move((left + right) / 2, place["y"] + 64 + step * 9)
            page.wait_for_timeout(40)
            status_text = chart.locator(".brushed [role=status]").inner_text()
            if "click to open" in status_text:
                break
        name = re.search(r"; (\S+): click", status_text)[1]
        page.mouse.down()
        page.mouse.up()
        assert page.locator("#trial h2").inner_text() == f"Trial {name}"
        page.keyboard.press("Escape")
        page.mouse.click((left + right) / 2, place["y"] + 20)  # above all lines
        assert not page.locator("#trial").is_visible()
        assert seen.errors == []


def test_few_selected_trials_are_listed_to_open(browser, url):
    with browser.page(url) as seen:
        page = seen.page
        chart, _ = lines_of(page)
        assert chart.locator(".kept button").count() == 0
        last = chart.locator("[data-axis]").last
        last.focus()
        page.keyboard.press("ArrowUp")
        for _ in range(16):
            if 0 < int(chart.get_attribute("data-kept")) <= 12:
                break
            page.keyboard.press("ArrowUp")
            page.wait_for_timeout(40)
        few = int(chart.get_attribute("data-kept"))
        assert 0 < few <= 12
        names = chart.locator(".kept button")
        assert names.count() == few
        name = names.first.inner_text()
        names.first.focus()
        page.keyboard.press("Enter")
        page.locator("#trial").wait_for()
        assert page.locator("#trial h2").inner_text() == f"Trial {name}"
        assert seen.errors == []


def test_the_pointer_shows_name_and_formula(browser, url):
    with browser.page(url) as seen:
        figure = seen.page.locator("figure[data-key='heads.parity.charge']")
        figure.scroll_into_view_if_needed()
        point = figure.locator(".points path").nth(3)
        point.wait_for()
        place = point.bounding_box()
        seen.page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
        label = figure.locator(".hoverlayer .hovertext").first
        label.wait_for()
        assert re.search(r"made\.extxyz:\d+ \S+, atom [A-Z][a-z]? [012]", label.text_content())


def test_numbers_are_there_without_scripts(browser, url):
    with browser.page(url, java_script_enabled=False) as seen:
        assert seen.page.locator("data[data-key]").count() > 100
        assert "need JavaScript" in seen.page.inner_text("body")


def test_the_reader_comes_first_and_the_machine_is_folded(browser, url):
    """Of a campaign of 60 trials with three targets nine screens at most are open."""
    with browser.page(url, {"width": 1400, "height": 900}) as seen:
        page = seen.page
        section_ids = page.evaluate(
            "[...document.querySelectorAll('main > section')].map(s => s.id)"
        )
        assert section_ids == list(SECTIONS)
        assert page.evaluate("document.documentElement.scrollHeight") <= 9 * 900
        assert not page.locator(".frame[data-key='slots.causes']").is_visible()
        page.locator("nav a[href='#slots']").click()
        page.locator(".frame[data-key='slots.causes']").wait_for()


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(DESKTOP, id="desktop"),
        pytest.param(PHONE, id="phone", marks=pytest.mark.stress),
    ],
)
def test_a_click_on_a_row_shows_the_atoms_of_a_structure(browser, url, size):
    with browser.page(url, size) as seen:
        page = seen.page
        row = page.locator("#worst button[data-opens=structure]").first
        row.click()
        canvas = page.locator("#structure canvas[data-atoms]")
        canvas.wait_for()
        assert page.inner_text("#structure h2") == row.inner_text()
        assert canvas.get_attribute("data-atoms") == "3"
        assert canvas.get_attribute("data-bonds") in ("0", "1", "2")
        before = canvas.evaluate("c => c.toDataURL()")
        canvas.focus()
        page.keyboard.press("ArrowLeft")
        until(lambda: canvas.evaluate("c => c.toDataURL()") != before, "a turned structure")
        page.keyboard.press("Escape")
        assert not canvas.is_visible()
        assert seen.errors == []
        assert seen.requests == []


def test_a_click_on_a_point_shows_its_structure(browser, url):
    with browser.page(url) as seen:
        page = seen.page
        figure = page.locator("figure[data-key='heads.parity.gap']")
        figure.scroll_into_view_if_needed()
        point = figure.locator(".points path").nth(3)
        point.wait_for()
        place = point.bounding_box()
        page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
        page.locator("#structure canvas[data-atoms]").wait_for()
        assert re.fullmatch(r"made\.extxyz:\d+", page.inner_text("#structure h2"))
        assert "gap: predicted" in page.inner_text("#structure ul")
        assert seen.errors == []


def test_a_click_on_a_trial_opens_its_details(browser, url):
    with browser.page(url) as seen:
        seen.draw_all()  # a chart that is drawn on the way may move the button away
        page = seen.page
        button = page.locator("#members button[data-opens=trial]").first
        name = button.inner_text()
        button.click()
        panel = page.locator("#trial")
        panel.locator(".chart svg").first.wait_for()
        output = panel.inner_text()
        for part in (f"Trial {name}", "model.features = ", "Attempts", "weight in the ensemble"):
            assert part in output
        page.keyboard.press("Escape")
        assert not panel.is_visible()
        assert seen.errors == []


def test_a_wide_table_says_that_it_scrolls_on_a_phone(browser, url):
    with browser.page(url, PHONE) as seen:
        frame = seen.page.locator(".frame[data-key='headline.heads']")
        assert frame.evaluate("f => f.scrollWidth > f.clientWidth && f.matches('.wider')")
        hint = "getComputedStyle(f.nextElementSibling, '::before').content"
        assert "more columns" in frame.evaluate(f"f => {hint}")


def overlaps(first, second):
    return first["left"] < second["right"] - 1 and second["left"] < first["right"] - 1


@pytest.mark.stress
def test_no_label_of_a_legend_reaches_the_next_symbol_on_a_phone(browser, url):
    """Entries of one row: a text ends before the symbol of its neighbour begins."""
    boxes = """figure => [...figure.querySelectorAll('.legend .traces')].map(entry =>
        ['.legendtext', '.layers'].map(part => {
            const {left, right, top} = entry.querySelector(part).getBoundingClientRect();
            return {left, right, top: Math.round(entry.getBoundingClientRect().top)};
        }))"""
    with browser.page(url, PHONE) as seen:
        seen.draw_all()
        legends = [figure.evaluate(boxes) for figure in seen.page.locator("figure[data-key]").all()]
        assert sum(len(entries) > 1 for entries in legends) >= 5
        for entries in legends:
            for text, _ in entries:
                row = [symbol for _, symbol in entries if symbol["top"] == text["top"]]
                assert not any(overlaps(text, symbol) for symbol in row)
