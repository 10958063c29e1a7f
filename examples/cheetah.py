"""HalfCheetah-v5 with a speed limit: at most one episode in ten may exceed 2 m/s in more than 200 of 1,000 steps."""

import qcrl


def too_fast(obs, action, next_obs, info):
    return float(info["x_velocity"] > 2.0)


def main(steps=1_000_000, limit=200, **options):
    constraint = qcrl.Outage(limit, probability=0.1)
    return qcrl.train("outage_ppo", "HalfCheetah-v5", constraint, steps, cost=too_fast, **options)


if __name__ == "__main__":
    run = main()
    print(qcrl.evaluate(run, episodes=1000).pooled[0])
