"""report.html in Chromium: it asks for nothing, shows any text as text, sorts, filters, explains itself and prints."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from everything import HOSTILE, SCRIPT
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.browser

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
A4_POINTS, A4_PIXELS = (595, 842), 718  # without its margins
PHONE_PIXELS = 390
SHOWN = " ".join(HOSTILE.replace("`", "").split())


def table(browser: Chrome, name: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, f"[aria-label='{name}'] table")


def rows(browser: Chrome, of: WebElement) -> list[list[str]]:
    """The cells of the rows that are shown."""
    return browser.execute_script(
        "return [...arguments[0].tBodies[0].rows].filter(row => !row.hidden)"
        ".map(row => [...row.cells].map(cell => cell.textContent))",
        of,
    )


def column(browser: Chrome, of: WebElement, heading: str) -> list[str]:
    return [row[headings(of).index(heading)] for row in rows(browser, of)]


def headings(of: WebElement) -> list[str]:
    return [cell.get_property("textContent") for cell in of.find_elements(By.CSS_SELECTOR, "thead th")]


def press(of: WebElement, heading: str) -> str | None:
    """Press a heading, and say how the table is then sorted by it."""
    cell = of.find_elements(By.CSS_SELECTOR, "thead th")[headings(of).index(heading)]
    cell.find_element(By.TAG_NAME, "button").click()
    return cell.get_attribute("aria-sort")


# what it asks for, and what it does with any text


def requests(browser: Chrome) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def test_nothing_is_asked_of_anyone(browser: Chrome, page: str) -> None:
    asked = requests(browser)
    assert asked[0] == page
    assert {urlsplit(url).scheme for url in asked[1:]} <= {"data"}
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.fixture
def visits() -> Iterator[tuple[str, list[str]]]:
    """The address of a server on this machine, and what it was asked for."""
    seen: list[str] = []

    class Seen(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Seen)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", seen
    server.shutdown()
    server.server_close()


TRY = """
const [address, done] = arguments;
const refused = [];
addEventListener("securitypolicyviolation", ({ effectiveDirective }) => {
  refused.push(effectiveDirective);
  if (refused.length === 4) done(refused.sort());
});
new Image().src = address;
fetch(address).catch(() => {});
document.head.append(Object.assign(document.createElement("script"), { textContent: "window.ran = true" }));
document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: address }));
"""


def test_even_a_script_in_it_could_reach_no_one(browser: Chrome, visits: tuple[str, list[str]]) -> None:
    address, seen = visits
    browser.set_script_timeout(20)
    refused = browser.execute_async_script(TRY, address)
    assert refused == ["connect-src", "img-src", "script-src-elem", "style-src-elem"]
    assert browser.execute_script("return window.ran") is None
    assert seen == []


def test_names_and_reasons_are_shown_as_text(browser: Chrome) -> None:
    assert browser.title == f"Title {SCRIPT}"
    assert browser.find_element(By.TAG_NAME, "h1").text == f"Title {SCRIPT}"
    assert browser.find_element(By.CSS_SELECTOR, "#of-vit h2").text == f"ViT {SHOWN}"
    assert browser.find_element(By.CSS_SELECTOR, ".claims h3").text == f"fast Fast {SCRIPT} (x)"
    failed = table(browser, "Failed: 3 runs")
    assert rows(browser, failed) == [["vit", "broken", "1–3", SHOWN]]
    assert rows(browser, table(browser, "What the machine lacks")) == [[SHOWN, "missing", SHOWN, SHOWN]]
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 1
    assert browser.find_elements(By.CSS_SELECTOR, "img:not([src^='data:image/svg+xml'])") == []


# tables


def test_a_heading_sorts_up_down_and_back(browser: Chrome) -> None:
    variants = table(browser, "Variants of vit")
    before = column(browser, variants, "variant")
    assert before == ["fp32", "bf16", "blocks", "te-linears", "shaky", "broken"]
    assert press(variants, "step ms") == "ascending"
    assert column(browser, variants, "variant") == ["te-linears", "blocks", "bf16", "fp32", "shaky", "broken"]
    assert press(variants, "step ms") == "descending"
    assert column(browser, variants, "variant") == ["fp32", "bf16", "blocks", "te-linears", "shaky", "broken"]
    assert press(variants, "mJ/image") == "ascending"  # 1,000 is more than 230
    assert column(browser, variants, "variant")[:4] == ["te-linears", "blocks", "bf16", "fp32"]
    assert variants.find_elements(By.CSS_SELECTOR, "[aria-sort]") != []
    press(variants, "mJ/image")
    assert press(variants, "mJ/image") is None
    assert column(browser, variants, "variant") == before


def test_words_sort_as_words(browser: Chrome) -> None:
    variants = table(browser, "Variants of vit")
    press(variants, "variant")
    assert column(browser, variants, "variant") == sorted(column(browser, variants, "variant"))


def test_the_runs_unfold_and_can_be_filtered(browser: Chrome) -> None:
    runs = table(browser, "Runs")
    assert not runs.is_displayed()
    browser.find_element(By.CSS_SELECTOR, "#runs summary").click()
    assert runs.is_displayed()
    everything = rows(browser, runs)
    field = browser.find_element(By.CSS_SELECTOR, "#runs input")
    field.send_keys("vit DISTURBED")
    assert [row[:4] for row in rows(browser, runs)] == [["vit", "shaky", str(n), "disturbed"] for n in (1, 2, 3)]
    assert browser.find_element(By.CSS_SELECTOR, "#runs output").text == f"3 of {len(everything)} rows"
    struck = runs.find_elements(By.CSS_SELECTOR, "tr:not([hidden]) td s")
    assert re.fullmatch(r"3\d\d\.\d", struck[0].text)
    field.send_keys(" nothing")
    assert rows(browser, runs) == []
    field.clear()
    field.send_keys(Keys.SPACE)
    assert rows(browser, runs) == everything


# charts


def marks(browser: Chrome, title: str) -> list[WebElement]:
    """What can be asked in the chart of that title."""
    (found,) = [
        figure
        for figure in browser.find_elements(By.CSS_SELECTOR, "#of-vit figure")
        if figure.find_element(By.TAG_NAME, "strong").text == f"{title}."
    ]
    return found.find_elements(By.CSS_SELECTOR, "svg[tabindex], g[tabindex]")


@pytest.mark.parametrize(
    ("title", "place", "said"),
    [
        (
            "Speed-up over the baseline",
            2,
            r"blocks: 1\.\d+ \[.*\], 3 pairs\nms by replicate: 1: 28\d.*\nbf16, the base",
        ),
        ("Kernel time by kind", 1, r"bf16, ms per step, mean of 3 replicates: 36\d\nGEMM 172 \(48 %\)\n"),
        (
            "Peak memory against throughput",
            2,
            r"blocks: 44\d images/s at 54.2 GiB\nms by repl.*\nGiB by repl.*3: 54.2$",
        ),
        ("Step time of each replicate", 4, r"shaky, ms by replicate: 1: 33\d.* \(disturbed\).*\n1: <script>alert\(1"),
    ],
)
def test_a_mark_says_what_it_rests_on_to_mouse_and_keyboard(browser: Chrome, title: str, place: int, said: str) -> None:
    tip = browser.find_element(By.ID, "tip")
    mark, next_mark = marks(browser, title)[place : place + 2]
    shape = mark.find_elements(By.CSS_SELECTOR, ".mark, .point")
    assert not tip.is_displayed()
    ActionChains(browser).move_to_element(shape[0] if shape else mark).perform()
    assert tip.is_displayed() and re.match(said, tip.text)
    shown = browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", tip)
    assert shown["left"] >= 0 and shown["right"] <= 1200
    browser.execute_script("arguments[0].focus()", mark)
    ActionChains(browser).send_keys(Keys.TAB).perform()
    assert browser.switch_to.active_element == next_mark
    # as a page does that scrolls beneath a pointer
    over = 'arguments[0].dispatchEvent(new PointerEvent("pointerover", { bubbles: true }))'
    for beneath in (mark, browser.find_element(By.TAG_NAME, "body")):
        browser.execute_script(over, beneath)
    assert tip.is_displayed() and tip.text.split("\n")[0] in next_mark.get_attribute("aria-label")
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()


def test_dots_and_intervals_lie_where_their_numbers_are(browser: Chrome) -> None:
    """By the axis's own ticks: the middle of a drawn dot against the number at the end of its line."""
    chart = browser.find_element(By.CSS_SELECTOR, "#of-vit .chart")
    middles = """
        const middle = (element) => { const box = element.getBoundingClientRect(); return (box.left + box.right) / 2; };
        const ticks = [...arguments[0].querySelectorAll("thead text")].map((tick) => [tick.textContent, middle(tick)]);
        const lines = [...arguments[0].tBodies[0].rows].map((row) =>
            [row.cells[2].textContent, [...row.querySelectorAll(".mark, .end")].map(middle)]);
        return [ticks, lines.filter(([, places]) => places.length)];
    """
    ticks, lines = browser.execute_script(middles, chart)
    (first, start), (last, end) = ((float(text), place) for text, place in (ticks[0], ticks[-1]))
    scale = (end - start) / (last - first)
    assert len(lines) == 4
    for said, places in lines:
        numbers = [1.0] if said == "baseline" else [float(text) for text in re.findall(r"\d+\.\d+", said)]
        low_to_high = sorted(numbers)
        assert sorted(places) == pytest.approx([start + (number - first) * scale for number in low_to_high], abs=2.5)


