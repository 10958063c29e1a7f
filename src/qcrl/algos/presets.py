"""Named settings. Each preset is written as its difference from the one before: paper -> authors -> tuned -> fast."""

from dataclasses import replace
from typing import Any

from qcrl.algos.ppo_lag import PPOLag
from qcrl.algos.qcpo import QCPO
from qcrl.algos.settings import Settings
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
    normalise_observations=True,
    tanh_mean=True,
)
# A small network without memory, and a batch that two CPU cores handle in a fraction of a second.
SMALL: dict[str, Any] = dict(
    hidden_sizes=(64, 64),
    lstm_size=0,
    learning_rate=1e-3,
    epochs=4,
    minibatches=4,
    target_kl=0.01,
)

paper = QCPO()
authors = replace(paper, **AS_RELEASED, weight_smoothing="standardise")
tuned = replace(authors, driver="outage", integral_gain=0.5)
# One-step quantile advantages, as in the paper's text: a sum over later steps brings back the mean of the costs, and on
# TwoPathEnv with it the wrong route. The bounded error keeps the multiplier from winding up while costs are still high.
fast = replace(tuned, **SMALL, cost_advantage_decay=0.0, kappa=0.1, error_clip=0.1)

lag_paper = PPOLag()
lag_authors = replace(lag_paper, **AS_RELEASED, integral_gain=1.0, driver_window=12)
lag_tuned = replace(lag_authors, integral_gain=0.1, driver_window=100)
lag_fast = replace(lag_tuned, **SMALL)

PRESETS: dict[str, dict[str, Settings]] = {
    "qcpo": {"paper": paper, "authors": authors, "tuned": tuned, "fast": fast},
    "ppo_lag": {"paper": lag_paper, "authors": lag_authors, "tuned": lag_tuned, "fast": lag_fast},
}


def preset(algorithm: str, name: str) -> Settings:
    """The settings of `algorithm` under the preset `name`."""
    if algorithm not in PRESETS:
        raise UserError(f"there is no algorithm {algorithm!r}; the known ones are {', '.join(PRESETS)}")
    if name not in PRESETS[algorithm]:
        raise UserError(f"{algorithm} has no preset {name!r}; it has {', '.join(PRESETS[algorithm])}")
    return PRESETS[algorithm][name]
