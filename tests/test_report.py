"""The report: its numbers are those of the run folder, and it works in a browser without a network."""

import json
import re
import shutil
import time

import numpy as np
import pytest

from qcrl.cli.main import main
from qcrl.runs.files import file_hash
from qcrl.show.report import page, report

pytest_plugins = ["trained"]
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync --window-size=1200,900"


def numbers(path):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)[1])


def test_the_page_holds_the_results_unchanged(evaluated, tmp_path):
    data = numbers(report([evaluated.path], tmp_path / "new" / "report.html", replays=["worst"], episodes=3))
    result = json.loads((evaluated.path / "evaluation-jax.json").read_text())
    [shown] = data["evaluations"]
    assert (shown["rows"], shown["pooled"]) == (result["per_lane"], result["pooled"])
    [certificate] = data["certificates"]
    stored = json.loads((evaluated.path / "certificate-seed0-p0.1-d15.json").read_text())
    assert stored.items() <= certificate.items()
    curve = data["curves"][0]["columns"]["episode_return"]
    table = evaluated.metrics
    last = (table["probability"] == 0.1) & (table["env_steps"] == table["env_steps"].max())
    assert curve["mean"][-1] == pytest.approx(table["episode_return"][last].mean(), rel=1e-4)
    assert [episode["limit"] for episode in data["replays"]] == [15, 15]
    assert all(np.diff(episode["costs"]).min() >= 0 for episode in data["replays"])
    for episode in data["replays"]:  # costs are rounded, so the page is told what is over
        assert episode["over"] == [cost > 15 for cost in episode["costs"]]


def test_a_run_without_policies_or_results_has_a_page(trained, tmp_path):
    copy = shutil.copytree(trained.path, tmp_path / "bare")
    shutil.rmtree(copy / "policies")
    data = numbers(report([copy], tmp_path / "report.html"))
    assert (data["replays"], data["certificates"]) == ([], [])
    assert data["evaluations"][0]["name"] == "last 100 training episodes per seed"


def test_what_is_torn_is_named_and_the_rest_is_shown(evaluated, tmp_path):
    whole = json.loads((evaluated.path / "evaluation-jax.json").read_text())
    (evaluated.path / "evaluation-mujoco.json").write_text(json.dumps({**whole, "pooled": [{}]}))
    shutil.copy(evaluated.path / "evaluation-jax.csv", evaluated.path / "evaluation-mujoco.csv")
    (evaluated.path / "evaluation-host.json").write_text('{"engine": "ho')
    (evaluated.path / "certificate-seed1-p0.1-d15.json").write_text("{}")
    data = numbers(report([evaluated.path], tmp_path / "report.html", replays=[]))
    assert [each["rows"] for each in data["evaluations"]] == [whole["per_lane"]]
    assert [each["file"] for each in data["certificates"]] == ["certificate-seed0-p0.1-d15.json"]
    named = [re.search(r"[\w.-]+\.json", problem)[0] for problem in data["problems"]]
    assert named == ["evaluation-host.json", "evaluation-mujoco.json", "certificate-seed1-p0.1-d15.json"]


def test_a_policy_that_is_not_the_certified_one_is_named_and_not_shown_as_that(evaluated, tmp_path):
    file = evaluated.path / "certificate-seed0-p0.1-d15.json"
    show = lambda: numbers(report([evaluated.path], tmp_path / "report.html", ["first"], 1))
    certified = json.loads(file.read_text()) | {"verdict": "certified"}
    file.write_text(json.dumps(certified))
    data = show()
    assert [problem for problem in data["problems"] if "is another policy than the certified" in problem]
    assert ["promised policy" in each["title"] for each in data["replays"]] == [False, False]
    file.write_text(json.dumps(certified | {"policy_sha256": file_hash(evaluated.path / certified["policy"])}))
    data = show()
    assert data["problems"] == []
    assert ["promised policy" in each["title"] for each in data["replays"]] == [True, False]


def test_text_in_the_data_cannot_end_its_element():
    assert "</script><b>" not in page({"name": "</script><b>"})
    assert '"value":null' in page({"value": float("nan")})


@pytest.fixture
def browser(tmp_path):
    """Chromium, driven by selenium; without either the test is skipped."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if not (binary and driver):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield opened
    opened.quit()


def test_in_a_browser(evaluated, tmp_path, browser, capsys):
    out = tmp_path / "report.html"
    (evaluated.path / "certificate-seed1-p0.1-d15.json").write_text("{")
    assert main(["report", str(evaluated.path), "--episodes", "3", "--out", str(out)]) == 0
    browser.get(out.as_uri())
    run = browser.execute_script
    find = lambda selector: browser.find_element("css selector", selector)
    texts = lambda selector: [each.text for each in browser.find_elements("css selector", selector)]

    rows = run(
        "return [...document.querySelectorAll('#seeds tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    result = json.loads((evaluated.path / "evaluation-jax.json").read_text())
    ordered = []
    for pooled in result["pooled"]:
        own = [row for row in result["per_lane"] if row["probability"] == pooled["probability"]]
        ordered += [*((str(row["seed"]), row) for row in own), ("all 2 seeds", pooled)]
    assert len(rows) == len(ordered) == 6
    for cells, (name, row) in zip(rows, ordered):
        assert cells[:1] == [name]
        assert [int(cells[3]), int(cells[4])] == [row["episodes"], row["outages"]]
        assert cells[5:7] == [f"{row['outage']:.4f}", f"{row['outage_low']:.4f} to {row['outage_high']:.4f}"]
        shown = [float(cell) for cell in cells[7:]]
        keys = ("mean_return", "std_return", "mean_cost", "mean_cost_over", "cost_quantile", "cvar")
        assert shown[:6] == pytest.approx([row[key] for key in keys], abs=0.0051)
        assert shown[6:] == pytest.approx([row["weibull"]["outage"], row["gaussian"]["outage"]], abs=0.000051)
    assert texts("#certificates strong") == ["Violated"]
    assert "211 outages in 1340 episodes" in find(".card").text
    assert "certificate-seed1-p0.1-d15.json cannot be read: it is not JSON" in find("#runs .over").text
    assert "at most 0.1749, and at least 0.1412" in find(".card").text

    lines = "return document.querySelectorAll('#curves .line').length"
    assert run(lines) == 8
    find("#curves .legend button").click()
    assert run(lines) == 4

    step, picture = (
        lambda: int(find("#scrub").get_attribute("value")),
        "return document.querySelector('#scene').toDataURL()",
    )
    episode = numbers(out)["replays"][0]
    before = run(picture)
    assert (step(), find("#play").text) == (0, "Play")
    run("document.querySelector('[aria-label=speed]').value = 0.5")
    find("#play").click()
    deadline = time.monotonic() + 10
    while step() < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    find("#play").click()
    paused = step()
    assert paused >= 2
    assert run(picture) != before
    time.sleep(0.6)
    assert step() == paused
    run("const s = document.querySelector('#scrub'); s.value = 4; s.dispatchEvent(new Event('input'))")
    assert find("[data-name=step]").text == "4 of 4"
    assert find("[data-name=return]").text == f"{episode['returns'][4]:.2f}"
    assert float(find("[data-name=cost]").text.removesuffix(" over")) == pytest.approx(episode["costs"][4], abs=0.0051)

    assert run("return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length") == 0
    assert browser.get_log("browser") == []
