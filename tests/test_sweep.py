"""Sweeps on one machine: grids and their mistakes, groups that fit, restarts, failures, several devices."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest

import qcrl
from qcrl import UserError
from qcrl.cli import main as cli
from qcrl.sweeps import memory, sweep
from qcrl.sweeps.grid import cells, read_grid
from qcrl.sweeps.groups import FINISHED, progress, split
from sweep_grids import GRID, SMALL, rows

TEXT = """\
environments = ["TwoPathEnv-v0", "DynamicEnv-v0"]
probabilities = [0.1, 0.2]
seeds = 2
first_seed = 5
steps = 1e4

[overrides]
epochs = 2

[[algorithms]]
name = "qcpo"
preset = "authors"

[[algorithms]]
name = "ppo_lag"
probabilities = [0.1]
environments = ["TwoPathEnv-v0"]

[algorithms.overrides]
epochs = 3
"""
TABLES = TEXT[TEXT.index("[overrides]") :]


def write(path, text):
    path.write_text(text)
    return path


def test_a_grid_is_algorithms_by_environments(tmp_path):
    first, second, third = read_grid(write(tmp_path / "grid.toml", TEXT))
    assert [first.path, second.path, third.path] == [
        "TwoPathEnv-v0/qcpo-authors",
        "DynamicEnv-v0/qcpo-authors",
        "TwoPathEnv-v0/ppo_lag-fast",
    ]
    assert (first.steps, first.seeds, first.first_seed) == (10_000, 2, 5)
    assert [(each.limit, each.probability) for each in first.asked] == [(15, 0.1), (15, 0.2)]
    assert third.probabilities == (0.1,)
    assert (first.algorithm.epochs, third.algorithm.epochs) == (2, 3)


def test_environments_in_python_are_swept_as_they_are_trained(tmp_path):
    grid = {"environments": ["host_envs:TwoCosts"], "cost": "cost_energy", "limits": [0.2], "steps": 400, "episodes": 4}
    (cell,) = cells(grid | {"algorithms": ["outage_ppo"]})
    assert cell.path == "host_envs:TwoCosts/outage_ppo-host"
    small = {"num_envs": 2, "steps_per_env": 32, "chunk_length": 32, "minibatches": 1, "hidden_sizes": [8]}
    result = sweep(grid | {"algorithms": ["outage_ppo"], "overrides": small}, out=tmp_path)
    run = qcrl.load(tmp_path / cell.path)
    assert run.config["environment"]["cost"] == 'info["cost_energy"]'
    ((path, row),) = result.pooled
    assert (path, row["episodes"]) == (cell.path, 4)
    assert row["mean_cost"] > 0


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "problem"),
    [
        ("seeds = 2", "seed = 2", 3, "seed", "did you mean seeds"),
        ("seeds = 2", "seeds = 'two'", 3, "seeds", "a whole number"),
        ("seeds = 2", "seeds = 0", 3, "seeds", "at least 1"),
        ("steps = 1e4", "steps = 0.5", 5, "steps", "a whole number"),
        ("[0.1, 0.2]", "[]", 2, "probabilities", "empty"),
        ("[0.1, 0.2]", "[0.1, 2]", 2, "probabilities", "between 0 and 1"),
        ("[0.1, 0.2]", "[\n  0.1,\n  0.1,\n]", 2, "probabilities", "twice"),
        ('"DynamicEnv-v0"', '"DynamoEnv-v0"', 1, "environments", "DynamoEnv-v0"),
        ("epochs = 2", "epoch = 2", 8, "epoch", "did you mean epochs"),
        ("epochs = 3", "epochs = 'many'", 20, "epochs", "a whole number"),
        ('"ppo_lag"', '"ppolag"', 15, "name", "did you mean ppo_lag"),
        ('preset = "authors"', 'preset = "author"', 12, "preset", "did you mean authors"),
        ('preset = "authors"', 'presets = "authors"', 12, "presets", "did you mean preset"),
        ('name = "ppo_lag"', 'name = "qcpo"\npreset = "authors"', 14, "label", "two cells TwoPathEnv-v0/qcpo-authors"),
        ('preset = "authors"', 'label = "a/b"', 12, "label", "folder"),
        ("[overrides]\nepochs = 2", "overrides = 3", 7, "overrides", "a table"),
        ("epochs = 2", "window = 300\n'epochs' = 0", 9, "epochs", "at least 1"),
        ("[overrides]\nepochs = 2", "overrides.window = 3\noverrides.epochs = 1.5", 8, "epochs", "a whole number"),
        ("[overrides]\nepochs = 2", 'overrides = {hidden_sizes = [\n64], "epoch" = 2}', 8, "epoch", "epochs"),
        ("epochs = 2", "seeds = 2", 8, "seeds", "no hyper-parameter 'seeds'"),
        ("epochs = 3", "steps_per_env = 7", 20, "steps_per_env", "7"),
        ("epochs = 3", "clipping = 'none'", 20, "clipping", "one of"),
        ("epochs = 3", "driver = 'outage'", 20, "driver", "no hyper-parameter 'driver'"),
        (
            '["TwoPathEnv-v0", "DynamicEnv-v0"]',
            "[  # two ]\n'TwoPathEnv-v0',\n'DynamoEnv-v0',\n]",
            3,
            "environments",
            "Dyn",
        ),
        ("[0.1, 0.2]", "[\n0.1,\n2]", 4, "probabilities", "between 0 and 1"),
        ("[0.1, 0.2]", "1.5", 2, "probabilities", "between 0 and 1"),
        ('name = "qcpo"', "", 10, "name", "no algorithm ''"),
        (TABLES, "algorithms = ['qcpo',\n'ppolag']", 8, "algorithms", "did you mean ppo_lag"),
        (TABLES, "algorithms = ['qcpo', {\"name\" = 'ppo_lag'},\n{name = 'qcpo'}]", 8, "label", "two cells"),
    ],
)
def test_a_wrong_grid_names_its_line_and_key(tmp_path, old, new, line, key, problem):
    assert TEXT.count(old) == 1
    with pytest.raises(UserError) as error:
        read_grid(write(tmp_path / "grid.toml", TEXT.replace(old, new)))
    assert f"grid.toml, line {line}, {key}: " in str(error.value)
    assert problem in str(error.value)


def test_a_file_that_is_no_grid(tmp_path):
    for text in ("seeds = 1\nseeds = 2\n", "seeds = 1\nlimits = [1,\n"):
        with pytest.raises(UserError, match="line 2"):
            read_grid(write(tmp_path / "grid.toml", text))
    with pytest.raises(UserError, match="algorithms"):
        read_grid(write(tmp_path / "grid.toml", "seeds = 1\n"))
    with pytest.raises(UserError, match="cannot be read"):
        read_grid(tmp_path / "none.toml")


def test_groups_hold_every_lane_once_and_no_more_than_fit():
    (cell,) = cells(GRID | {"seeds": 5, "algorithms": [{"name": "qcpo", "learning_rates": [1e-3, 1e-4]}]})
    (whole,) = split(cell, most=20)
    assert (whole.lanes, whole.path) == (20, "TwoPathEnv-v0/qcpo-fast")
    for most in (7, 3, 1):
        groups = split(cell, most)
        lanes = [
            (seed, rate, each)
            for group in groups
            for seed in group.seeds
            for rate in group.rates
            for each in group.constraints
        ]
        assert max(group.lanes for group in groups) <= most
        assert len(lanes) == len(set(lanes)) == 20
        assert len({group.path for group in groups}) == len(groups)


def test_the_memory_of_a_lane_is_about_what_xla_says():
    import jax

    (cell,) = cells(GRID | {"algorithms": ["ppo_lag"]})
    algorithm, env = cell.algorithm, qcrl.make("TwoPathEnv-v0")
    keys = jax.random.split(jax.random.key(0), 8)
    states = jax.eval_shape(lambda: jax.vmap(lambda key: algorithm.init(env, key, [qcrl.Mean(15.0)]))(keys))
    compiled = jax.jit(jax.vmap(lambda lane: algorithm.iterate(env, lane)), donate_argnums=0).lower(states).compile()
    found = compiled.memory_analysis()
    needed = (found.temp_size_in_bytes + found.argument_size_in_bytes) / len(keys)
    assert 0.8 * needed < memory.bytes_per_lane(cell) < 4 * needed


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return sweep(GRID, tmp_path_factory.mktemp("local"), progress=False)


def test_a_sweep_trains_and_evaluates_every_cell(local):
    assert not local.failures
    assert not local.frozen
    assert [(path, row["seeds"], row["episodes"]) for path, row in local.pooled] == [
        ("TwoPathEnv-v0/qcpo-fast", 2, 100),
        ("TwoPathEnv-v0/qcpo-fast", 2, 100),
        ("TwoPathEnv-v0/ppo_lag-fast", 2, 100),
    ]
    assert repr(local) == f"<Sweep {local.path}: 2 groups, 0 failed>"
    with pytest.raises(UserError, match=r"give the folder of a run, such as .*ppo_lag-fast"):
        qcrl.load(local.path)
    runs = [qcrl.load(local.path / group.path) for group in local.groups]
    assert [len(run.lanes) for run in runs] == [4, 2]
    for run in runs:
        assert run.metrics["env_steps"].max() == 1280
        evaluation = json.loads((run.path / "evaluation-jax.json").read_text())
        assert [row["episodes"] for row in evaluation["per_lane"]] == [50] * len(run.lanes)


def test_finished_groups_are_skipped_and_failed_ones_do_not_stop_the_others(local, tmp_path, capsys):
    out = tmp_path / "sweep"
    grid = tmp_path / "grid.toml"
    text = "environments = ['TwoPathEnv-v0']\nprobabilities = [0.1, 0.2]\nseeds = 2\nsteps = 1280\nepisodes = 50\n"
    text += "[overrides]\n"
    text += "\n".join(f"{key} = {value}" for key, value in SMALL.items())
    grid.write_text(text + "\n[[algorithms]]\nname = 'qcpo'\n[[algorithms]]\nname = 'ppo_lag'\nprobabilities = [0.1]\n")
    assert cells(tomllib.loads(grid.read_text())) == cells(GRID)
    occupied = out / "TwoPathEnv-v0" / "qcpo-fast"
    occupied.mkdir(parents=True)
    (occupied / "config.json").write_text("{}")
    assert cli.main(["sweep", str(grid), "--out", str(out)]) == 1
    assert "TwoPathEnv-v0/qcpo-fast: failed: " in capsys.readouterr().out
    lag = out / "TwoPathEnv-v0" / "ppo_lag-fast"
    assert rows(lag) == rows(local.path / "TwoPathEnv-v0" / "ppo_lag-fast")
    (occupied / "config.json").unlink()
    before = (lag / FINISHED).stat().st_mtime_ns
    assert cli.main(["sweep", str(grid), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 groups" in printed
    assert [line.split()[:4] for line in printed.splitlines() if line.strip().startswith("TwoPathEnv-v0/")] == [
        ["TwoPathEnv-v0/qcpo-fast", "0.1", "15", "2"],
        ["TwoPathEnv-v0/qcpo-fast", "0.2", "15", "2"],
        ["TwoPathEnv-v0/ppo_lag-fast", "0.1", "15", "2"],
    ]
    assert (lag / FINISHED).stat().st_mtime_ns == before
    assert rows(occupied) == rows(local.path / "TwoPathEnv-v0" / "qcpo-fast")
    # Other settings than those of the finished groups: they are neither skipped nor overwritten.
    grid.write_text(grid.read_text().replace("[overrides]", "[overrides]\nclip = 0.3"))
    assert cli.main(["sweep", str(grid), "--out", str(out)]) == 1
    assert "was started with another clip (0.1, now 0.3)" in capsys.readouterr().out
    assert (lag / FINISHED).stat().st_mtime_ns == before


def test_a_killed_sweep_continues_where_it_was(tmp_path):
    grid = GRID | {"steps": 30 * 1280, "algorithms": ["ppo_lag"], "probabilities": [0.1]}
    (group,) = split(cells(grid)[0], most=9)
    folder = tmp_path / "killed" / group.path
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(grid), str(tmp_path / "killed")])
    try:
        while not list(folder.glob("checkpoints/0*.safetensors")):
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 0 < progress(group, folder) < 1
    sweep(grid, tmp_path / "killed", progress=False)
    sweep(grid, tmp_path / "whole", progress=False)
    assert rows(folder) == rows(tmp_path / "whole" / group.path)
    # The events after the kill are in a file of their own, which begins after the checkpoint.
    assert max(int(path.suffix[1:]) for path in folder.glob("events.out.*")) > 0


PROGRAM = """
import json, sys
from qcrl.sweeps import sweep
sweep(json.loads(sys.argv[1]), sys.argv[2], checkpoint_interval=0.1, progress=False)
"""


def test_lanes_on_two_devices_train_as_on_one(local, tmp_path):
    flags = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"}
    grid = json.dumps(GRID | {"algorithms": GRID["algorithms"][1:]})
    program = f"{PROGRAM}\nimport jax; assert jax.local_device_count() == 2"
    subprocess.run([sys.executable, "-c", program, grid, str(tmp_path)], env=os.environ | flags, check=True)
    one, two = (qcrl.load(path / local.groups[1].path).metrics for path in (local.path, tmp_path))
    for name in one.keys() - {"steps_per_second"}:  # a program for fewer lanes rounds differently
        np.testing.assert_allclose(two[name], one[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_lane_does_not_depend_on_the_other_learning_rates(tmp_path):
    def train(*rates):
        options = {"steps": 1280, "out": tmp_path / str(rates), "learning_rate": list(rates), **SMALL}
        return qcrl.train("ppo_lag", "TwoPathEnv-v0", qcrl.Outage(15, 0.1), **options)

    run, other = train(1e-3, 1e-2), train(1e-2, 3e-3)
    assert [str(lane) for lane in run.lanes] == ["seed0-p0.1-d15-lr0.001", "seed0-p0.1-d15-lr0.01"]
    losses = [each.metrics["value_loss"][each.metrics["learning_rate"] == 1e-2] for each in (run, other)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert not np.allclose(run.metrics["value_loss"][run.metrics["learning_rate"] == 1e-3], losses[0], rtol=0.01)
    assert run.policy(learning_rate=1e-2).info["learning_rate"] == 1e-2
    with pytest.raises(UserError, match="say which one"):
        run.policy()
    assert [row.learning_rate for row in qcrl.evaluate(run, 20, progress=False).per_lane] == [1e-3, 1e-2]


def test_unknown_engines_and_options(tmp_path, capsys):
    with pytest.raises(UserError, match="local, ray"):
        sweep(GRID, tmp_path, "slurm")
    with pytest.raises(UserError, match="Ray engine"):
        sweep(GRID, tmp_path, gpus=1)
    assert cli.main(["sweep", str(write(tmp_path / "grid.toml", TEXT)), "--gpus", "0", "--retries", "0"]) == 2
    assert "gpus, retries belongs to the Ray engine" in capsys.readouterr().err
