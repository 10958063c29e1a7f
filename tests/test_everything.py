"""Every algorithm and preset, on the device and in Python: trained, stopped, resumed, and the same as in one go."""

import math

import pytest

import qcrl
from fake_runs import rows
from qcrl import Outage
from qcrl.algos.find import algorithms

PPO = dict(
    num_envs=4, steps_per_env=8, chunk_length=4, epochs=2, minibatches=2, hidden_sizes=(8, 8), out_of_phase=False
)
SAC = dict(num_envs=4, steps_per_env=8, block_length=4, batch_size=8, replay_size=200, hidden_sizes=(8,), start_steps=8)
WHERE = {"device": "TwoPathEnv-v0", "host": "host_envs:OneStep"}
CASES = [
    (name, preset, where)
    for name, kind in algorithms().items()
    if name != "fake"
    for preset in kind.presets
    for where in WHERE
]


def small(name, preset):
    if name == "cvar_pg":
        return dict(num_envs=4, steps_per_env=8, hidden_sizes=(8,))
    if name.startswith("wcsac"):
        return SAC
    # Else the learning rate would fall by the end of the first part.
    settled = dict(learning_rate_end=math.inf) if preset == "host" else {}
    if (name, preset) == ("outage_ppo", "scale"):
        settled = dict(learning_rate_end=math.inf, learning_rate_halving=240.0, falls_for=250.0)
    return PPO | settled | (dict(lstm_size=8) if algorithms()[name].presets[preset].lstm_size else {})


@pytest.mark.large
@pytest.mark.parametrize(("name", "preset", "where"), CASES)
def test_trained_stopped_and_resumed(name, preset, where, tmp_path):
    def train(folder, steps, **options):
        limits = [Outage(1.5, 0.1), Outage(1.5, 0.3)]
        return qcrl.train(
            name, WHERE[where], limits, steps, 2, preset, folder, progress=False, **small(name, preset), **options
        )

    train(tmp_path / "resumed", 96)
    resumed, whole = train(tmp_path / "resumed", 192, resume=True), train(tmp_path / "whole", 192)
    assert resumed.metrics["iteration"].max() == 6
    if where == "device":
        assert rows(resumed) == rows(whole)
    else:  # episodes in Python begin anew when a run is resumed
        assert rows(resumed)[:12] == rows(whole)[:12]
    assert len(qcrl.evaluate(resumed, episodes=20, progress=False).per_lane) == 4
