"""Safety-Gymnasium's convention, a step of six values with the cost in third place, in both directions."""

import gymnasium

from qcrl.envs.host.costs import Info
from qcrl.errors import UserError
from qcrl.kinds import Tree


class SixTuple(gymnasium.Wrapper):
    """An environment with `info["cost"]`, such as qcrl's own, for programs written for Safety-Gymnasium."""

    def step(self, action: Tree) -> tuple[Tree, float, float, bool, bool, Info]:  # type: ignore[override]
        obs, reward, terminated, truncated, info = self.env.step(action)
        if "cost" not in info:
            raise UserError(f"{self.env} reports no info['cost'] with its step; wrap an environment that does")
        return obs, float(reward), float(info["cost"]), terminated, truncated, info


class FiveTuple(gymnasium.Wrapper):
    """A Safety-Gymnasium environment for programs written for Gymnasium, its vector environments among them."""

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, Info]:
        values: tuple[Tree, ...] = self.env.step(action)
        if len(values) != 6:
            raise UserError(f"{self.env} returned {len(values)} values, not 6; it needs no FiveTuple")
        obs, reward, cost, terminated, truncated, info = values
        return obs, reward, terminated, truncated, {**info, "cost": cost}
