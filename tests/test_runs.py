"""Run folders as readers see them, and the files that must never be half written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from qcrl import Outage, UserError, checkpoints

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
    assert run.lane(seed=1, probability=0.2, limit=15) == (1, 0.2, 15)
    assert run.lane(probability=0.1, limit=20).seed == 0
    with pytest.raises(UserError, match=r"trained with probability 0.1, 0.2; say which one"):
        run.lane(seed=0, limit=15)
    with pytest.raises(UserError, match=r"has no seed 7; it was trained with 0, 1"):
        run.policy(seed=7, probability=0.1, limit=15)
    with pytest.raises(UserError, match=r"has no limit 16"):
        run.policy(probability=0.1, limit=16)


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
