"""The hyper-parameters that SAC and WCSAC share. The defaults are those of the paper's comparison; presets.py has the others."""

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from qcrl.errors import UserError


@dataclass(frozen=True)
class SoftSettings:
    """Every field can be overridden by name, with dataclasses.replace or on the command line."""

    num_envs: int = 16
    """Environments stepped side by side."""
    steps_per_env: int = 500
    """Steps taken in each environment per iteration, which is one row of the metrics."""
    block_length: int = 4
    """Steps taken in each environment between two rounds of gradient steps."""
    steps_per_update: int = 4
    """Environment steps, of all environments together, per gradient step."""
    batch_size: int = 256
    """Records drawn for a gradient step."""
    replay_size: int = 1_000_000
    """Records kept; the oldest make room for new ones."""
    start_steps: int = 500
    """First environment steps, with random actions and no learning."""
    learning_rate: float = 1e-3
    """Adam's learning rate for policy, critics and temperature."""
    discount: float = 0.99
    """Discount factor of rewards and costs."""
    polyak: float = 0.995
    """Share of the target critics that stays at a gradient step."""
    entropy_per_action: float = -1.0
    """Entropy that the temperature is steered to, per dimension of the action."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Sizes of the ReLU layers of every network."""
    window: int = 100
    """Most recent episodes that metrics are taken over."""
    matmul_precision: Literal["float32", "tensorfloat32", "bfloat16"] = "tensorfloat32"
    """Type in which an accelerator multiplies matrices; a CPU computes in float32 unless bfloat16 is asked for."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, choices = getattr(self, name), [x for x in get_args(hint) if isinstance(x, str)]
            if choices and value not in choices:
                raise UserError(f"{name} is {value!r}, but must be one of {', '.join(choices)}")
            if hint is int and value < (0 if name == "start_steps" else 1):
                raise UserError(f"{name} is {value}, but must be at least {0 if name == 'start_steps' else 1}")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise UserError(f"hidden_sizes is {self.hidden_sizes}, but must be at least one size, each from 1 on")
        for name in ("discount", "polyak"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name)}, but must lie between 0 and 1")
        if not self.learning_rate > 0:
            raise UserError(f"learning_rate is {self.learning_rate}, but must be greater than 0")
        if self.steps_per_env % self.block_length:
            raise UserError(
                f"steps_per_env is {self.steps_per_env}, but must be a multiple of block_length ({self.block_length})"
            )
        if self.block % self.steps_per_update or self.block > self.replay_size:
            raise UserError(
                f"num_envs x block_length is {self.block}, but must be a multiple of steps_per_update "
                f"({self.steps_per_update}) and at most replay_size ({self.replay_size})"
            )

    @property
    def block(self) -> int:
        """Steps of all environments between two rounds of gradient steps."""
        return self.num_envs * self.block_length

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.steps_per_env
