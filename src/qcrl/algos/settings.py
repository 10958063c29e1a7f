"""The hyper-parameters that QCPO and PPO_Lag share. The defaults are what the paper's text says; presets.py has the others."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from qcrl.algos.multiplier import DRIVERS
from qcrl.errors import UserError


@dataclass(frozen=True)
class Settings:
    """Every field can be overridden by name, with dataclasses.replace or on the command line."""

    num_envs: int = 12
    """Environments stepped side by side."""
    steps_per_env: int = 1000
    """Steps taken in each environment per iteration."""
    chunk_length: int = 100
    """Length of the sub-trajectories that a network with a memory is trained on."""
    epochs: int = 8
    """Passes over the batch per iteration."""
    minibatches: int = 1
    """Gradient steps per pass."""
    learning_rate: float = 1e-4
    """Adam's learning rate."""
    learning_rate_halving: float = math.inf
    """Iterations over which the learning rate halves."""
    max_gradient_norm: float = math.inf
    """Longer gradients are scaled down to this norm."""
    warmup_iterations: int = 0
    """First iterations without gradient steps; they feed the observation statistics and move the multiplier."""

    discount: float = 0.99
    """Discount factor of rewards and costs."""
    advantage_decay: float = 0.0
    """GAE's lambda for reward advantages; 0 is the one-step TD error."""
    cost_advantage_decay: float = 0.0
    """GAE's lambda for cost advantages; 0 is the one-step TD error."""
    target_decay: float = 1.0
    """TD(lambda) of the critics' targets; 1 is the sampled return."""
    cut_at_chunks: bool = False
    """End the sums of advantages and targets at each chunk's end, with the next stored value."""
    time_limit: Literal["terminal", "bootstrap"] = "terminal"
    """Whether nothing follows an episode cut off by its time limit, or the critics' estimate does."""
    scale_advantages: bool = False
    """Divide both advantages by their standard deviation over the batch."""

    clip: float = 0.1
    """PPO's bound on the change of an action's probability, r_clip."""
    target_kl: float = math.inf
    """Gradient steps of an iteration stop once the policy has moved this far, as an approximate KL divergence."""
    clipping: Literal["joint", "separate"] = "joint"
    """Clip A_r - multiplier * A_c as one, or reward and cost apart."""
    divide_by_multiplier: bool = False
    """Divide the policy loss by 1 + multiplier."""
    value_loss_weight: float = 1.0
    """Weight of the reward critic's loss."""
    cost_mean_loss_weight: float = 1.0
    """Weight of the loss of the mean cost estimate."""

    reward_scale: float = 1.0
    """Rewards are divided by this inside the learner; best if discounted returns then are of the order of 1."""
    cost_scale: float = 1.0
    """Costs and the limit are divided by this inside the learner."""
    driver: str = "mean"
    """Statistic that drives the multiplier: quantile, outage or mean."""
    integral_gain: float = 0.1
    """Learning rate of the multiplier, eta; integral gain of its PID rule."""
    proportional_gain: float = 0.0
    """Proportional gain of the multiplier's PID rule."""
    derivative_gain: float = 0.0
    """Derivative gain of the multiplier's PID rule."""
    error_clip: float = math.inf
    """Bound on the driver's error, in scaled costs or, for the outage driver, as a share of episodes."""
    relative_gains: bool = False
    """Gains count times the multiplier, which then needs an initial value above 0."""
    integral_power: float = 1.0
    """With relative gains: the integral gain counts times this power of the multiplier; 1 moves it by factors."""
    target_margin: float = 0.0
    """Share of the driver's target by which the multiplier is steered below it."""
    gain_smoothing: float = 0.95
    """Decay of the running means behind the proportional and derivative gains."""
    derivative_delay: int = 10
    """Iterations over which the derivative gain compares."""
    initial_multiplier: float = 0.0
    """Multiplier before the first iteration."""
    driver_window: int = 100
    """Most recent episodes that the driver looks at, at most `window`."""
    window: int = 100
    """Most recent episodes that metrics are taken over."""

    hidden_sizes: tuple[int, ...] = (512, 512)
    """Sizes of the MLP's tanh layers."""
    lstm_size: int = 512
    """Size of the LSTM behind the MLP; 0 leaves it out."""
    skip: bool = False
    """Add the MLP's output to the LSTM's."""
    cost_input: Literal["lstm", "observation"] = "lstm"
    """Where the previous cost enters: beside previous action and reward, or as one more observation."""
    late_cost: bool = False
    """The previous cost is seen one step late."""
    normalise_observations: bool = False
    """Normalise observations by their running mean and variance, updated once per iteration."""
    observation_clip: float = 10.0
    """Bound on normalised observations."""
    tanh_mean: bool = False
    """Squash the policy's mean into [-1, 1]."""
    initial_log_std: float = 0.0
    """Log standard deviation of actions before the first iteration."""
    matmul_precision: Literal["float32", "tensorfloat32", "bfloat16"] = "tensorfloat32"
    """Type in which an accelerator multiplies matrices; a CPU computes in float32 unless bfloat16 is asked for."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            self._check_choice(name, get_args(hint) if get_origin(hint) is Literal else ())
        self._check_choice("driver", tuple(DRIVERS))
        counts = ("num_envs", "steps_per_env", "chunk_length", "epochs", "minibatches", "window", "driver_window")
        rates = ("learning_rate", "learning_rate_halving", "max_gradient_norm", "clip", "target_kl", "error_clip")
        units = ("reward_scale", "cost_scale", "observation_clip")
        gains = ("integral_gain", "proportional_gain", "derivative_gain", "initial_multiplier")
        weights = ("value_loss_weight", "cost_mean_loss_weight")
        decays = ("discount", "advantage_decay", "cost_advantage_decay", "target_decay", "gain_smoothing")
        self._require("be at least 1", lambda x: x >= 1, *counts)
        self._require("be greater than 0", lambda x: x > 0, *rates, *units)
        self._require("be at least 0", lambda x: x >= 0, *gains, *weights)
        self._require("lie between 0 and 1", lambda x: 0 <= x <= 1, *decays, "integral_power")
        self._require("be at least 0 and less than 1", lambda x: 0 <= x < 1, "target_margin")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise UserError(f"hidden_sizes is {self.hidden_sizes}, but must be at least one size, each from 1 on")
        if self.steps_per_env % self.chunk_length:
            raise UserError(
                f"steps_per_env is {self.steps_per_env}, but must be a multiple of chunk_length ({self.chunk_length})"
            )
        if self.pieces % self.minibatches:
            raise UserError(f"minibatches is {self.minibatches}, but must divide the {self.pieces} pieces of a batch")
        if self.skip and self.lstm_size and self.hidden_sizes[-1] != self.lstm_size:
            raise UserError(
                f"lstm_size is {self.lstm_size}, but with skip it must equal the last of hidden_sizes {self.hidden_sizes}"
            )
        if self.relative_gains and not self.initial_multiplier > 0:
            raise UserError(
                f"initial_multiplier is {self.initial_multiplier}, but with relative_gains it must be greater than 0"
            )
        if self.driver_window > self.window:
            raise UserError(f"driver_window is {self.driver_window}, but may be at most window ({self.window})")

    def _require(self, what: str, holds: Callable[[float], bool], *names: str) -> None:
        for name in names:
            if not holds(getattr(self, name)):
                raise UserError(f"{name} is {getattr(self, name)}, but must {what}")

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        if choices and getattr(self, name) not in choices:
            raise UserError(f"{name} is {getattr(self, name)!r}, but must be one of {', '.join(choices)}")

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.steps_per_env

    @property
    def pieces(self) -> int:
        """What minibatches are made of: chunks where the network has a memory, single steps without one."""
        return self.steps_per_iteration // (self.chunk_length if self.remembers else 1)

    @property
    def remembers(self) -> bool:
        """Whether the network needs more than the present step."""
        return self.lstm_size > 0 or self.late_cost
