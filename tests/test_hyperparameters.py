"""No hyper-parameter is ignored: changing any one of them changes the program that trains."""

import dataclasses
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

import jax
import pytest

from qcrl.algos.cvar_pg import CVaRPG
from qcrl.algos.find import algorithms, build
from qcrl.algos.hyperparameters import field_names
from qcrl.algos.ppo import PPO
from qcrl.algos.sac import SAC
from qcrl.constraints import Outage
from qcrl.envs.two_path import TwoPathEnv
from qcrl.training.checks import trained_under

ENV = TwoPathEnv(length=8)
SMALL = {
    PPO: dict(
        num_envs=4,
        steps_per_env=8,
        chunk_length=4,
        epochs=2,
        minibatches=2,
        hidden_sizes=(4, 6),
        lstm_size=6,
        skip=True,
        cost_input="observation",
        budget_input=True,
        normalise_observations=True,
        relative_gains=True,
        initial_multiplier=1.0,
        window=60,
        driver_window=50,
    ),
    SAC: dict(num_envs=2, steps_per_env=8, block_length=4, batch_size=4, replay_size=64, hidden_sizes=(4, 4)),
    CVaRPG: dict(num_envs=4, steps_per_env=8, hidden_sizes=(4,)),
}
"""What makes the children of each of these small."""
OWN = {"qcpo": dict(quantiles=5, tail_quantiles=2), "outage_ppo": dict(falls_from=0.2)}
OTHER = {
    # What a change of one step or a half cannot reach, and what needs another setting beside it.
    "num_envs": dict(num_envs=8),
    "steps_per_env": dict(steps_per_env=16),
    "chunk_length": dict(chunk_length=8),
    "minibatches": dict(minibatches=4),
    "hidden_sizes": dict(hidden_sizes=(5, 6)),
    "lstm_size": dict(lstm_size=0),
    "cost_input": dict(cost_input="lstm"),
    "relative_gains": dict(relative_gains=False, integral_power=1.0),
    "out_of_phase": dict(out_of_phase=True, steps_per_env=4),
    "block_length": dict(block_length=8),
    "steps_per_update": dict(steps_per_update=8),
    "window": dict(window=70),
    "driver_window": dict(driver_window=40),
    "reward_scale": dict(reward_scale="auto"),
    "cost_scale": dict(cost_scale="auto"),
    "separate_critics": dict(separate_critics=True, lstm_size=0),
    "budget_discount": dict(budget_discount=0.998),
}
AFTERWARDS = {"candidates"}
"""What counts once the program is done; tests/test_selection.py has it."""


def base(name):
    kind = algorithms()[name]
    preset = next((each for each in ("paper", "tuned") if each in kind.presets), None)
    small = next(small for core, small in SMALL.items() if issubclass(kind, core))
    return dataclasses.replace(build(name, preset), **small | OWN.get(name, {}))


def changed(name, field):
    """The algorithm with another value of one field."""
    algorithm = base(name)
    if field in OTHER and not (field == "hidden_sizes" and not isinstance(algorithm, PPO)):
        return dataclasses.replace(algorithm, **OTHER[field])
    hint, value = get_type_hints(type(algorithm))[field], getattr(algorithm, field)
    if get_origin(hint) is Literal:
        new = next(option for option in get_args(hint) if option != value)
    elif hint is bool:
        new = not value
    elif hint is int:
        new = value + 1
    elif hint is float:
        new = 0.37 if not 0.3 < value < 0.4 else 0.2
    else:
        new = (7, *value[1:])
    return dataclasses.replace(algorithm, **{field: new})


def traced(algorithm):
    """What training does, as text: the state before it, and one iteration, which is traced when it is asked for."""
    constraint = trained_under(algorithm, Outage(15.0, 0.1))
    init = lambda seed: algorithm.init(ENV, jax.random.key(seed), [constraint])
    start, shapes = jax.make_jaxpr(init, return_shape=True)(0)
    yield str(start)
    yield str(jax.make_jaxpr(lambda state: algorithm.iterate(ENV, state))(shapes))


@cache
def base_program(name):
    return tuple(traced(base(name)))


def fields():
    """Every field once, with the first algorithm that has it."""
    seen = set()
    for name, kind in algorithms().items():
        for field in sorted(set(field_names(kind)) - AFTERWARDS) if name != "fake" else ():
            home = next(each for each in reversed(kind.__mro__) if field in vars(each).get("__annotations__", {}))
            if (home, field) not in seen:
                seen.add((home, field))
                yield name, field


@pytest.mark.parametrize(("name", "field"), fields())
def test_no_hyperparameter_is_ignored(name, field):
    assert any(text != before for text, before in zip(traced(changed(name, field)), base_program(name)))
