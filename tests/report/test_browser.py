"""The report in a real browser: everything is there and visible, at desktop and telephone width."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from fedmef.report.reading import read_runs
from fedmef.report.writing import write_report
from tests.small import small, write_run

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
FIGURES = ["accuracy", "memory", "traffic", "adjustments", "densities", "costs"]

pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM.exists() and DRIVER.exists()),
        reason="there is no browser: apt install chromium chromium-driver",
    ),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    layers = {"features.0.0": (4, 4), "features.1.0": (1, 10)}
    for seed in (0, 1):
        write_run(runs / f"a{seed}", small("fedavg", seed), [0.2, 0.6, 0.9 + seed / 20])
        for method in ("fedtiny", "fedmef", f"mine.{'long.' * 30}package:<b>Method"):
            path = runs / f"{method[:8]}{seed}"
            write_run(path, small(method, seed), [0.2, 0.5, 0.8], {1: (0.6, 0.5)}, layers)
    return write_report(read_runs([runs]), runs / "report")


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark"), (360, "light")])
def test_the_table_and_every_figure_are_visible(
    browser: webdriver.Chrome, page: Path, width: int, theme: str
) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(page.as_uri())

    rows = browser.find_elements(By.CSS_SELECTOR, "#headline-table tbody tr")
    assert [row.text.split()[0] for row in rows[:3]] == ["fedavg", "fedtiny", "fedmef"]
    assert len(rows) == 4
    assert all(row.is_displayed() for row in rows)

    for name in FIGURES:
        image = browser.find_element(By.CSS_SELECTOR, f"section[aria-labelledby={name}] img")
        assert image.is_displayed(), name
        assert image.size["width"] > 250, name
        assert image.size["height"] > 60, name
        assert browser.execute_script("return arguments[0].naturalWidth", image) > 0, name
        assert image.get_attribute("alt")
    assert len(browser.find_elements(By.TAG_NAME, "img")) == len(FIGURES)
    assert len(browser.find_elements(By.TAG_NAME, "details")) == 8

    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if theme == "light" else "rgb(20, 23, 27)")
    log = browser.get_log("browser")  # type: ignore[no-untyped-call]
    assert [entry for entry in log if entry["level"] == "SEVERE"] == []
