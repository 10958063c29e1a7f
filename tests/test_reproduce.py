"""Reproductions: thin results, tables and verdicts whose numbers are made up, and one figure from training to page."""

import csv
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy.stats import binomtest, t, weibull_min

from qcrl import Outage, UserError, make
from qcrl.algos.quantile_advantage import CostDistribution
from qcrl.cli import main as cli
from qcrl.envs.base import Description
from qcrl.envs.point import pictures as render
from qcrl.quantiles import grid
from qcrl.reproduce import FIGURES, claims, main, reproduce, tail, tail_rollouts, two_path
from qcrl.reproduce.results import collect, thin
from qcrl.reproduce.scale import scaled
from qcrl.runs.jax_policy import JaxPolicy
from qcrl.runs.lane import Lane
from qcrl.sweeps import sweep
from qcrl.sweeps.grid import cells
from qcrl.tails import Weibull
from sweep_grids import GRID


def made_up(root, environment, label, outages, returns, costs=(15.0,), probability=0.1, evaluated=True):
    """Thin results of one setting, a seed for each outage, over 1,000 episodes."""
    folder = root / environment / label
    folder.mkdir(parents=True)
    seeds = range(len(outages))
    config = {
        "algorithm": {"name": label.split("-")[0]},
        "preset": "authors",
        "environment": {"id": environment},
        "steps": 5_000_000,
        "lanes": [[seed, probability, 15.0] for seed in seeds],
        "setup": {"device": "cpu: cpu", "jax": "0"},
        "training_seconds": 90,
    }
    (folder / "config.json").write_text(json.dumps(config))
    header = "seed,probability,limit,iteration,env_steps,episode_return,episode_cost,cost_quantile,outage,multiplier\n"
    lines = [
        f"{seed},{probability},15.0,{i},{12000 * i},{returns[seed % len(returns)]},20,30,"
        f"{outages[seed] + 0.3 * (i < 3)},1"
        for i in (1, 2, 3)
        for seed in seeds
    ]
    (folder / "metrics.csv").write_text(header + "\n".join(lines) + "\n")
    if evaluated:
        header = "seed,probability,limit,episodes,outages,outage,mean_cost,cost_quantile,mean_return,std_return\n"
        lines = [
            f"{seed},{probability},15.0,1000,{round(1000 * outages[seed])},{outages[seed]},{costs[seed % len(costs)]},"
            f"30,{returns[seed % len(returns)]},1"
            for seed in seeds
        ]
        (folder / "evaluation.csv").write_text(header + "\n".join(lines) + "\n")


def verdicts(judged):
    return {claim.text: claim.verdict for claim in judged}


def test_claims_are_judged_by_intervals_over_seeds(tmp_path):
    spread = (0.09, 0.1, 0.11)
    for environment in main.ENVIRONMENTS:
        shift = 0.2 if environment == "GremlinEnv-v0" else 0.0
        made_up(tmp_path, environment, "qcpo-authors", [each + shift for each in spread], [10, 11, 12])
        made_up(tmp_path, environment, "ppo_lag-authors", [0.32, 0.33, 0.34], [20, 21, 22], [14.7, 15.0, 15.4])
        over = 0.0 if environment == "SimpleButtonEnv-v0" else 0.3
        made_up(tmp_path, environment, "wcsac-paper", [each + over for each in spread], [5, 6, 7])
    found = verdicts(main.claims(collect([tmp_path])))
    assert list(found.values()) == [
        "holds in part as far as can be told",  # QCPO is off its target on GremlinEnv, and .2 was not run
        "holds",
        "holds",
        "holds as far as can be told",
        "holds as far as can be told",
        "holds",
        "does not hold as far as can be told",
        "holds as far as can be told",
    ]
    bottom, top = claims.interval(np.array(spread))
    assert (bottom, top) == pytest.approx(t.interval(0.95, 2, 0.1, 0.01 / np.sqrt(3)))


@pytest.mark.parametrize("name", ["metrics.csv", "evaluation.csv"])
def test_torn_results_are_not_drawn(name, tmp_path):
    made_up(tmp_path, "DynamicEnv-v0", "qcpo-authors", [0.1, 0.1, 0.11], [1])
    torn = tmp_path / "DynamicEnv-v0" / "qcpo-authors" / name
    whole = torn.read_text()
    torn.write_text(whole[:-3])
    with pytest.raises(UserError, match=f"{name} is not whole"):
        collect([tmp_path])
    torn.write_text("".join(whole.splitlines(keepends=True)[:2]))
    if name == "metrics.csv":
        assert len(collect([tmp_path])) == 1  # a lane that was frozen at once has no rows
    else:
        with pytest.raises(UserError, match="lacks 2 lanes"):
            collect([tmp_path])


