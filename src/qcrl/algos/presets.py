"""What presets have in common, most of it on the PPO core. The presets themselves are in the algorithms' files."""

from qcrl.kinds import Settings


def lambdas(value: float) -> Settings:
    """One lambda for the advantages of rewards and of costs, and for the critics' targets."""
    return dict.fromkeys(("gae_lambda", "cost_gae_lambda", "target_lambda", "cost_target_lambda"), value)


# What the released code does differently from the paper's text.
AS_RELEASED: Settings = dict(
    max_gradient_norm=1e4,
    warmup_iterations=1,
    **lambdas(0.97),
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
# What has served best at the paper's length, beside the algorithm's own. The multiplier moves slowly: the policy first
# learns the task, then to keep the constraint, and the falling learning rate lets it settle there, a little below the
# target. The tasks need little memory: without the LSTM there is time for four times as many gradient steps.
TUNED: Settings = dict(
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
    relative_gains=True,
    initial_multiplier=1.0,
    integral_power=0.5,
    target_margin=0.05,
    gain_smoothing=0.8,
)
# A multiplier steers the outage of many policies in a row. The last one alone may lie on either side of the target.
CHOSEN: Settings = dict(candidates=8)
# What one accelerator earns in minutes: as many steps in a batch as twelve of the paper's, in many environments for few
# steps each. Minibatches are multiples of 128, or products over them would be padded.
SCALE: Settings = dict(
    num_envs=1152,
    steps_per_env=125,
    chunk_length=125,
    out_of_phase=True,
    epochs=6,
    minibatches=15,
    matmul_precision="bfloat16",
    window=288,
    driver_window=288,
    **CHOSEN,
)
SCALE_STEPS = 60_000_000
# Nothing is known of a user's task beforehand: rewards and costs are counted in what they turn out to be.
SCALED: Settings = dict(reward_scale="auto", cost_scale="auto")
# Environments that run in Python: what has proved itself for PPO on many tasks, with scales that follow the task, and
# gains that count per step. `training.fit` makes the batch smaller where the simulator is slow. A batch holds a few
# episodes: what a hundred of them say of the costs comes too late, and the multiplier swings.
HOST: Settings = dict(
    num_envs=8,
    steps_per_env=256,
    chunk_length=64,
    epochs=10,
    minibatches=32,
    learning_rate=3e-4,
    learning_rate_flat=0.6,
    warmup_iterations=1,
    max_gradient_norm=0.5,
    **lambdas(0.95),
    time_limit="bootstrap",
    **SCALED,
    clip=0.2,
    value_loss_weight=0.5,
    normalise_advantages=True,
    hidden_sizes=(64, 64),
    lstm_size=0,
    cost_input="none",
    separate_critics=True,
    normalise_observations=True,
    normalise_budget=False,
    initial_log_std=-0.7,
    initial_gain=2.45,
    initial_head=0.01,
    relative_gains=True,
    initial_multiplier=0.1,
    least_multiplier=1e-3,
    integral_power=0.5,
    integral_gain=0.05,
    proportional_gain=0.3,
    gain_smoothing=0.8,
    gain_steps=2048,
    driver_window=20,
    error_clip=1.0,
    target_margin=0.1,
    **CHOSEN,
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
