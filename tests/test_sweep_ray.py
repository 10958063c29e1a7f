"""The sweep on a Ray cluster of several nodes: the rows are those of one machine, a dead node loses next to nothing."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from qcrl import UserError
from qcrl.sweeps import sweep
from qcrl.sweeps.groups import progress
from sweep_grids import GRID, rows

ray = pytest.importorskip("ray")
ray_engine = pytest.importorskip("qcrl.sweeps.ray_engine")


@pytest.fixture(scope="module")
def cluster():
    """A head without room for work, and a node with room for two groups."""
    from ray.cluster_utils import Cluster

    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}  # else a death is noticed after 20 s
    options = {"num_cpus": 0, "include_dashboard": False, "_system_config": quick}
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=options)
    cluster.doomed = cluster.add_node(num_cpus=2)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_what_no_machine_has_is_refused(cluster):
    assert ray_engine.resources(2, None) == {"num_cpus": 2, "num_gpus": 0.0}
    for cpus, gpus, problem in (
        (3, None, "of one machine"),
        (1, 1, "of one machine"),
        (1, 1.5, "a part"),
        (-1, 0, "-1"),
    ):
        with pytest.raises(UserError, match=problem):
            ray_engine.resources(cpus, gpus)


@pytest.mark.large
def test_a_cluster_that_loses_a_node_gets_the_rows_of_one_machine(cluster, tmp_path):
    grid = GRID | {"steps": 20 * GRID["steps"], "max_lanes": 4}
    whole = sweep(grid, tmp_path / "whole", progress=False)
    lost: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        sweeping = pool.submit(sweep, grid, tmp_path / "ray", "ray", checkpoint_interval=0.2, progress=False)
        while not (lost or sweeping.done()):
            time.sleep(0.05)
            shares = [progress(group, tmp_path / "ray" / group.path) for group in whole.groups]
            lost = [share for share in shares if 0 < share < 1]
        # A group has sent a checkpoint home and is still on its way: its node dies, and another one joins.
        cluster.remove_node(cluster.doomed, allow_graceful=False)
        cluster.add_node(num_cpus=2)
        result = sweeping.result()
    assert lost
    assert not result.failures
    for group in whole.groups:
        here, there = whole.path / group.path, result.path / group.path
        assert rows(there) == rows(here)
        for name in ("episodes.csv", "evaluation-jax.csv"):
            assert (there / name).read_bytes() == (here / name).read_bytes()
    # Event files end in the iteration that they begin after: one began at a checkpoint.
    assert max(int(path.suffix[1:]) for path in result.path.rglob("events.out.*")) > 0
