"""mobile-env: three base stations serve five phones, at most one episode in ten may leave too many of them without.

An episode has 100 steps, and every phone without a connection counts 1 in each; up to 120 are allowed.
pip install mobile-env
"""

import qcrl

PHONES = 5


def unserved(obs, action, next_obs, info):
    return float(PHONES - info["number connected"])


def main(steps=200_000, limit=120, **options):
    constraint = qcrl.Outage(limit, probability=0.1)
    env = "mobile_env:mobile-small-central-v0"
    return qcrl.train("outage_ppo", env, constraint, steps, cost=unserved, **options)


if __name__ == "__main__":
    run = main()
    print(qcrl.evaluate(run, episodes=200).pooled[0])
