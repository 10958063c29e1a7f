"""highway-env: a car in traffic, at most one ride in ten may end in a crash. pip install highway-env"""

import gymnasium
import highway_env

import qcrl

gymnasium.register_envs(highway_env)


def crashed(obs, action, next_obs, info):
    return float(info["crashed"])


def main(steps=30_000, limit=0, **options):
    constraint = qcrl.Outage(limit, probability=0.1)
    return qcrl.train("outage_ppo", "highway_env:highway-fast-v0", constraint, steps, cost=crashed, **options)


if __name__ == "__main__":
    run = main()
    print(qcrl.evaluate(run, episodes=200).pooled[0])
