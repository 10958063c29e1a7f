"""Run folders as readers see them, and the files that must never be half written."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from qcrl import Outage, UserError
from qcrl.cli.main import main
from qcrl.runs import checkpoints
from qcrl.runs.lane import Lane, by_setting
from qcrl.show.curves import read_curves
from qcrl.show.report import report

pytest_plugins = ["fakes"]


@pytest.fixture
def run(fake, tmp_path):
    constraints = [Outage(limit, p) for p in (0.1, 0.2) for limit in (15, 20)]
    return qcrl.train("fake", "TwoPathEnv-v0", constraints, steps=60, seeds=2, out=tmp_path / "run", progress=False)


def test_a_run_is_opened_from_its_folder_alone(run):
    opened = qcrl.load(str(run.path))
    assert opened.lanes == run.lanes
    assert opened.frozen == ()
    assert len(opened.metrics["outage"]) == 8 * 3
    assert {path.name for path in (run.path / "policies").iterdir()} == {f"{lane}.safetensors" for lane in run.lanes}


def test_one_lane_is_picked_by_what_tells_it_apart(run):
    assert run.lane(seed=1, probability=0.2, limit=15) == Lane(1, (Outage(15, 0.2),), 0.2)
    assert run.lane(probability=0.1, limit=20).seed == 0
    with pytest.raises(UserError, match=r"trained with probability 0.1, 0.2; say which one"):
        run.lane(seed=0, limit=15)
    with pytest.raises(UserError, match=r"has no seed 7; it was trained with 0, 1"):
        run.policy(seed=7, probability=0.1, limit=15)
    with pytest.raises(UserError, match=r"has no limit 16"):
        run.policy(probability=0.1, limit=16)
    with pytest.raises(UserError, match=r"has no learning_rate 0.1; all of its lanes have the same"):
        run.policy(probability=0.1, limit=15, learning_rate=0.1)


def test_settings_that_were_not_trained_together_are_one_sentence(fake, tmp_path):
    constraints = [Outage(15, 0.1), Outage(20, 0.2)]
    run = qcrl.train("fake", "TwoPathEnv-v0", constraints, steps=60, out=tmp_path / "run", progress=False)
    with pytest.raises(UserError, match=r"was not trained with seed 0, probability 0.1, limit 20 together"):
        run.policy(probability=0.1, limit=20)
    assert run.lane(limit=20).probability == 0.2


def test_lanes_are_told_apart_by_their_names():
    lanes = [
        Lane(seed, (Outage(d, p),), p, rate) for seed in (0, 1) for d, p, rate in ((15.0, 0.1, None), (15, 0.2, 1e-4))
    ]
    lanes += [Lane(0, (Outage(1234567.0 + more, 0.1),), 0.1) for more in (0, 0.25)]
    assert [str(lane) for lane in lanes] == [
        "seed0-p0.1-d15",
        "seed0-p0.2-d15-lr0.0001",
        "seed1-p0.1-d15",
        "seed1-p0.2-d15-lr0.0001",
        "seed0-p0.1-d1234567",
        "seed0-p0.1-d1234567.25",
    ]
    assert [[lane.seed for lane in group] for group in by_setting(lanes)] == [[0, 1], [0, 1], [0], [0]]


def test_numbers_of_numpy_are_written_as_plain_ones(fake, tmp_path):
    constraint = Outage(np.float32(15), np.float64(0.5))
    run = qcrl.train("fake", "TwoPathEnv-v0", constraint, steps=20, out=tmp_path / "run", progress=False)
    assert qcrl.load(run.path).lanes == (Lane(0, (Outage(15.0, 0.5),), 0.5),)


@pytest.fixture
def earlier(tmp_path):
    """A run of an earlier version, its policy included."""
    folder = tmp_path / "earlier"
    (folder / "policies").mkdir(parents=True)
    config = {
        "algorithm": {"name": "fake", "fields": {"num_envs": 2}},
        "preset": "fast",
        "environment": {"id": "TwoPathEnv-v0", "observation_size": 4, "action_size": 1, "horizon": 4},
        "constraint": "Outage",
        "steps": 40,
        "seeds": [0],
        "probabilities": [0.1],
        "limits": [15.0],
        "lanes": [[0, 0.1, 15.0]],
        "setup": {"qcrl": "0.0"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    header = "seed,probability,limit,iteration,env_steps,episode_return,episode_cost,cost_quantile,outage,multiplier\n"
    (folder / "metrics.csv").write_text(f"{header}0,0.1,15.0,1,20,0.8,12,14,0,1\n0,0.1,15.0,2,40,0.9,13,16,0.25,2\n")
    episodes = "".join(f"0,0.1,15.0,{8 * i},0.8,{cost}\n" for i, cost in enumerate((9, 11, 12, 20), 1))
    (folder / "episodes.csv").write_text(f"seed,probability,limit,env_steps,return,cost\n{episodes}")
    checkpoints.write_tree(
        folder / "policies" / "seed0-p0.1-d15.safetensors", {"weight": np.zeros(())}, {"alive": True}
    )
    return folder


def test_tables_curves_and_numbers_of_an_earlier_version_are_read(earlier, tmp_path):
    run = qcrl.load(earlier)
    assert run.lanes == (Lane(0, (Outage(15.0, 0.1),), 0.1),)
    assert run.metrics["outage"].tolist() == [0, 0.25]
    assert run.episodes["cost"].tolist() == [9, 11, 12, 20]
    [curves] = read_curves([earlier])
    assert curves.over_seeds("multiplier")[1].tolist() == [1, 2]
    html = report([earlier], tmp_path / "report.html").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])
    [evaluation] = data["evaluations"]
    assert [(row["outages"], row["episodes"], row["mean_cost"]) for row in evaluation["rows"]] == [(1, 4, 13)]
    assert data["runs"][0]["constraint"] == "Outage"
    assert data["replays"] == []
    assert "its policies can be neither" in data["problems"][0]


def test_policies_of_an_earlier_version_are_refused_in_one_sentence(fake, earlier, capsys):
    def options(*more):
        return ["train", "fake", "TwoPathEnv-v0", "--resume", "--out", str(earlier), *more]

    before = {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()}
    message = "was trained by an earlier version of qcrl: its curves can be shown"
    with pytest.raises(UserError, match=message):
        qcrl.load(earlier).policy()
    with pytest.raises(UserError, match=message):
        qcrl.train("fake", "TwoPathEnv-v0", Outage(15, 0.1), steps=40, out=earlier, resume=True, progress=False)
    for command in (options(), options("--steps", "80"), ["evaluate", str(earlier)], ["certify", str(earlier)]):
        capsys.readouterr()
        assert main(command) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith(f"qcrl: {earlier} {message}")
    assert before == {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()}
    # A task that can report several costs, of which runs of then knew nothing.
    (earlier / "config.json").write_text((earlier / "config.json").read_text().replace("TwoPathEnv", "DynamicEnv"))
    for command in ("evaluate", "certify"):
        assert main([command, str(earlier)]) == 2
        assert message in capsys.readouterr().err


def test_a_folder_without_a_run_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="there is no run in"):
        qcrl.load(tmp_path)
    for content in ("{torn", "{}"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(UserError, match="cannot be read"):
            qcrl.load(tmp_path)


def test_a_run_without_policies_is_a_user_error(run):
    for path in (run.path / "policies").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"holds no policy for seed0-p0\.1-d15"):
        run.policy(probability=0.1, limit=15)


def test_metrics_are_read_while_a_row_is_being_written(run):
    with open(run.path / "metrics.csv", "a") as file:
        file.write("0,0.1,15.0")
    assert len(run.metrics["outage"]) == 8 * 3


def test_trees_come_back_as_they_were(tmp_path):
    tree = {
        "key": jax.random.key(3),
        "mask": jnp.array([True, False]),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "scalar": jnp.int32(7),
        "nothing": (),
    }
    checkpoints.write_tree(tmp_path / "tree.safetensors", tree, {"note": [1, "two"]})
    back = checkpoints.read_tree(tmp_path / "tree.safetensors", like=jax.eval_shape(lambda: tree))
    assert jax.random.key_data(back["key"]).tolist() == [0, 3]
    np.testing.assert_array_equal(back["transposed"], tree["transposed"])
    assert (back["scalar"].shape, int(back["scalar"]), back["nothing"]) == ((), 7, ())
    assert back["mask"].dtype == bool
    assert checkpoints.read_info(tmp_path / "tree.safetensors") == {"note": [1, "two"]}


def test_a_tree_of_another_shape_is_not_read(tmp_path):
    checkpoints.write_tree(tmp_path / "tree.safetensors", {"x": np.zeros(3)}, {})
    with pytest.raises(checkpoints.Torn, match="holds no x of shape"):
        checkpoints.read_tree(tmp_path / "tree.safetensors", like={"x": np.zeros(4)})


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    checkpoints.write_file(path, b"old")
    monkeypatch.setattr(checkpoints, "sync", lambda _: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        checkpoints.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_newest_checkpoints_stay(tmp_path):
    for iteration in (1, 2, 10):
        checkpoints.save_checkpoint(tmp_path / "c", iteration, {"x": np.float32(iteration)}, {})
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "000000002.safetensors",
        "000000010.safetensors",
    ]
    state, info = checkpoints.load_checkpoint(tmp_path / "c", like={"x": np.float32(0)})
    assert (state["x"], info["iteration"]) == (10, 10)
