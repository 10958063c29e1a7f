"""Figures, and what they and the report read from run folders."""

import json
import math
import shutil

import numpy as np
import pytest
from scipy import stats

from qcrl.cli.main import main
from qcrl.runs.folder import load
from qcrl.show import curves as analysis
from qcrl.show.curves import read_curves
from qcrl.show.figures import DASHES, FORMATS, PALETTE, cost_figure, figure, plot

pytest_plugins = ["trained"]
HEADER = "seed,probability,limit,iteration,env_steps,episode_return,episode_cost,outage,multiplier\n"
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture
def table(tmp_path):
    """Two seeds of which the second ends a step earlier; 1, 3 and 2, 6 are returns at equal steps."""
    rows = ["0,0.1,15,1,100,1,30,0.5,0", "1,0.1,15,1,100,3,10,0.3,0", "0,0.1,15,2,200,2,12,0.2,1"]
    rows += ["1,0.1,15,2,200,6,8,0.1,3", "0,0.1,15,3,300,5,9,0.1,2"]
    path = tmp_path / "thin.csv"
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return path


def test_mean_and_deviation_over_the_seeds_that_got_so_far(table):
    [curves] = read_curves([table])
    steps, mean, std = curves.over_seeds("episode_return")
    assert steps.tolist() == [100, 200, 300]
    assert mean.tolist() == [2, 4, 5]
    assert std.tolist() == [1, 2, 0]
    assert (curves.seeds, curves.probability, curves.limit) == ([0, 1], 0.1, 15)


def test_a_figure_draws_the_means_the_targets_and_a_legend_that_covers_nothing(table):
    drawn = figure(read_curves([table]), ("episode_return", "outage", "episode_cost"))
    returns, outage, cost = drawn.axes
    assert returns.lines[0].get_xydata().tolist() == [[100, 2], [200, 4], [300, 5]]
    assert outage.lines[0].get_ydata() == pytest.approx([0.4, 0.15, 0.1])
    assert outage.lines[-1].get_ydata() == [0.1, 0.1]
    assert cost.lines[-1].get_ydata() == [15, 15]
    drawn.canvas.draw()
    legend = drawn.legends[0].get_window_extent()
    assert not any(legend.overlaps(axes.get_window_extent()) for axes in drawn.axes)


@pytest.mark.parametrize(("other", "scale"), [(20, "linear"), (31, "symlog"), (0, "linear")])
def test_multipliers_of_very_different_size_share_a_logarithmic_axis(tmp_path, other, scale):
    path = tmp_path / "two.csv"
    path.write_text(f"{HEADER}0,0.1,15,1,100,1,9,0.1,1\n0,0.2,15,1,100,1,9,0.1,{other}\n")
    [axes] = figure(read_curves([path]), ["multiplier"]).axes
    assert axes.get_yscale() == scale


