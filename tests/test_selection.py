"""The choice among the last policies of a training."""

import gymnasium
import numpy as np
import pytest

import qcrl
from qcrl.runs import checkpoints
from qcrl.runs.lane import make_lane
from qcrl.sampling.play.seeds import Totals
from qcrl.training import selection

LANE = make_lane(0, (qcrl.Outage(10, 0.1),), qcrl.Outage(10, 0.1))


def the_score(found):
    return selection.score(LANE, ["cost"], found)


def candidate(outage, mean_return, seed):
    """Plays episodes with this probability of an outage and about this return."""
    rng = np.random.default_rng(seed)

    def play(count):
        return Totals(rng.normal(mean_return, 1.0, count), np.where(rng.random((count, 1)) < outage, 11.0, 9.0))

    return play


@pytest.mark.parametrize("seed", range(5))
def test_the_best_return_among_those_that_keep_the_constraint(seed):
    # Outages and returns; the last policy, number 0, is over, as the richest are.
    settings = [(0.6, 50), (0.9, 60), (0.0, 20), (0.02, 40), (0.5, 45), (1.0, 80), (0.01, 30), (0.4, 70)]
    # A second choice, of the same in the opposite order, goes on beside the first.
    both = [[candidate(*each, seed=[seed, place]) for place, each in enumerate(settings)] for _ in range(2)]
    candidates, played = [both[0], both[1][::-1]], [[0] * len(settings) for _ in both]

    def fresh(turns, count, first):
        assert all(first == played[choice][number] for choice, number in turns)
        for choice, number in turns:
            played[choice][number] += count
        return [candidates[choice][number](count) for choice, number in turns]

    first = selection.at_first(96, len(settings))
    found = selection.choose(fresh, [len(own) for own in candidates], first, [the_score] * 2)
    assert [best for best, _ in found] == [3, 4]
    assert found[0][1].returns.size == played[0][3] == 4 + 8 + 16
    assert [sum(own) for own in played] == [96, 96]


def test_one_that_was_dropped_early_does_not_win_by_its_few_episodes():
    # Returns in the first round of ten episodes, and in the last one of twenty.
    returns = {0: (9.0, 1.0), 1: (8.0, 7.0), 2: (7.9, None), 3: (1.0, None)}

    def fresh(turns, count, first):
        return [Totals(np.full(count, returns[number][first > 0]), np.zeros((count, 1))) for _, number in turns]

    ((best, measured),) = selection.choose(fresh, [4], 10, [the_score])
    assert best == 1
    assert measured.returns.tolist() == [8.0] * 10 + [7.0] * 20


def test_the_last_policy_is_no_earlier_one():
    assert selection.kept_at(100, 4) == {94, 88, 81, 75}
    assert [selection.kept_at(iterations, 7) for iterations in (1, 4, 13)] == [set(), {3}, {10, 11, 12}]


def test_among_policies_over_the_limit_the_outage_decides():
    score = lambda outages, mean: selection.score(
        LANE, ["cost"], Totals(np.full(20, mean), np.where(np.arange(20) < outages, 11.0, 9.0)[:, None])
    )
    assert score(1, 0.0) == (0.0, -0.0)  # (1 + 1) of (20 + 1) are allowed
    assert score(2, 0.0)[0] == pytest.approx(((2 + 2**0.5) / 21 - 0.1) / 0.1)
    assert sorted([(5, 9.0), (3, 1.0), (3, 2.0)], key=lambda each: score(*each)) == [(3, 2.0), (3, 1.0), (5, 9.0)]