def test_figures_of_operators_are_images_with_a_text(browser: Chrome) -> None:
    images = browser.find_elements(By.TAG_NAME, "img")
    assert len(images) == 2
    for image in images:
        assert image.get_property("naturalWidth") > 100 and image.get_attribute("alt")


# how it looks


def background(browser: Chrome) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_dark_and_light_by_preference_and_by_the_switch(browser: Chrome, page: str) -> None:
    white, dark = "rgb(255, 255, 255)", "rgb(22, 24, 27)"
    for preferred, other in ((white, dark), (dark, white)):
        scheme = "light" if preferred == white else "dark"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(page)
        assert background(browser) == preferred
        browser.find_element(By.ID, "theme").click()
        assert background(browser) == other
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
        assert background(browser) == white


CONTRAST = """
const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255)
  .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
const light = (colour) => channels(colour).reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
const behind = (element) => {
  const colour = getComputedStyle(element).backgroundColor;
  return colour.startsWith("rgba(0, 0, 0, 0") ? behind(element.parentElement) : colour;
};
const texts = "p, h1, h2, h3, li, a, td, th, dt, dd, s, code, figcaption, summary, button, text";
return [...document.querySelectorAll(texts)]
  .filter((element) => element.textContent.trim() && element.checkVisibility())
  .map((element) => {
    const style = getComputedStyle(element);
    const both = [element.namespaceURI.endsWith("svg") ? style.fill : style.color];
    // numbers in bars stand on a halo of their own
    both.push(element.classList.contains("inside") ? style.stroke : behind(element));
    const [low, high] = both.map(light).sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), element.textContent.slice(0, 40)];
  }).sort((a, b) => a[0] - b[0])[0];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_the_contrast_that_wcag_asks_for(browser: Chrome, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    least, text = browser.execute_script(CONTRAST)
    assert least >= 4.5, text


REACH = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"


def test_on_a_phone_only_tables_scroll_sideways(browser: Chrome, page: str) -> None:
    phone = {"width": PHONE_PIXELS, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(page)
    assert browser.execute_script(REACH) == [PHONE_PIXELS, PHONE_PIXELS]


def test_it_prints_on_a4_with_nothing_cut_off(browser: Chrome) -> None:
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", base64.b64decode(printed))
    assert boxes and {(round(float(width)), round(float(height))) for width, height in boxes} == {A4_POINTS}
    width = {"width": A4_PIXELS - 15, "height": 1000, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", width)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    reached, there = browser.execute_script(REACH)
    assert reached == there
    cut = "return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
    assert browser.execute_script(cut) == 0
    assert not browser.find_element(By.CSS_SELECTOR, "nav").is_displayed()
    assert not browser.find_element(By.CSS_SELECTOR, ".filter").is_displayed()


@pytest.mark.parametrize("scope", sorted(path.parent.name for path in REFERENCE.glob("*/report.html")))
def test_the_committed_page_opens_without_a_complaint(chromium: Chrome, scope: str) -> None:
    for log in ("performance", "browser"):
        chromium.get_log(log)
    address = (REFERENCE / scope / "report.html").as_uri()
    chromium.get(address)
    assert {url for url in requests(chromium) if not url.startswith("data:")} == {address}
    assert chromium.get_log("browser") == []
    assert len(chromium.find_elements(By.CSS_SELECTOR, ".chart")) >= 3
