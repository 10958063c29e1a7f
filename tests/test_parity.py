"""The JAX engine against MuJoCo: smooth motion and sensors, button contacts, episode statistics."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qcrl.bench.parity import compare, jax_episodes, mujoco_episodes

large = pytest.mark.large


@pytest.mark.parametrize(
    "script", ["parity_smooth.py", "parity_buttons.py 300", pytest.param("parity_buttons.py 1000", marks=large)]
)
def test_float64_parity(script):
    """Runs in a process of its own, because float64 must be chosen before JAX starts."""
    name, *arguments = script.split()
    result = subprocess.run(
        [sys.executable, Path(__file__).parent / name, *arguments],
        env={**os.environ, "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@large
@pytest.mark.parametrize("id", ["DynamicButtonEnv-v0", "GremlinEnv-v0"])
def test_episode_statistics_agree(id):
    """The small version of `qcrl bench parity`: six comparisons at 99.9%."""
    ours = jax_episodes(id, "seeker", 200, seed=11)
    theirs = mujoco_episodes(id, "seeker", 30, seed=11, processes=1)
    for comparison in compare(ours, theirs, seed=11):
        assert comparison.agrees, comparison


def test_comparison_notices_a_difference():
    rng = np.random.default_rng(0)
    episodes = rng.normal(10, 2, (300, 2))
    assert all(c.agrees for c in compare(episodes, rng.normal(10, 2, (300, 2)), seed=0))
    assert not any(c.agrees for c in compare(episodes, episodes + 2, seed=0))
