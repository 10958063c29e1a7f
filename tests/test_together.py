"""Several constraints at once: what is refused, and what is learned where the best shares are known."""

import json
import runpy
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from qcrl import CVaR, Mean, Outage, UserError, stats
from qcrl.algos.find import build
from qcrl.cli import asked
from qcrl.cli.evaluate import together as together_lines
from qcrl.constraints import from_dict, keys, together
from qcrl.envs.find import find
from qcrl.envs.host.check import check_env
from qcrl.envs.host.costs import parse
from qcrl.envs.host.environment import open_host
from qcrl.envs.host.suggest import suggestions
from qcrl.evaluation import together as judging
from qcrl.evaluation.verdict import verdict
from qcrl.evaluation.verify import verify
from qcrl.runs.folder import load, read_columns
from qcrl.show.curves import read_curves
from qcrl.show.figures import plot, shown_columns
from qcrl.sweeps.grid import cells
from qcrl.sweeps.memory import state_bytes
from qcrl.training import checks

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import three_routes
from three_routes import ThreeRoutes, best_shares, shares

import host_envs

TIME, DAMAGE = Outage(10, 0.25, cost="time"), Outage(10, 0.25, cost="damage")
# For damage alone the multiplier would have to be 0.05 to 0.2: with relative gains it stays above 0.1.
MORE_REWARD = dict(reward_scale=0.25)


def test_constraints_are_joined_and_keep_their_order():
    joined = TIME & DAMAGE & Mean(3, cost="time")
    assert together(joined) == (TIME, DAMAGE, Mean(3, cost="time"))
    assert together(TIME & (DAMAGE & Mean(3, cost="time"))) == together(joined)
    assert keys(together(joined)) == ("outage_time", "outage_damage", "mean_time")
    assert keys((TIME, Outage(20, 0.05, cost="time"))) == ("outage_time", "outage_time_2")
    assert joined.words.count("cost") == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TIME & DAMAGE & TIME, "stands twice"),
        (lambda: TIME & 3, "no constraint"),
        (lambda: Outage((30, 5), 0.1), "empty range"),
        (lambda: Outage((5, 5), 0.1), "empty range"),
        (lambda: Outage((5, 30), (0.0, 0.1)), "strictly between 0 and 1"),
        (lambda: Outage((-5, 30), 0.1), "at least 0"),
        (lambda: Outage((5, 30), 0.1) & Mean(3), "must stand alone"),
        (lambda: from_dict({"kind": "outage", "limit": 15}), "needs probability"),
        (lambda: from_dict({"kind": "outage", "limit": 15, "probability": 0.1, "colour": 1}), "colour"),
    ],
)
def test_what_cannot_hold_together_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize(
    ("algo", "constraint", "message"),
    [
        ("ppo_lag", TIME & DAMAGE, "ppo_lag trains under any number of Mean, but not under Outage"),
        ("outage_ppo", TIME & CVaR(3, 0.1, cost="time"), "not under CVaR"),
        ("cvar_pg", TIME & DAMAGE, "one constraint, not under 2"),
        ("outage_ppo", TIME & Outage(1, 0.1, cost="speed"), "'speed', but ThreeRoutes-v0 has time, damage"),
        ("outage_ppo", [TIME & DAMAGE, TIME], "side by side"),
        ("qcpo", Outage((5, 30), 0.1, cost="time"), "not for ranges"),
    ],
)
def test_what_an_algorithm_cannot_do_is_said_before_training(algo, constraint, message, tmp_path):
    with pytest.raises(UserError, match=message):
        qcrl.train(algo, ThreeRoutes(), constraint, steps=1, out=tmp_path / "r", progress=False)
    assert not (tmp_path / "r").exists()


def test_an_algorithm_for_one_constraint_says_so():
    with pytest.raises(UserError, match="wcsac trains under one constraint, not under 2 together"):
        checks.lanes(build("wcsac"), TIME & DAMAGE, 1, 0)


