"""mobile-env: three base stations serve five phones, and at most one episode in ten may use over 650 connections.

An episode has 100 steps, and every connection counts 1 in each, as it takes energy. pip install mobile-env
"""

import qcrl


def connections(obs, action, next_obs, info):
    return float(info["number connections"])


def main(steps=400_000, limit=650, **options):
    constraint = qcrl.Outage(limit, probability=0.1)
    env = "mobile_env:mobile-small-central-v0"
    return qcrl.train("outage_ppo", env, constraint, steps, cost=connections, **options)


if __name__ == "__main__":
    run = main()
    print(qcrl.evaluate(run, episodes=200).pooled[0])
