"""CartPole-v1 with a cost: at most one episode in ten may spend more than 30 steps right of the centre."""

import qcrl


def right_of_centre(obs, action, next_obs, info):
    return float(next_obs[0] > 0.5)


def main(steps=300_000, **options):
    constraint = qcrl.Outage(limit=30, probability=0.1)
    # CartPole pays 1 a step; the learner likes discounted returns of about 1.
    return qcrl.train("qcpo", "CartPole-v1", constraint, steps, cost=right_of_centre, reward_scale=50, **options)


if __name__ == "__main__":
    run = main()
    print(qcrl.evaluate(run, episodes=1000).pooled[0])
