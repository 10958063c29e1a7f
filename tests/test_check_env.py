"""qcrl check-env: each defect is found under its name, and nothing else is."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest

from host_envs import Deaf, Faulty, InPlace, Late, LateAndHidden, LateByPython, Nested, Ragged, SixValues, moved
from qcrl.cli import main as cli
from qcrl.envs.host.check import Report, check_env
from qcrl.envs.host.environment import open_host
from qcrl.envs.host.suggest import command, limits, suggestions
from qcrl.errors import UserError


class Steady(gymnasium.Env):
    """Ten steps that cost 0, 1, 2 and so on up to 9: 45 an episode."""

    observation_space = gymnasium.spaces.Box(0.0, 20.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time, np.float32), 0.5, False, self.time == 10, {"cost": self.time - 1.0}


class Accumulating(Steady):
    """The cost so far is not cleared."""

    total = 0.0

    def step(self, action):
        self.total += 1.0
        return (*super().step(action)[:-1], {"cost": self.total})


class Left(Steady):
    def reset(self, **options):
        return super().reset(**options)[0], {"cost": 3.0}


class Unseeded(Steady):
    def step(self, action):
        return (*super().step(action)[:-1], {"cost": float(np.random.default_rng().random())})


class Endless(Steady):
    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return np.minimum(obs, 20), reward, False, False, info


class Outside(Steady):
    def step(self, action):
        obs, *rest = super().step(action)
        return (-obs, *rest)


class Silent(Steady):
    """Says nothing of its time limit."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.time == 10, False, info


def failing(report):
    return [check.name for check in report.checks if check.holds is False]


@pytest.mark.parametrize("env", [Steady, Steady(), Ragged, SixValues])
def test_a_sound_environment_passes(env):
    report = check_env(env)
    assert failing(report) == []
    assert report.passed
    assert report.costs.size == 20


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (lambda: Faulty("leave out"), "every step has a cost"),
        (lambda: Faulty(-1.0), "costs are not negative"),
        (lambda: Faulty(float("nan")), "costs are finite"),
        (Accumulating, "reset clears the cost"),
        (Left, "reset clears the cost"),
        (Unseeded, "seeds reproduce"),
        (Endless, "episodes end"),
        (Outside, "observations and rewards are numbers, as the spaces say"),
        (Nested, "a place for the cost"),
    ],
)
def test_a_defect_is_found_under_its_name(env, name):
    report = check_env(env, steps=400)
    assert name in failing(report)
    assert set(failing(report)) <= {name, "reset clears the cost", "seeds reproduce"}
    assert not report.passed


def test_an_environment_that_ignores_seeds_is_given_them():
    alone = [Deaf().reset(seed=seed)[0] for seed in (1, 2)]
    assert alone[0] == alone[1]
    env = open_host(Deaf)
    assert "it ignores seeds" in str(env)
    with closing(env.fleet(3)) as fleet:
        first, again = fleet.reset([1, 2, 1]), fleet.reset([1, 2, 1])
    assert first[0] == first[2] != first[1]
    np.testing.assert_array_equal(first, again)
    seen = {check.name: check for check in check_env(Deaf).checks}["seeds reproduce"]
    assert seen.holds
    assert seen.seen.endswith("which it ignores")
    assert "it ignores seeds" not in str(open_host(Steady))


@pytest.mark.parametrize("make", [Late, LateByPython])
def test_seeds_that_are_ignored_after_the_first_observation_are_noticed(make, capsys):
    env = open_host(make)
    assert "it ignores seeds" in str(env)
    with closing(env.fleet(3)) as fleet:
        fleet.reset([1, 2, 1])
        first, other, again = np.array([fleet.step(np.zeros(3, int)).obs[:, 0] for _ in range(9)]).T
    assert first.tolist() == again.tolist() != other.tolist()
    seen = {check.name: check for check in check_env(make).checks}
    assert seen["seeds reproduce"].seen.endswith("which it ignores")
    assert all(check.holds for check in seen.values() if check.name != "time limits are reported as truncated")
    assert not capsys.readouterr().err


def test_instances_that_repeat_each_other_are_told(capsys):
    assert "it ignores seeds" not in str(open_host(LateAndHidden))
    err = " ".join(capsys.readouterr().err.split())
    assert err.startswith("warning: host_envs:LateAndHidden: its instances have the same episodes, although")
    assert failing(check_env(LateAndHidden)) == ["seeds reproduce"]
    for sound in (Ragged, Steady, Unseeded):  # the first observes its instance's episode, the last never repeats
        open_host(sound)
    assert not capsys.readouterr().err