def test_lanes_that_differ_in_a_further_constraint_have_names_and_columns_of_their_own():
    asked = [TIME & Mean(limit, cost="damage") for limit in (7, 8)]
    lanes = checks.lanes(build("outage_ppo"), asked, 2, 0)
    assert len(set(map(str, lanes))) == 4
    assert lanes[1].columns == {"seed": 0, "probability": 0.25, "limit": 10.0, "limit_mean_damage": 8.0}
    assert [from_dict(each) for each in lanes[1].as_dict()["constraints"]] == list(together(asked[1]))


def test_tasks_report_the_costs_that_are_named():
    assert find("GremlinEnv-v0", ["hazards", "gremlins"]).costs == ("hazards", "gremlins")
    env = find("DynamicEnv-v0", ["energy", "cost", "hazards"])
    assert env.most_costs == (1000.0,) * 3
    begin, step = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))
    state, _ = begin(jax.random.split(jax.random.key(0), 64))
    total = 0.0
    for _ in range(100):
        state, out = step(state, jnp.tile(jnp.array([2.0, -0.5]), (64, 1)))
        energy, cost, hazards = np.asarray(out.cost).T
        np.testing.assert_array_equal(cost, hazards)
        np.testing.assert_allclose(energy, (1.0 + 0.25) / 2)
        total += cost.sum()
    assert total > 0
    with pytest.raises(UserError, match="did you mean hazards"):
        find("GremlinEnv-v0", "hazard")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together") / "r"
    return three_routes.train(constraint=TIME & DAMAGE, out=folder, progress=False)


def test_two_outages_are_kept_by_the_mixture_of_the_linear_programme(run):
    np.testing.assert_allclose(shares(run.policy()), best_shares(TIME, DAMAGE), atol=0.05)
    table = run.metrics
    assert {"outage_time", "outage_damage", "multiplier_outage_time", "multiplier_outage_damage"} <= set(table)
    assert {"episode_cost_time", "episode_cost_damage", "outage_any", "limit_outage_damage"} <= set(table)
    np.testing.assert_array_equal(table["outage"], table["outage_time"])
    episodes = run.episodes
    np.testing.assert_array_equal(episodes["cost"], episodes["cost_time"])
    any_over = (episodes["cost_time"] > 10) | (episodes["cost_damage"] > 10)
    assert table["outage_any"][-1] == pytest.approx(any_over[-2048:].mean(), abs=1e-6)
    policy = run.policy()
    carry = policy.initial()
    _, carry = policy(np.eye(4)[0], carry, rng=0)
    _, after = policy(np.eye(4)[1], carry, cost={"damage": 2.0, "time": 1.0}, rng=0)
    np.testing.assert_array_equal(after.spent, [1.0, 2.0])
    with pytest.raises(UserError, match="time, damage"):
        policy(np.eye(4)[1], carry, cost=1.0)


SUITE = [
    ("outage_ppo", TIME & Mean(8, cost="damage"), {}),
    ("outage_ppo", TIME, {}),
    ("outage_ppo", DAMAGE, MORE_REWARD),
    ("qcpo", TIME & DAMAGE, {}),
    ("qcpo", TIME & Mean(8, cost="damage"), {}),
    ("qcpo", TIME, {}),
    ("qcpo", DAMAGE, MORE_REWARD),
    ("ppo_lag", Mean(8, cost="time") & Mean(8, cost="damage"), {}),
    ("ppo_lag", Mean(8, cost="time"), {}),
    ("ppo_lag", Mean(8, cost="damage"), MORE_REWARD),
]


@pytest.mark.large
@pytest.mark.parametrize(("algo", "constraint", "changes"), SUITE)
def test_every_algorithm_finds_the_mixture(algo, constraint, changes, tmp_path):
    run = three_routes.train(algo, constraint, out=tmp_path / "r", progress=False, **changes)
    np.testing.assert_allclose(shares(run.policy()), best_shares(*together(constraint)), atol=0.05)


