"""How far below a promise to train, and how many episodes may certify it."""

from numbers import Real

import jax
import numpy as np
from scipy.stats import norm

from qcrl import stats
from qcrl.constraints import Constraint, Outage, Together
from qcrl.envs.base import Described
from qcrl.errors import UserError
from qcrl.evaluation.plan import planned_outage
from qcrl.sampling.play import engine_of

POWER = 0.98
"""The chance of a certificate that everything is planned for."""
SETTLES_AT, SPREAD = 0.98, 0.26
"""Outage of the last policy of a training, as a share of its target: mean and standard deviation over the 20 policies
of the presets `scale` and `fast` in results/outage_ppo/tuning.csv, the rows `short` and `fast_base`."""
LAST_BELOW, LAST_BELOW_AT = (0.8, 0.6), (0.01, 0.1)
"""The chance that the last policy of a training is at or below the planned outage, for promises of .01 and .1. At .1
recent ones are a tenth apart from it, mostly below, so that one of them is there nearly always; a lower target would
cost return. With `scale` at .01 that was too little: of ten calls that aimed for .6, eight were certified."""
AFFORDED, AFFORDED_ON_CPU, AFFORDED_ON_ACCELERATORS = 0.25, 1.0, 2.0
"""Steps that certifying may take, as a share of those of the training; calibrating takes as many again. Playing is
twice as fast as training on a CPU, ten times on an accelerator; the first share is for environments in Python."""
MOST_AFFORDED = 200_000
"""Episodes, unless more are asked for."""


def promised(promise: float) -> float:
    """The promise, if it is one."""
    if not isinstance(promise, Real) or not 0 < promise < 1:  # that is no bool either
        raise UserError(f"the promise is {promise}, but must lie strictly between 0 and 1; 0.1 means one in ten")
    # As it is written: 0.1 of 32 bits would be a little more than an outage of 0.1.
    return float(str(promise)) if isinstance(promise, np.floating) else float(promise)


def afforded(steps: float, env: Described, episodes: int | None = None) -> int:
    """How many episodes may certify: those asked for, or what a share of the training's steps makes."""
    if episodes is not None:
        stats.check_episodes(episodes)
        return episodes
    on_device = AFFORDED_ON_CPU if jax.default_backend() == "cpu" else AFFORDED_ON_ACCELERATORS
    share = AFFORDED if engine_of(env) == "host" else on_device
    return min(MOST_AFFORDED, max(1, int(share * steps / env.horizon)))


def aimed_by(episodes: int, steps: float, env: Described) -> int:
    """Episodes that the target is computed for. On a CPU fewer than may certify, since small networks scatter more.

    But a quarter at least: of an environment without a time limit the horizon is a guess, and many may be asked for.
    """
    fewer = max(1, int(AFFORDED * steps / env.horizon), episodes // 4)
    return min(episodes, fewer) if jax.default_backend() == "cpu" else episodes


def target(promise: float, error: float, episodes: int) -> float:
    """What to train for: so far below the planned outage that the spread of trainings stays below it mostly."""
    planned = planned_outage(promise, error, episodes, POWER)
    below = np.interp(np.log(promise), np.log(LAST_BELOW_AT), LAST_BELOW)
    share = SETTLES_AT + float(norm.ppf(below)) * SPREAD
    return float(f"{min(planned / share, promise):.3g}")


def aimed(asked: Constraint | Together, promise: float, aim: float) -> Outage:
    """What is trained for: the aim, unless less was asked for."""
    if not isinstance(asked, Outage) or asked.ranged:
        raise UserError("a promise is about one outage constraint with one limit; train without it, then certify")
    if asked.probability > promise:
        raise UserError(
            f"the promise is {promise:g}, but {asked.probability:g} is to be trained for, which cannot keep it; "
            "train for less, or leave the outage out"
        )
    return asked if asked.probability < promise else Outage(asked.limit, aim, asked.cost)
