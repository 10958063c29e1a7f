"""The hyper-parameters of algorithms on the PPO core, in groups. The defaults are what the paper's text says."""

import math
from dataclasses import dataclass
from typing import Literal

from qcrl.algos.algorithm import Algorithm
from qcrl.errors import UserError


@dataclass(frozen=True)
class BatchSettings(Algorithm):
    """Batches and gradient steps."""

    chunk_length: int = 100
    """Length of the sub-trajectories that a network with a memory is trained on."""
    epochs: int = 8
    """Passes over the batch per iteration."""
    minibatches: int = 1
    """Gradient steps per pass."""
    learning_rate_halving: float = math.inf
    """Iterations over which the learning rate halves."""
    learning_rate_end: float = math.inf
    """Iteration by which the learning rate has fallen, along a straight line, to a hundredth."""
    learning_rate_flat: float = 0.0
    """Share of these iterations before which it does not fall."""
    max_gradient_norm: float = math.inf
    """Longer gradients are scaled down to this norm."""
    warmup_iterations: int = 0
    """First iterations without gradient steps; they feed the observation statistics and move the multiplier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("be at least 1", lambda x: x >= 1, "chunk_length", "epochs", "minibatches")
        self.require("be at least 0", lambda x: x >= 0, "warmup_iterations")
        self.require(
            "be greater than 0", lambda x: x > 0, "learning_rate_halving", "learning_rate_end", "max_gradient_norm"
        )
        self.require("be at least 0 and less than 1", lambda x: 0 <= x < 1, "learning_rate_flat")
        if self.steps_per_env % self.chunk_length:
            raise UserError(
                f"steps_per_env is {self.steps_per_env}, but must be a multiple of chunk_length ({self.chunk_length})"
            )

    @property
    def block_unit(self) -> int:
        return self.chunk_length


@dataclass(frozen=True)
class AdvantageSettings(Algorithm):
    """Advantages and the critics' targets."""

    discount: float = 0.99
    """Discount factor of rewards and costs."""
    budget_discount: float = 0.0
    """Discount of rewards where episodes spend half of their limit or more, if it is above `discount`."""
    gae_lambda: float = 0.0
    """GAE's lambda for reward advantages; 0 is the one-step TD error."""
    cost_gae_lambda: float = 0.0
    """GAE's lambda for cost advantages; 0 is the one-step TD error."""
    target_lambda: float = 1.0
    """TD(lambda) of the value's targets; 1 is the sampled return."""
    cost_target_lambda: float = 1.0
    """TD(lambda) of the cost critics' targets; 1 is the sampled sum."""
    cut_at_chunks: bool = False
    """End the sums of advantages and targets at each chunk's end, with the next stored value."""
    time_limit: Literal["terminal", "bootstrap"] = "terminal"
    """Whether nothing follows an episode cut off by its time limit, or the critics' estimate does."""
    reward_scale: float | Literal["auto"] = 1.0
    """Rewards are divided by this inside the learner; auto is the spread of discounted returns so far."""
    cost_scale: float | Literal["auto"] = 1.0
    """Costs and the limit are divided by this inside the learner; auto is the spread of discounted costs so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = ("discount", "budget_discount", "gae_lambda", "cost_gae_lambda", "target_lambda", "cost_target_lambda")
        self.require("lie between 0 and 1", lambda x: 0 <= x <= 1, *shares)
        self.require("be greater than 0, or auto", lambda x: x == "auto" or x > 0, "reward_scale", "cost_scale")


@dataclass(frozen=True)
class LossSettings(Algorithm):
    """Losses of policy and critics."""

    clip: float = 0.1
    """PPO's bound on the change of an action's probability, r_clip."""
    target_kl: float = math.inf
    """Gradient steps are left out where the policy has moved farther than this, as an approximate KL divergence."""
    clipping: Literal["joint", "separate"] = "joint"
    """Clip A_r - multiplier * A_c as one, or reward and cost apart."""
    divide_by_multiplier: bool = False
    """Divide the policy loss by 1 + multiplier."""
    value_loss_weight: float = 1.0
    """Weight of the reward critic's loss."""
    normalise_advantages: bool = False
    """Bring A_r - multiplier * A_c to mean 0 and variance 1 in every minibatch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("be greater than 0", lambda x: x > 0, "clip", "target_kl")
        self.require("be at least 0", lambda x: x >= 0, "value_loss_weight")
        if self.normalise_advantages and self.clipping == "separate":
            raise UserError("normalise_advantages is true, but clipping is separate; use joint, or leave one out")


@dataclass(frozen=True)
class MultiplierSettings(Algorithm):
    """The multiplier."""

    integral_gain: float = 0.1
    """Learning rate of the multiplier, eta; integral gain of its PI rule."""
    error_clip: float = math.inf
    """Bound on the statistic's error, in scaled costs or, where it is the outage, as a share of episodes."""
    proportional_gain: float = 0.0
    """Proportional gain of the multiplier's PI rule."""
    gain_smoothing: float = 0.95
    """Decay of the running mean behind the proportional gain."""
    relative_gains: bool = False
    """Gains count times the multiplier, which then needs an initial value above 0, and stays below 10,000."""
    least_multiplier: float = 0.1
    """With relative gains: the lowest value of the multiplier's integral."""
    integral_power: float = 1.0
    """With relative gains: the integral gain counts times this power of the multiplier; 1 moves it by factors."""
    target_margin: float = 0.0
    """Share of the statistic's target by which the multiplier is steered below it."""
    initial_multiplier: float = 0.0
    """Multiplier before the first iteration."""
    gain_steps: int = 0
    """Environment steps that the gains and their smoothing count for, whatever the batch; 0 is one iteration."""
    driver_window: int = 100
    """Most recent episodes that the multiplier is steered by, at most `window`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("be at least 0", lambda x: x >= 0, "integral_gain", "proportional_gain", "initial_multiplier")
        self.require("lie between 0 and 1", lambda x: 0 <= x <= 1, "gain_smoothing", "integral_power")
        self.require("be greater than 0", lambda x: x > 0, "error_clip", "least_multiplier")
        self.require("be at least 0 and less than 1", lambda x: 0 <= x < 1, "target_margin")
        self.require("be at least 1", lambda x: x >= 1, "driver_window")
        self.require("be at least 0", lambda x: x >= 0, "gain_steps")
        if self.relative_gains and not self.initial_multiplier > 0:
            raise UserError(
                f"initial_multiplier is {self.initial_multiplier}, but with relative_gains it must be greater than 0"
            )
        if self.relative_gains and self.initial_multiplier < self.least_multiplier:
            raise UserError(
                f"initial_multiplier is {self.initial_multiplier}, but with relative_gains it must be at least "
                f"least_multiplier ({self.least_multiplier})"
            )
        if self.integral_power != 1 and not self.relative_gains:
            raise UserError(f"integral_power is {self.integral_power}, but without relative_gains it means nothing")
        if self.driver_window > self.window:
            raise UserError(f"driver_window is {self.driver_window}, but may be at most window ({self.window})")


@dataclass(frozen=True)
class NetworkSettings(Algorithm):
    """The network and what it sees."""

    hidden_sizes: tuple[int, ...] = (512, 512)
    """Sizes of the MLP's tanh layers."""
    lstm_size: int = 512
    """Size of the LSTM behind the MLP; 0 leaves it out."""
    skip: bool = False
    """Add the MLP's output to the LSTM's, where there is one."""
    cost_input: Literal["none", "lstm", "observation"] = "lstm"
    """Where the previous cost enters: nowhere, beside the LSTM's previous action and reward, or as an observation."""
    late_cost: bool = False
    """The previous cost is seen one step late."""
    budget_input: bool = False
    """Show the network what is left of the limit, and of the time where its limit is known."""
    budget_parts: tuple[float, ...] = (1.0,)
    """What is left is seen once for each, as a share of that part of the limit: small ones show its end in detail."""
    normalise_budget: bool = True
    """Normalise what is left like observations; else it is seen on a fixed scale, and a limit that is passed apart."""
    normalise_observations: bool = False
    """Normalise observations by their running mean and variance, updated once per iteration."""
    observation_clip: float = 10.0
    """Bound on normalised observations."""
    tanh_mean: bool = False
    """Squash the policy's mean into [-1, 1]."""
    initial_log_std: float = 0.0
    """Log standard deviation of actions before the first iteration."""
    initial_gain: float = 1.0
    """Where actions are numbers the MLPs' kernels are multiplied by this before the first iteration."""
    initial_head: float = 1.0
    """The last layer of the policy and of the cost critics is multiplied by this before the first iteration."""
    separate_critics: bool = False
    """The critics have an MLP of their own beside the policy's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("be at least 0", lambda x: x >= 0, "lstm_size")
        self.require("be greater than 0", lambda x: x > 0, "observation_clip", "initial_gain")
        self.require("be at least one number, each greater than 0", lambda x: x and min(x) > 0, "budget_parts")
        if self.separate_critics and self.lstm_size:
            raise UserError("separate_critics is true, but there is an LSTM, which they share; set lstm_size to 0")
        if self.skip and self.lstm_size and self.hidden_sizes[-1] != self.lstm_size:
            raise UserError(
                f"lstm_size is {self.lstm_size}, but with skip it must equal the last of hidden_sizes "
                f"{self.hidden_sizes}"
            )
        if self.cost_input == "lstm" and not self.lstm_size:
            raise UserError("cost_input is lstm, but lstm_size is 0: there is no LSTM; use observation, or none")
        if self.cost_input == "none" and self.late_cost:
            raise UserError("late_cost is true, but cost_input is none: no cost is seen; leave one of them out")

    @property
    def remembers(self) -> bool:
        """Whether the network needs more than the present step."""
        return self.lstm_size > 0 or self.late_cost


@dataclass(frozen=True)
class PPOSettings(BatchSettings, AdvantageSettings, LossSettings, MultiplierSettings, NetworkSettings):
    """All of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pieces % self.minibatches:
            raise UserError(f"minibatches is {self.minibatches}, but must divide the {self.pieces} pieces of a batch")

    @property
    def pieces(self) -> int:
        """What minibatches are made of: chunks where the network has a memory, single steps without one."""
        return self.steps_per_iteration // (self.chunk_length if self.remembers else 1)