def test_routes_have_the_colours_of_the_film():
    lines = two_path.draw([]).axes[0].lines[:3:2]  # a line at the mean follows each density
    assert [tuple(np.round(255 * line.get_color()).astype(int)) for line in lines] == list(render.ROUTES)


def test_without_runs_nothing_is_claimed(tmp_path):
    made_up(tmp_path, "DynamicEnv-v0", "qcpo-authors", [0.1, 0.1, 0.11], [1])
    assert set(verdicts(main.claims(collect([tmp_path]))).values()) == {"cannot be told"}


@pytest.mark.parametrize(
    ("holds", "expected", "verdict"),
    [
        ([True, True], 2, "holds"),
        ([True, False], 2, "holds in part"),
        ([True, None], 2, "holds as far as can be told"),
        ([True, None, None], 3, "cannot be told"),
        ([True], 8, "cannot be told"),
        ([False, None, None], 3, "does not hold as far as can be told"),
        ([None], 1, "cannot be told"),
    ],
)
def test_a_claim_is_not_held_by_a_few_of_its_comparisons(holds, expected, verdict):
    comparisons = [claims.Comparison(each, "") for each in holds]
    assert claims.judge("", comparisons, expected).verdict == verdict


def test_seeds_that_scatter_too_much_decide_nothing(tmp_path):
    made_up(tmp_path, "DynamicEnv-v0", "qcpo-authors", [0.0, 0.1, 0.4], [1])
    made_up(tmp_path, "DynamicEnv-v0", "wcsac-paper", [0.0, 0.1, 0.4], [1])
    found = verdicts(main.claims(collect([tmp_path])))
    assert set(found.values()) == {"cannot be told"}


def test_small_probabilities_take_longer_to_settle(tmp_path):
    for probability, outages in ((0.5, [0.2, 0.2]), (0.2, [0.2, 0.2]), (0.1, [0.4, 0.4])):
        root = tmp_path / str(probability)
        made_up(root, "DynamicEnv-v0", "qcpo-authors", outages, [1], probability=probability)
    found = collect(tmp_path / str(each) for each in (0.5, 0.2, 0.1))
    claim = claims.settling_order(found, ["DynamicEnv-v0"])
    # The made-up outage is .3 higher until the third row, at 36,000 steps.
    assert claim.verdict == "holds"
    assert "0.5 0.012M, 0.2 0.036M, 0.1 never" in claim.evidence


