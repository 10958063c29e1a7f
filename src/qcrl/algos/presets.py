"""Named settings. A preset is written as its difference from another: paper -> authors -> tuned, and authors -> fast."""

from dataclasses import replace
from typing import Any

from qcrl.algos.cvar_pg import CVaRPG
from qcrl.algos.ppo_lag import PPOLag
from qcrl.algos.qcpo import QCPO
from qcrl.algos.wcsac import WCSAC, WCSACWeibull
from qcrl.errors import UserError

# What the released code does differently from the paper's text, for both algorithms.
AS_RELEASED: dict[str, Any] = dict(
    max_gradient_norm=1e4,
    warmup_iterations=1,
    advantage_decay=0.97,
    cost_advantage_decay=0.97,
    target_decay=0.97,
    cut_at_chunks=True,
    clipping="separate",
    divide_by_multiplier=True,
    cost_mean_loss_weight=0.5,
    cost_scale=10.0,
    skip=True,
    cost_input="observation",
    late_cost=True,
    normalise_observations=True,
    tanh_mean=True,
)
# A small network without memory, and a batch that two CPU cores handle in a fraction of a second.
SMALL: dict[str, Any] = dict(
    hidden_sizes=(64, 64),
    lstm_size=0,
    late_cost=False,
    learning_rate=1e-3,
    epochs=4,
    minibatches=4,
    target_kl=0.01,
)

paper = QCPO()
authors = replace(paper, **AS_RELEASED, weight_smoothing="standardise")
# The outage error is bounded, so the multiplier cannot wind up while costs are still high. It moves slowly: the policy first
# learns the task, then to keep the constraint, and the falling learning rate lets it settle there, a little below the target.
# The four tasks need little memory: without the LSTM there is time for four times as many gradient steps, and no need for chunks.
tuned = replace(
    authors,
    lstm_size=0,
    late_cost=False,
    cut_at_chunks=False,
    clipping="joint",
    minibatches=4,
    learning_rate=6e-4,
    learning_rate_halving=120.0,
    clip=0.2,
    target_kl=0.02,
    initial_log_std=-0.7,
    driver="outage",
    relative_gains=True,
    initial_multiplier=1.0,
    integral_gain=0.25,
    integral_power=0.5,
    target_margin=0.05,
    proportional_gain=3.0,
    gain_smoothing=0.8,
    error_clip=0.1,
)
# One-step quantile advantages, as in the paper's text: a sum over later steps brings back the mean of the costs, and on
# TwoPathEnv with it the wrong route.
fast = replace(
    authors, **SMALL, driver="outage", integral_gain=0.5, error_clip=0.1, cost_advantage_decay=0.0, kappa=0.1
)

lag_paper = PPOLag()
lag_authors = replace(lag_paper, **AS_RELEASED, integral_gain=1.0, driver_window=12)
lag_tuned = replace(lag_authors, late_cost=False, integral_gain=0.1, driver_window=100)
lag_fast = replace(lag_tuned, **SMALL)

# Two CPU cores: a small network, and half as many gradient steps.
SMALL_SOFT: dict[str, Any] = dict(
    num_envs=8, steps_per_update=8, batch_size=64, replay_size=100_000, hidden_sizes=(64, 64)
)
wcsac_paper = WCSAC()
# Far below the limit the damping would draw the policy towards higher costs, whatever they bring.
wcsac_tuned = replace(wcsac_paper, reward_costs=False)
wcsac_fast = replace(wcsac_tuned, **SMALL_SOFT)
weibull_paper = WCSACWeibull()
weibull_tuned = replace(weibull_paper, reward_costs=False)
weibull_fast = replace(weibull_tuned, **SMALL_SOFT)

cvar_paper = CVaRPG()
# Rewards far ahead say little about an action; and the multiplier shall not wind up while costs are still high.
cvar_tuned = replace(cvar_paper, discount=0.99, error_clip=15.0)
# More, shorter batches: every iteration is only one gradient step.
cvar_fast = replace(cvar_tuned, num_envs=32)

PRESETS: dict[str, dict[str, Any]] = {
    "qcpo": {"paper": paper, "authors": authors, "tuned": tuned, "fast": fast},
    "ppo_lag": {"paper": lag_paper, "authors": lag_authors, "tuned": lag_tuned, "fast": lag_fast},
    # The comparison's own settings, as far as they are known, are the released ones.
    "wcsac": {"paper": wcsac_paper, "authors": wcsac_paper, "tuned": wcsac_tuned, "fast": wcsac_fast},
    "wcsac_weibull": {"paper": weibull_paper, "authors": weibull_paper, "tuned": weibull_tuned, "fast": weibull_fast},
    "cvar_pg": {"paper": cvar_paper, "authors": cvar_paper, "tuned": cvar_tuned, "fast": cvar_fast},
}


def preset(algorithm: str, name: str) -> Any:
    """The settings of `algorithm` under the preset `name`."""
    if algorithm not in PRESETS:
        raise UserError(f"there is no algorithm {algorithm!r}; the known ones are {', '.join(PRESETS)}")
    if name not in PRESETS[algorithm]:
        raise UserError(f"{algorithm} has no preset {name!r}; it has {', '.join(PRESETS[algorithm])}")
    return PRESETS[algorithm][name]