def test_one_column_per_environment_and_one_look_per_label(trained, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((trained.path / "config.json").read_text())
    config["environment"]["id"] = "GremlinEnv-v0"
    (other / "config.json").write_text(json.dumps(config))
    (other / "metrics.csv").write_bytes((trained.path / "metrics.csv").read_bytes())
    drawn = figure(read_curves([trained.path, other]), ("episode_return", "outage"))
    assert [axes.get_title() for axes in drawn.axes[:2]] == ["TwoPathEnv-v0", "GremlinEnv-v0"]
    looks = [[(line.get_color(), line.get_linestyle()) for line in axes.lines[:2]] for axes in drawn.axes[:2]]
    assert looks[0] == looks[1]
    assert len(set(looks[0])) == 2
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert labels == ["QCPO fast, p = 0.1", "QCPO fast, p = 0.2", "asked for"]


def test_labels_name_the_run_where_nothing_else_differs(trained, evaluated):
    labels = [curves.label for curves in read_curves([trained.path, evaluated.path])]
    assert labels[0] == "QCPO fast, p = 0.1 (two <paths>)"
    assert labels[2] == "QCPO fast, p = 0.1 (evaluated)"


def test_panels_name_the_run_where_nothing_else_differs(trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained.path, copy)
    titles = [axes.get_title() for axes in cost_figure([trained, load(copy)]).axes]
    assert len({*titles}) == len(titles) == 4
    assert titles[2].startswith("QCPO fast on TwoPathEnv-v0, p = 0.1 (copy)\n")


def test_colours_tell_algorithms_apart_and_line_styles_their_settings():
    columns = {name: np.ones(2) for name in ("seed", "env_steps", "outage")}
    columns["env_steps"] = np.arange(2)
    names = ["PPO_Lag", "QCPO, p = 0.1", "QCPO, p = 0.2", "WCSAC, p = 0.1"]
    drawn = figure([analysis.Curves(name, "E", 0.1, 15.0, "here", columns) for name in names], ["outage"])
    lag, low, high, other = drawn.axes[0].lines[:4]
    assert low.get_color() == high.get_color() != other.get_color() != lag.get_color()
    assert low.get_linestyle() == other.get_linestyle()
    assert len({repr(line._dash_pattern) for line in (lag, low, high)}) == 3


def test_styles_repeat_only_after_many_curves():
    assert math.lcm(len(PALETTE), len(DASHES)) == 28


@pytest.mark.parametrize(("kind", "format"), zip(["curves", "multiplier", "costs"], FORMATS))
def test_every_kind_and_every_format(evaluated, tmp_path, kind, format):
    out = plot([evaluated.path], tmp_path / "new" / f"figure{format}", kind)
    assert out.read_bytes().startswith(MAGIC[format])


def test_fitted_tails_as_curves():
    x = np.array([0.0, 1.0, 20.0])
    fitted = {"weibull": {"shape": 2.0, "scale": 4.0}, "gaussian": {"mean": 10.0, "std": 3.0}}
    curves = analysis.tails(fitted, x)
    assert curves["weibull"] == pytest.approx(np.exp(-((x / 4) ** 2)))
    assert curves["gaussian"] == pytest.approx(stats.norm.cdf((10 - x) / 3))
    assert analysis.tails({"weibull": None, "gaussian": {"mean": 0.0, "std": 0.0}}, x) == {}


def test_the_staircase_counts_episodes_that_cost_more():
    x, share = analysis.empirical_survival(np.array([0.0, 2.0, 2.0, 5.0]))
    assert x.tolist() == [0, 0, 2, 5]
    assert share.tolist() == [1, 0.75, 0.25, 0]


def test_without_an_evaluation_the_last_training_episodes_speak(trained):
    [evaluation] = analysis.evaluations(trained)
    assert evaluation.name == "last 100 training episodes per seed"
    table = trained.episodes
    own = (table["seed"] == 1) & (table["probability"] == 0.2)
    costs = table["cost"][own][-100:]
    row = next(row for row in evaluation.rows if (row["seed"], row["probability"]) == (1, 0.2))
    assert row["outages"] == (costs > 15).sum()
    assert row["cost_quantile"] == np.sort(costs)[79]
    assert row["cvar"] == pytest.approx(np.sort(costs)[80:].mean())
    interval = stats.binomtest(row["outages"], 100).proportion_ci(0.95, method="exact")
    assert (row["outage_low"], row["outage_high"]) == pytest.approx((interval.low, interval.high))
    assert [pooled["episodes"] for pooled in evaluation.pooled] == [200, 200]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plot", "nowhere"], "no run in"),
        (["plot", "RUN", "--out", "x.bmp"], "must end in .png, .svg, .pdf"),
        (["plot", "RUN", "--kind", "pie"], "choose one of curves, multiplier, costs"),
        (["plot", "RUN/config.csv"], "cannot be read"),
        (["report", "RUN", "--out", "x.pdf"], "must end in .html"),
        (["report", "nowhere"], "no run in"),
        (["plot", "RUN", "--out", "/proc/x.png"], "cannot write /proc/x.png"),
    ],
)
def test_mistakes_are_one_sentence(trained, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main([argument.replace("RUN", str(trained.path)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", ["", "[]", '{"engine": "jax"}', '{"deterministic": false, "episodes": 1}'])
def test_torn_results_are_named(evaluated, tmp_path, capsys, content):
    (evaluated.path / "evaluation-jax.json").write_text(content)
    assert main(["plot", str(evaluated.path), "--kind", "costs", "--out", str(tmp_path / "x.png")]) == 2
    assert "evaluation-jax.json" in capsys.readouterr().err