def test_the_page_has_table_claims_and_what_is_missing(tmp_path, capsys):
    made_up(tmp_path / "main", "DynamicEnv-v0", "qcpo-authors", [0.08, 0.1, 0.12], [10, 11, 12])
    made_up(tmp_path / "main", "DynamicEnv-v0", "qcpo-tuned", [0.1], [10], evaluated=False)
    assert cli.main(["reproduce", "main", "--from", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "main.md").read_text()
    low, high = binomtest(300, 3000).proportion_ci(method="exact")
    setting = "| DynamicEnv-v0 | qcpo-authors | 0.1 | 3 |"
    assert f"{setting} 0.100 ± 0.020 | 20.0 ± 0.0 | 11.0 ± 1.0 | 1.0 |" in page
    assert f"{setting} 0.100 ± 0.020 | {low:.3f} to {high:.3f} | 15.0 ± 0.0 |" in page
    assert max(map(len, page.splitlines())) <= 140
    assert "- DynamicEnv-v0 wcsac-paper at 0.2" in page
    assert "- DynamicEnv-v0 qcpo-authors at 0.1" not in page
    assert "- DynamicEnv-v0 qcpo-authors at 0.2" in page
    assert "- DynamicEnv-v0 qcpo-tuned at 0.1: fresh episodes" in page
    assert "3.0 minutes" in page
    with open(tmp_path / "out" / "main.csv", newline="") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert float(rows["qcpo-authors"]["fresh_outage_low"]) == pytest.approx(low)
    assert rows["qcpo-tuned"]["fresh_outage"] == rows["qcpo-tuned"]["training_outage_std"] == ""
    assert (tmp_path / "out" / "main.png").stat().st_size > 10_000


def test_a_figure_borrows_what_its_grid_asks_for_and_sorts_it(tmp_path):
    for name, probability in (("epsilon", 0.5), ("main", 0.1)):
        made_up(tmp_path / name, "DynamicEnv-v0", "qcpo-authors", [probability], [10], probability=probability)
    made_up(tmp_path / "main", "DynamicEnv-v0", "ppo_lag-authors", [0.3], [10])
    made_up(tmp_path / "epsilon", "DynamicEnv-v0", "qcpo-tuned", [0.1], [10])
    reproduce("epsilon", source=tmp_path, out=tmp_path / "out")
    with open(tmp_path / "out" / "epsilon.csv", newline="") as file:
        rows = [(row["run"], float(row["probability"])) for row in csv.DictReader(file)]
    assert rows == [("qcpo-authors", 0.1), ("qcpo-authors", 0.5), ("qcpo-tuned", 0.1)]


def test_a_figure_shows_tasks_beyond_the_papers_where_they_were_trained(tmp_path):
    made_up(tmp_path / "weibull", "DynamicEnv-v0", "wcsac_weibull-paper", [0.1, 0.2], [1])
    made_up(tmp_path / "weibull", "GremlinEnv-v0", "wcsac_weibull-paper", [0.1, 0.2], [1])
    for environment in ("GremlinEnv-v0", "SimpleButtonEnv-v0"):
        made_up(tmp_path / "main", environment, "wcsac-paper", [0.1, 0.2], [1])
    (tmp_path / "weibull" / "SimpleButtonEnv-v0").mkdir()
    made = reproduce("weibull", source=tmp_path, out=tmp_path / "out")
    rows = [line.split(",")[:2] for line in made.table.read_text().splitlines()[1:]]
    assert rows == [
        ["DynamicEnv-v0", "wcsac_weibull-paper"],
        ["GremlinEnv-v0", "wcsac-paper"],
        ["GremlinEnv-v0", "wcsac_weibull-paper"],
    ]


@pytest.mark.parametrize("figure", FIGURES)
def test_every_grid_is_valid_at_every_scale(figure):
    from importlib import import_module

    module = import_module(f"qcrl.reproduce.{FIGURES[figure]}")
    full, small = (cells(scaled(module, scale)) for scale in (1.0, 0.01))
    assert [cell.path for cell in small] == [cell.path for cell in full]
    assert {cell.seeds for cell in full} == {10}
    assert {cell.seeds for cell in small} == {3}
    assert all(cell.steps < cell.algorithm.steps_per_iteration * 1000 for cell in small)


def test_a_figure_from_training_to_page(tmp_path, monkeypatch):
    tiny = GRID | {"steps": 2560, "seeds": 2, "algorithms": ["ppo_lag"], "probabilities": [0.1]}
    monkeypatch.setattr(two_path, "GRID", two_path.GRID | tiny)
    monkeypatch.setattr("qcrl.reproduce.scale.scaled", lambda module, scale: tiny)
    made = reproduce("two-path", 0.5, tmp_path, progress=False)
    assert not made.failures
    config = json.loads((tmp_path / "two-path" / "TwoPathEnv-v0" / "ppo_lag-fast" / "config.json").read_text())
    assert config["scale"] == 0.5
    page = made.text.read_text()
    assert "Scale 0.5" in page
    assert "means 12.00 and 12.58, outages 0.287 and 0.080" in page  # closed forms of the Weibull routes
    again = reproduce("two-path", out=tmp_path / "again", source=tmp_path)
    assert again.table.read_bytes() == made.table.read_bytes()


def test_thin_results_need_no_figures_and_no_simulator(tmp_path):
    grid = GRID | {"steps": 256, "seeds": 4, "max_lanes": 2, "probabilities": [0.1], "algorithms": ["ppo_lag"]}
    result = sweep(grid, tmp_path / "sweep", progress=False)
    assert [group.path for group in result.groups] == [f"TwoPathEnv-v0/ppo_lag-fast/part{n}" for n in (1, 2)]
    program = (
        "import sys\n"
        "for name in ('gymnasium', 'mujoco', 'tyro', 'matplotlib'): sys.modules[name] = None\n"
        "from qcrl.reproduce.results import thin; thin(sys.argv[2:], sys.argv[1], note=1)"
    )
    parts = [str(result.path / group.path) for group in result.groups]
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "thin" / "a" / "b"), *parts], check=True)
    (found,) = collect([tmp_path / "thin"])
    assert found.seeds == 4
    assert found.config["note"] == 1
    assert found.config["seeds"] == [0, 1, 2, 3]
    assert found.fresh["episodes"].tolist() == [50] * 4
    assert found.per_seed("outage").tolist() == (found.fresh["outages"] / 50).tolist()


