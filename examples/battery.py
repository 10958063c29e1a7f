"""A battery behind a connection of 4 kW: at most one day in ten may draw more than 2.5 kWh above that.

Power is cheap for three hours of the night and dear in the evening. To fill the battery as quickly as possible would
overload the connection. A day earns what it costs less than without the battery; what is stored has the usual price.
"""

import math

import gymnasium
import numpy as np

import qcrl

CONNECTION, POWER, CAPACITY, EFFICIENCY, PRICE, QUARTERS = 4.0, 5.0, 12.0, 0.9, 0.25, 96


class Battery(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,))  # time as two numbers, charge, demand, price
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))  # share of the power: below 0 it empties the battery

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.charge, self.weather = 0, 0.0, self.np_random.normal()
        return self.observe(), {}

    def observe(self):
        hour = self.time / 4
        peak = math.exp(-((hour - 19) ** 2) / 8)
        self.weather = 0.9 * self.weather + 0.3 * self.np_random.normal()
        self.demand = max(0.2, 0.7 + 3.0 * peak + 0.6 * self.weather)  # kW
        self.price = PRICE + 0.3 * peak - 0.15 * (2 <= hour < 5)  # for a kWh
        angle = math.tau * hour / 24
        return np.array([math.sin(angle), math.cos(angle), self.charge, self.demand, self.price], np.float32)

    def step(self, action):
        moved = np.clip(POWER * float(action[0]) / 4, -min(self.charge, self.demand / 4), CAPACITY - self.charge)
        self.charge += moved
        drawn = moved / EFFICIENCY if moved > 0 else moved
        above = max(0.0, self.demand + 4 * drawn - CONNECTION) / 4
        reward, self.time = PRICE * moved - self.price * drawn, self.time + 1
        return self.observe(), reward, False, self.time == QUARTERS, {"cost": above}


def main(steps=200_000, limit=2.5, **options):
    return qcrl.train("outage_ppo", Battery, qcrl.Outage(limit, probability=0.1), steps, **options)


if __name__ == "__main__":
    run = main()
    print(qcrl.evaluate(run, env=Battery, episodes=1000).pooled[0])
