"""A class of one's own: a courier chooses a speed, then delivers. What breaks on the way is exponentially distributed.

Pr(cost > 10) is exp(-10 / mean): 0.007 walking, 0.1 running, 0.37 riding. So under Outage(10, 0.1) running is best.
"""

import math

import gymnasium

import qcrl

WAYS = {"walk": (0.2, 2.0), "run": (0.6, 10 / math.log(10)), "ride": (1.0, 10.0)}
"""Reward and mean cost."""


class Courier(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(1 + len(WAYS))  # 0 before the choice, then which one it was
    action_space = gymnasium.spaces.Discrete(len(WAYS))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.way = None
        return 0, {}

    def step(self, action):
        if self.way is None:
            self.way = int(action)
            return 1 + self.way, 0.0, False, False, {"cost": 0.0}
        reward, mean = list(WAYS.values())[self.way]
        return 1 + self.way, reward, True, False, {"cost": self.np_random.exponential(mean)}


def main(steps=100_000, **options):
    constraint = qcrl.Outage(limit=10, probability=0.1)
    # Episodes are short, so many fit into a small batch, and into the window that the outage is taken from.
    batch = {"num_envs": 8, "steps_per_env": 200, "window": 400, "driver_window": 400}
    return qcrl.train("qcpo", Courier, constraint, steps, **batch, **options)


if __name__ == "__main__":
    run = main()
    print(qcrl.evaluate(run, env=Courier, episodes=1000).pooled[0])