def test_the_linear_programme_knows_the_example():
    assert best_shares(TIME, DAMAGE).min() > 0.3
    assert three_routes.measured(TIME)[1] > 0.25 > three_routes.measured(TIME)[[0, 2]].max()
    assert three_routes.measured(DAMAGE)[0] > 0.25 > three_routes.measured(DAMAGE)[[1, 2]].max()


def test_an_evaluation_judges_each_constraint_and_counts_any_of_them(run):
    result = qcrl.evaluate(run, env=ThreeRoutes(), episodes=1000, progress=False)
    row, table = result.per_lane[0], read_columns(run.path / "evaluation-jax.csv")
    assert [each["name"] for each in row.constraints] == ["outage_time", "outage_damage"]
    for each in row.constraints:
        over = table[f"cost_{each['cost']}"] > 10
        assert each["measured"] == pytest.approx(over.mean())
        assert each["low"] < each["measured"] < each["high"]
        assert each["mean_cost_over"] == pytest.approx(table[f"cost_{each['cost']}"][over].mean(), rel=1e-5)
    assert row.outage == row.constraints[0]["measured"]
    assert row.outage_any == pytest.approx(((table["cost_time"] > 10) | (table["cost_damage"] > 10)).mean())
    assert row.mean_costs["damage"] == pytest.approx(table["cost_damage"].mean(), rel=1e-5)
    text = verdict(run, ThreeRoutes())
    assert text.count("is neither kept nor broken") + text.count("is kept") + text.count("is broken") == 2
    assert "Over any of the limits" in text
    lines = together_lines(row)
    assert len(lines) == 4
    assert lines[0].startswith("Seed 0, outage_time")


def test_certificates_show_each_constraint_at_the_full_confidence(run, tmp_path):
    copy = load(shutil.copytree(run.path, tmp_path / "copy"))
    certificate = qcrl.certify(copy, env=ThreeRoutes(), promise=[0.4, 0.35], episodes=1500, progress=False)
    assert certificate.verdict == "certified"
    first, second = certificate.constraints
    for row, promise in ((first, 0.4), (second, 0.35)):
        assert row["upper_bound"] == pytest.approx(stats.outage_bound(row["outages"], certificate.episodes, 0.95))
        assert row["upper_bound"] <= promise
    assert certificate.outages == first["outages"]
    assert "all together" in str(certificate)
    assert verify(copy.path / certificate.file, env=ThreeRoutes(), progress=False)[1] is None
    with pytest.raises(UserError, match="attempt 2 to certify"):  # another second promise is another attempt
        qcrl.certify(copy, env=ThreeRoutes(), promise=[0.4, 0.3], episodes=1500, progress=False)
    with pytest.raises(UserError, match="leave expected out"):
        qcrl.certify(copy, env=ThreeRoutes(), promise=[0.4, 0.35], expected=0.1, progress=False)
    changed = json.loads((copy.path / certificate.file).read_text())
    changed["constraints"][1]["outages"] -= 1
    (copy.path / "certificate-changed.json").write_text(json.dumps(changed))
    assert verify(copy.path / "certificate-changed.json", env=ThreeRoutes(), progress=False)[1] is not None
    rows = certificate.constraints
    for change in (
        {"limit": 99.0},
        {"cost": "damage"},
        {"constraints": [rows[0], rows[1] | {"words": rows[1]["words"].replace("At most 0.35", "At most 0.01")}]},
        {"constraints": [rows[0], rows[1] | {"words": "All is well."}]},
        {"constraints": [rows[0] | {"promise": 0.5, "words": rows[0]["words"].replace("0.4 ", "0.5 ")}, rows[1]]},
    ):
        forged = replace(certificate, **change, sha256="").sealed()
        (copy.path / "certificate-forged.json").write_text(json.dumps(asdict(forged)))
        assert verify(copy.path / "certificate-forged.json", env=ThreeRoutes(), progress=False)[1] is not None, change
    with pytest.raises(UserError, match="one promise for each"):
        qcrl.certify(copy, env=ThreeRoutes(), promise=0.4, progress=False)


