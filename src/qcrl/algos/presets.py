"""What presets on the PPO core have in common. The presets themselves are in the algorithms' files."""

from qcrl.kinds import Settings

# What the released code does differently from the paper's text.
AS_RELEASED: Settings = dict(
    max_gradient_norm=1e4,
    warmup_iterations=1,
    gae_lambda=0.97,
    cost_gae_lambda=0.97,
    target_lambda=0.97,
    cut_at_chunks=True,
    clipping="separate",
    divide_by_multiplier=True,
    cost_scale=10.0,
    skip=True,
    cost_input="observation",
    late_cost=True,
    normalise_observations=True,
    tanh_mean=True,
)
# A small network without memory, and a batch that two CPU cores handle in a fraction of a second.
SMALL: Settings = dict(
    hidden_sizes=(64, 64),
    lstm_size=0,
    late_cost=False,
    learning_rate=1e-3,
    epochs=4,
    minibatches=4,
    target_kl=0.01,
)
