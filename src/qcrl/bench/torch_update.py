"""QCPO's network and update in PyTorch, as a yardstick for speed: with the same shapes, losses and gradient steps."""

import math
from collections.abc import Callable

import torch
from torch import nn

from qcrl.algos.qcpo import QCPO
from qcrl.envs.base import Environment


class Network(nn.Module):
    """MLP, LSTM with previous action, reward and cost, and all heads as one linear layer.

    stepwise: empty the memory wherever an episode begins, as qcrl's network does, for which nn.LSTM is called step by
    step. Else it is called once, which is right only if episodes begin where chunks do, as those of 1,000 steps do.
    """

    def __init__(self, algorithm: QCPO, env: Environment, stepwise: bool):
        super().__init__()
        self.stepwise = stepwise
        first, second = algorithm.hidden_sizes
        self.quantiles, self.actions = algorithm.quantiles, env.action_size
        self.mlp = nn.Sequential(nn.Linear(env.observation_size, first), nn.Tanh(), nn.Linear(first, second), nn.Tanh())
        self.lstm = nn.LSTM(second + env.action_size + 2, algorithm.lstm_size)
        self.heads = nn.Linear(algorithm.lstm_size, env.action_size + 1 + algorithm.quantiles + 2)
        self.log_std = nn.Parameter(torch.zeros(env.action_size))

    def forward(self, obs: torch.Tensor, previous: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = torch.cat([self.mlp(obs), previous], dim=-1)
        hidden = self._hidden(inputs, first) if self.stepwise else self.lstm(inputs)[0]
        mean, value, quantiles, shape, scale = torch.split(
            self.heads(hidden), [self.actions, 1, self.quantiles, 1, 1], dim=-1
        )
        return mean, value[..., 0], quantiles.exp(), 4 * shape[..., 0].sigmoid(), scale[..., 0].exp()

    def _hidden(self, inputs: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        memory = 2 * (torch.zeros(1, inputs.shape[1], self.lstm.hidden_size),)
        outputs = []
        for x, kept in zip(inputs.split(1), 1 - first.float()):
            output, memory = self.lstm(x, tuple(kept[None, :, None] * each for each in memory))
            outputs.append(output)
        return torch.cat(outputs)


def torch_update(algorithm: QCPO, env: Environment, stepwise: bool) -> Callable[[], None]:
    """A function that does all gradient steps of one iteration on a random batch."""
    torch.manual_seed(0)
    network = Network(algorithm, env, stepwise)
    optimiser = torch.optim.Adam(network.parameters(), lr=algorithm.learning_rate)
    shape = algorithm.chunk_length, algorithm.steps_per_iteration // algorithm.chunk_length
    obs, previous = torch.randn(*shape, env.observation_size), torch.randn(*shape, env.action_size + 2)
    first = (torch.arange(shape[0]) == 0)[:, None].expand(shape)
    action, log_prob = torch.randn(*shape, env.action_size), torch.randn(shape)
    advantage, returns, costs = torch.randn(shape), torch.randn(shape), torch.rand(shape)
    samples = torch.rand(*shape, algorithm.quantiles)
    levels = (torch.arange(algorithm.quantiles) + 0.5) / algorithm.quantiles
    tail = algorithm.tail_quantiles
    log_rate = torch.log(-torch.log1p(-levels[-tail:]))

    def loss() -> torch.Tensor:
        mean, value, quantiles, weibull_shape, weibull_scale = network(obs, previous, first)
        standard = (action - mean) * torch.exp(-network.log_std)
        new = -0.5 * (standard**2 + 2 * network.log_std + math.log(2 * math.pi)).sum(-1)
        ratio = torch.exp(new - log_prob)
        clipped = ratio.clamp(1 - algorithm.clip, 1 + algorithm.clip)
        policy = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        error = samples[..., None, :] - quantiles[..., :, None]
        huber = nn.functional.huber_loss(error, torch.zeros_like(error), delta=algorithm.kappa, reduction="none")
        quantile = ((levels[:, None] - (error < 0).float()).abs() * huber).mean() / algorithm.kappa
        highest = quantiles.detach().sort(-1).values[..., -tail:]
        fitted = weibull_scale[..., None].log() + log_rate / weibull_shape[..., None]
        weibull = 0.5 * (fitted - highest.log()).square().mean()
        values = 0.5 * (value - returns).square().mean() + 0.5 * (quantiles.mean(-1) - costs).square().mean()
        return policy + values + quantile + weibull

    def update() -> None:
        for _ in range(algorithm.epochs):
            optimiser.zero_grad()
            loss().backward()
            optimiser.step()

    return update
