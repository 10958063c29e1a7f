"""CartPole-v1 with a worn motor: at most one episode in ten may push to the right more than 200 times.

To balance for all 500 steps takes about 250 pushes to each side, so the constraint binds: about 400 steps are left.
"""

import qcrl


def pushed_right(obs, action, next_obs, info):
    return float(action == 1)


def main(steps=300_000, limit=200, **options):
    constraint = qcrl.Outage(limit, probability=0.1)
    return qcrl.train("outage_ppo", "CartPole-v1", constraint, steps, cost=pushed_right, **options)


if __name__ == "__main__":
    run = main()
    print(qcrl.evaluate(run, episodes=1000).pooled[0])