def test_all_must_hold_and_a_mean_needs_a_range():
    rng = np.random.default_rng(0)
    every = {"time": np.where(rng.random(2000) < 0.1, 20.0, 0.0), "damage": rng.random(2000) * 4}
    both = (TIME, Mean(2.5, cost="damage"))
    verdict_, rows = judging.judge(both, [0.25], every, {}, 0.05)
    assert (verdict_, rows[1]["verdict"]) == ("certified", "not certifiable")
    assert "largest possible cost is not known" in rows[1]["words"]
    verdict_, rows = judging.judge(both, [0.25], every, {"damage": 4.0}, 0.05)
    assert verdict_ == "certified"
    assert every["damage"].mean() < rows[1]["upper_bound"] < 2.2
    assert judging.judge((TIME, Mean(2.01, cost="damage")), [0.25], every, {"damage": 4.0}, 0.05)[0] == "undecided"
    assert judging.judge((TIME, Mean(1.5, cost="damage")), [0.25], every, {"damage": 4.0}, 0.05)[0] == "violated"
    assert judging.judge((TIME, DAMAGE), [0.05, 0.25], every, {}, 0.05)[0] == "violated"


def test_the_curves_of_each_constraint_are_drawn(run, tmp_path):
    curves = read_curves([run.path])
    assert curves[0].bounds == {"outage_time": 0.25, "outage_damage": 0.25}
    assert shown_columns(curves, "curves") == ("episode_return", "outage_time", "outage_damage")
    assert "<!-- outage probability of time -->" in plot([run.path], tmp_path / "c.svg").read_text()
    assert plot([run.path], tmp_path / "m.svg", "multiplier").stat().st_size > 1000


def test_constraints_and_costs_as_they_are_typed():
    assert asked.constraint("outage:cost=hazards,limit=15,probability=0.1") == Outage(15, 0.1, "hazards")
    assert asked.constraint("outage:limit=5..30,probability=0.02..0.3") == Outage((5, 30), (0.02, 0.3))
    assert together(asked.together(["mean:limit=3", "mean:limit=4,cost=x"])) == (Mean(3), Mean(4, "x"))
    assert asked.costs(["a=cost_a", "b=m:f"]) == {"a": "cost_a", "b": "m:f"}
    assert asked.costs(["a", "b"]) == ["a", "b"]
    assert asked.costs(["a"]) == "a"
    assert asked.costs(None) is None
    for text in ("outage:limit", "outage:limit=x,probability=0.1", "fee:limit=3"):
        with pytest.raises(UserError):
            asked.constraint(text)
    with pytest.raises(UserError, match="each of them a name"):
        asked.costs(["a=x", "b"])


def test_a_grid_has_constraints_that_hold_together():
    table = [{"kind": "outage", "cost": "hazards", "limit": 15, "probability": 0.1}, {"kind": "mean", "limit": 5}]
    grid = {"environments": ["GremlinEnv-v0"], "constraints": table, "algorithms": [{"name": "outage_ppo"}]}
    (cell,) = cells(grid)
    assert together(cell.asked[0]) == (Outage(15, 0.1, "hazards"), Mean(5))
    assert state_bytes(cell) > 0
    with pytest.raises(UserError, match="constraints: ppo_lag trains under any number of Mean"):
        cells(grid | {"algorithms": [{"name": "ppo_lag"}]})
    with pytest.raises(UserError, match="limits and probabilities are given as well"):
        cells(grid | {"limits": [5]})
    with pytest.raises(UserError, match="a list of tables"):
        cells(grid | {"constraints": [3]})


@pytest.mark.parametrize(
    ("make", "cost", "names"),
    [
        (host_envs.TwoCosts, None, ("collision", "energy")),
        (host_envs.row_of_costs, None, ("cost_0", "cost_1")),
        (host_envs.TwoCosts, {"bump": "cost_collision", "twice": host_envs.double}, ("bump", "twice")),
        (host_envs.TwoCosts, ["cost_energy", "cost_collision"], ("cost_energy", "cost_collision")),
        (host_envs.TwoCosts, "cost_energy", ("cost",)),
    ],
)
def test_python_environments_report_costs_by_name(make, cost, names):
    env = open_host(make, cost)
    assert env.costs == names
    assert parse(env.cost_source).names == names
    fleet = env.fleet(3)
    fleet.reset([0, 1, 2])
    row = fleet.step(np.ones((3, 2), np.float32)).cost
    assert row.shape == (3, len(names))
    energy = {"energy": 1.0, "cost_1": 1.0, "twice": 2.0, "cost_energy": 1.0, "cost": 1.0}
    for place, name in enumerate(names):
        if name in energy:
            np.testing.assert_allclose(row[:, place], energy[name])
        else:
            assert set(row[:, place]) <= {0.0, 1.0}