def test_instances_are_not_said_to_repeat_each_other_where_none_of_them_begins(capsys):
    made = []

    class Licensed(LateAndHidden):
        """For one instance only."""

        def reset(self, **options):
            made.append(self)
            if self is not made[0]:
                raise RuntimeError("no licence")
            return super().reset(**options)

    assert "it ignores seeds" not in str(open_host(Licensed))
    assert len({id(each) for each in made}) == 2
    assert not capsys.readouterr().err


def test_generators_are_not_given_seeds_where_that_keeps_episodes_from_beginning(capsys):
    class Demanding(Late):
        """Does not begin without a seed, which it ignores."""

        def reset(self, *, seed=None, options=None):
            if seed is None:
                raise ValueError("no seed")
            return super().reset()

    env = open_host(Demanding)
    assert "it ignores seeds" not in str(env)
    assert "have the same episodes" in " ".join(capsys.readouterr().err.split())
    with closing(env.fleet(1)) as fleet:
        fleet.reset([0])


@pytest.mark.parametrize("nested", [False, True])
def test_costs_of_observations_that_are_changed_in_place(nested):
    report = check_env(lambda: InPlace(nested), moved, episodes=2)
    assert report.costs.tolist() == [5.0, 5.0]
    assert report.passed


def test_a_time_limit_that_looks_like_an_end_is_pointed_out():
    (check,) = [check for check in check_env(Silent).checks if "truncated" in check.name]
    assert check.holds is None
    assert "after 10 steps" in check.seen


def test_the_distribution_of_costs_and_limits_are_told():
    report = check_env(Steady, episodes=5)
    assert report.costs.tolist() == [45.0] * 5
    assert report.lengths.tolist() == [10] * 5
    text = " ".join(suggestions(report))
    assert "mean 45" in text
    assert "Limits to begin with: 22 (exceeded by 1.00 of them)" in text  # half, as nobody exceeds the quantiles
    assert command(report, "steady:Steady") == "To train: qcrl train steady:Steady --limit 22 --outage 0.1"


def test_limits_of_costs_that_are_all_or_nothing():
    report = Report("env", [], np.zeros(4), np.array([0.0, 1.0, 0.0, 1.0]), np.ones(4))
    assert limits(report).tolist() == [0]
    assert "with a limit of 0 the outage is the share of episodes that cost anything" in suggestions(report)[-1]
    counted = Report("env", [], np.zeros(4), np.array([0.0, 1.0, 4.0, 9.0]), np.ones(4))
    assert limits(counted).tolist() == [2, 5, 7]
    rare = Report("env", [], np.zeros(9), np.array([0.0, 0, 0, 0, 0, 1, 1, 2, 2]), np.ones(9))
    assert limits(rare).tolist() == [0, 1]  # nobody exceeds 2
    free = Report("env", [], np.zeros(4), np.zeros(4), np.ones(4))
    assert command(free, "a:b", ["k"]).startswith("To train: qcrl train a:b --cost k --limit D --outage 0.1, with what")


class Talking(Steady):
    def step(self, action):
        *rest, info = super().step(action)
        return (*rest, info | {"speed": 1.0, "cost_wall": 0.5})


def test_what_is_not_looked_at_is_named():
    assert check_env(Talking, episodes=2).ignored == ('info["speed"]', 'info["cost_wall"]')
    assert check_env(Talking, "cost_wall", episodes=2).ignored == ('info["cost"]', 'info["speed"]')
    by_function = check_env(Talking, lambda obs, action, next_obs, info: info["speed"], episodes=2)
    assert by_function.ignored == ('info["cost"]',)
    assert suggestions(by_function)[0].startswith('Not looked at: info["cost"].')


def test_exit_codes_tell_a_defect_from_a_mistake(capsys, monkeypatch):
    assert cli.main(["check-env", "host_envs:Ragged"]) == 0
    assert "ok  costs are finite" in capsys.readouterr().out
    assert cli.main(["check-env", "CartPole-v1"]) == 1
    out = capsys.readouterr().out
    assert "NO  a place for the cost" in out
    assert out.endswith("Mend what is marked NO, then look again: qcrl check-env CartPole-v1\n")
    assert cli.main(["check-env", "NoSuch-v0"]) == 2
    assert "there is no environment" in capsys.readouterr().err
    with pytest.raises(UserError, match="at least 1"):
        check_env(Steady, episodes=0)