def test_thinning_keeps_the_first_and_the_last_row(trained_long, tmp_path):
    (found,) = collect([thin([trained_long], tmp_path / "a" / "b").parents[1]])
    kept = np.unique(found.training["iteration"])
    assert kept[0] == 1
    assert kept[-1] == 300
    assert 100 <= len(kept) <= 110


@pytest.fixture
def trained_long(tmp_path):
    """A run folder of 300 iterations, made up."""
    folder = tmp_path / "run"
    folder.mkdir()
    lanes = {"seeds": [0], "probabilities": [0.1], "limits": [15.0], "lanes": [[0, 0.1, 15.0]]}
    named = {"algorithm": {"name": "qcpo"}, "environment": {"id": "TwoPathEnv-v0"}}
    (folder / "config.json").write_text(json.dumps(named | lanes))
    header = (
        "seed,probability,limit,iteration,env_steps,"
        "episode_return,episode_cost,cost_quantile,outage,multiplier,steps_per_second\n"
    )
    rows = [f"0,0.1,15.0,{i},{64 * i},1,2,3,0.1,4,640" for i in range(1, 301)]
    (folder / "metrics.csv").write_text(header + "\n".join(rows) + "\n")
    return folder


def test_training_time_is_that_of_the_iterations(trained_long, tmp_path):
    config = json.loads((thin([trained_long], tmp_path / "thin") / "config.json").read_text())
    assert config["training_seconds"] == 30  # 300 iterations of 64 steps, 640 a second


def test_a_true_tail_is_calibrated_and_a_wrong_one_is_not():
    levels = grid(25)
    truth = weibull_min(0.8, scale=10)
    costs = truth.ppf((np.arange(20_000) + 0.5) / 20_000)
    distribution = CostDistribution(truth.ppf(levels), Weibull(np.float64(0.8), np.float64(10.0)))
    rows = {
        model: np.array([[u, q, np.mean(costs > q), np.mean(costs >= q)] for u, q in zip(levels[-8:], quantiles)])
        for model, quantiles in tail_rollouts.models(distribution, costs).items()
    }
    measured = tail.Tails("discounted", np.empty((0, 2)), rows)
    for model in ("critic", "critic_weibull", "fitted_weibull"):
        assert measured.error(model) < 2e-3
    gaussian = np.mean([abs(truth.sf(q) - (1 - u)) for u, q, *_ in rows["fitted_gaussian"]])
    assert measured.error("fitted_gaussian") == pytest.approx(gaussian, abs=2e-3)
    assert gaussian > 0.02


def test_rollouts_start_from_one_state_with_a_future_of_their_own():
    (cell,) = cells(GRID | {"algorithms": ["qcpo"]})
    algorithm, env = cell.algorithm, make("TwoPathEnv-v0")
    lane = Lane(0, (Outage(15.0, 0.1),), 0.1)
    start = lambda: algorithm.policy_state(env, algorithm.init(env, jax.random.key(0), lane.constraints))
    policy = JaxPolicy(algorithm, Description.of(env), jax.jit(start)(), {})
    distribution, costs = tail_rollouts.roll_out(policy, env, lane, 600)
    assert distribution.quantiles.shape == (25,)
    # The whole cost falls due at the fourth step, and a policy that knows nothing takes both routes.
    np.testing.assert_allclose(costs["discounted"], 0.99**3 * costs["undiscounted"], rtol=1e-5)
    assert len(np.unique(costs["undiscounted"])) > 590
    start, _ = jax.jit(make("DynamicEnv-v0").reset)(jax.random.key(0))
    other = tail_rollouts.with_fresh_future(start, jax.random.key(1))
    assert (other.layout.goal == start.layout.goal).all()
    assert not np.array_equal(other.successors.goals, start.successors.goals)
    assert np.array_equal(np.sort(other.successors.goals, axis=0), np.sort(start.successors.goals, axis=0))


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="did you mean epsilon"):
        reproduce("epsilom")
    with pytest.raises(UserError, match="scale is 2"):
        reproduce("main", 2)
    with pytest.raises(UserError, match="there is no folder"):
        reproduce("main", source=tmp_path / "none")
    (tmp_path / "main").mkdir()
    with pytest.raises(UserError, match="holds no results"):
        reproduce("main", source=tmp_path)