@pytest.mark.parametrize("cost", [{}, {"a b": "cost"}, {"a": None}, {"a": ["b"]}, [], {"a": "nowhere"}])
def test_costs_that_are_nowhere_are_refused(cost):
    with pytest.raises(UserError):
        open_host(host_envs.TwoCosts, cost)


def test_every_cost_is_looked_at_by_check_env():
    report = check_env(host_envs.TwoCosts, episodes=5)
    assert report.passed
    assert list(report.every) == ["collision", "energy"]
    lines = suggestions(report)
    assert any(line.startswith("Cost collision of 5 episodes") for line in lines)
    assert any(line.startswith("Cost energy of 5 episodes") for line in lines)
    assert list(check_env("GremlinEnv-v0", episodes=1).every) == ["cost", "hazards", "gremlins", "energy"]


def test_a_python_environment_is_trained_and_judged_under_two_constraints(tmp_path):
    constraint = Outage(2, 0.3, cost="collision") & Mean(9, cost="energy")
    shape = dict(num_envs=4, steps_per_env=8, chunk_length=4, hidden_sizes=(8,), minibatches=1, out_of_phase=False)
    run = qcrl.train("outage_ppo", "host_envs:TwoCosts", constraint, 320, out=tmp_path / "r", progress=False, **shape)
    assert run.config["environment"]["costs"] == ["collision", "energy"]
    assert run.metrics["mean_energy"][-1] == pytest.approx(run.episodes["cost_energy"][-100:].mean(), rel=1e-4)
    row = qcrl.evaluate(run, 20, progress=False).per_lane[0]
    assert [each["name"] for each in row.constraints] == ["outage_collision", "mean_energy"]
    certificate = qcrl.certify(run, promise=[0.9], episodes=100, progress=False)
    assert certificate.constraints[1]["verdict"] == "not certifiable"
    more = qcrl.train(
        "outage_ppo", "host_envs:TwoCosts", constraint, 640, out=tmp_path / "r", resume=True, progress=False, **shape
    )
    assert more.metrics["iteration"][-1] == 20


def test_the_benchmark_evaluates_again_where_something_else_is_asked_for(tmp_path, monkeypatch):
    script = Path(__file__).parent.parent / "benchmarks" / "together.py"
    benchmark, made = SimpleNamespace(**runpy.run_path(str(script))), []

    def train(*given, out, **options):
        out.mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(path=out)

    def evaluate(run, episodes):
        made.append(episodes)
        (run.path / "evaluation-jax.json").write_text(json.dumps({"episodes": episodes}))

    monkeypatch.setattr(qcrl, "train", train)
    monkeypatch.setattr(qcrl, "evaluate", evaluate)
    asked = {"seeds": None, "first_seed": 5000, "episodes": 40, "preset": "fast", "steps_scale": 1.0}
    folders = {"out": tmp_path / "runs", "results": tmp_path / "results"}
    look = lambda **changed: benchmark.evaluated(SimpleNamespace(**folders, **asked | changed), "name", "env", TIME, 10)
    assert [look()["episodes"], look()["episodes"], look(seeds=10)["episodes"]] == [40] * 3
    assert made == [40]
    others = {"episodes": 50, "seeds": 3, "first_seed": 0, "preset": "scale", "steps_scale": 0.1}
    for name, value in others.items():
        assert look(**{name: value})["made"] != look()["made"]
    assert len(made) == 1 + 2 * len(others)