class Bet(gymnasium.Env):
    """One step: the higher the action, the higher the return and the more likely the cost."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(0.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return (
            np.zeros(1, np.float32),
            float(action[0]),
            True,
            False,
            {"cost": float(self.np_random.random() < action[0])},
        )


def test_a_training_ends_with_the_chosen_policy_and_stays_with_it(tmp_path, capsys, monkeypatch):
    choose = selection.choose
    monkeypatch.setattr(selection, "choose", lambda *given: [(3, choose(*given)[0][1])])  # not the last one
    settings = {"num_envs": 4, "steps_per_env": 50, "hidden_sizes": (8,), "learning_rate": 3e-3}
    train = lambda **options: qcrl.train(
        "outage_ppo", Bet, qcrl.Outage(0.5, 0.3), 4000, out=tmp_path / "run", **settings, **options
    )
    run = train()
    said = capsys.readouterr().err
    info = run.policy().info
    assert info["chosen_after"] == 20
    assert info["iteration"] < 20
    assert f"that of iteration {info['iteration']} is kept" in said
    kept = {path.name for path in (run.path / selection.RECENT).iterdir()}
    assert f"{run.lanes[0]}-i20.safetensors" in kept
    assert f"{run.lanes[0]}-i{info['iteration']}.safetensors" not in kept
    before = run.policy_file(run.lanes[0]).read_bytes()
    train(resume=True)
    assert run.policy_file(run.lanes[0]).read_bytes() == before
    assert "choosing" not in capsys.readouterr().err


def test_nothing_is_chosen_where_the_constraint_is_never_felt(tmp_path):
    settings = {"num_envs": 4, "steps_per_env": 50, "hidden_sizes": (8,)}
    run = qcrl.train("outage_ppo", Bet, qcrl.Outage(5, 0.3), 800, out=tmp_path / "run", progress=False, **settings)
    assert "chosen_after" not in checkpoints.read_info(run.policy_file(run.lanes[0]))


def test_a_training_on_the_device_chooses_where_it_is_asked_to(tmp_path, capsys):
    settings = {"num_envs": 8, "steps_per_env": 50, "hidden_sizes": (8,), "candidates": 4}
    options = dict(steps=12_000, preset="fast", out=tmp_path / "run", out_of_phase=False, chunk_length=50, **settings)
    run = qcrl.train("outage_ppo", "TwoPathEnv-v0", qcrl.Outage(15, 0.2), seeds=2, **options)
    said = capsys.readouterr().err
    for lane in run.lanes:
        info = run.policy_of(lane).info
        assert f"{lane}: choosing among the last 4 policies" in said
        assert f"{lane}: that of iteration {info['iteration']} is kept" in said
        assert info["chosen_after"] == 30
    assert len(list((run.path / selection.RECENT).iterdir())) == 6


def test_how_many_episodes_choose_depends_on_no_other_lane(tmp_path, monkeypatch):
    settings = {"num_envs": 4, "steps_per_env": 50, "hidden_sizes": (8,), "progress": False}
    choice, choose, counts = selection._choice, selection.choose, []
    fewer = lambda run, env, lane, *given: choice(run, env, lane, *given)._replace(episodes=400 if lane.seed else 100)
    counted = lambda fresh, candidates, count, scores: (
        counts.append((len(candidates), count)) or choose(fresh, candidates, count, scores)
    )
    monkeypatch.setattr(selection, "_choice", fewer)
    monkeypatch.setattr(selection, "choose", counted)
    run = qcrl.train("outage_ppo", Bet, qcrl.Outage(0.5, 0.3), 4000, seeds=3, out=tmp_path / "run", **settings)
    assert counts == [(1, selection.at_first(100, 6)), (2, selection.at_first(400, 6))]
    assert all("chosen_after" in run.policy_of(lane).info for lane in run.lanes)


def test_where_the_simulator_breaks_no_lane_has_another_policy_than_its_last(tmp_path, monkeypatch, capsys):
    settings = {"num_envs": 4, "steps_per_env": 50, "hidden_sizes": (8,)}
    choice, choose, groups = selection._choice, selection.choose, []
    fewer = lambda run, env, lane, *given: choice(run, env, lane, *given)._replace(episodes=400 if lane.seed else 100)

    def breaks(*given):
        groups.append(given)
        if len(groups) > 1:
            raise qcrl.UserError("it broke")
        return choose(*given)

    monkeypatch.setattr(selection, "_choice", fewer)
    monkeypatch.setattr(selection, "choose", breaks)
    run = qcrl.train("outage_ppo", Bet, qcrl.Outage(0.5, 0.3), 4000, seeds=2, out=tmp_path / "run", **settings)
    assert len(groups) == 2
    assert "the last policies are kept, without a choice: it broke" in " ".join(capsys.readouterr().err.split())
    assert not any("chosen_after" in run.policy_of(lane).info for lane in run.lanes)
