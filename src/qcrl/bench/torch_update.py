"""QCPO's network and update in PyTorch, as a yardstick for speed: the same shapes, losses and number of gradient steps."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qcrl.envs.base import Environment


class Network(nn.Module):
    """MLP, LSTM with previous action, reward and cost, and all heads as one linear layer."""

    def __init__(self, algorithm: Any, env: Environment):
        super().__init__()
        first, second = algorithm.hidden_sizes
        self.quantiles, self.actions = algorithm.quantiles, env.action_size
        self.mlp = nn.Sequential(nn.Linear(env.observation_size, first), nn.Tanh(), nn.Linear(first, second), nn.Tanh())
        self.lstm = nn.LSTM(second + env.action_size + 2, algorithm.lstm_size)
        self.heads = nn.Linear(algorithm.lstm_size, env.action_size + 1 + algorithm.quantiles + 2)
        self.log_std = nn.Parameter(torch.zeros(env.action_size))

    def forward(self, obs: torch.Tensor, previous: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, _ = self.lstm(torch.cat([self.mlp(obs), previous], dim=-1))
        mean, value, quantiles, shape, scale = torch.split(
            self.heads(hidden), [self.actions, 1, self.quantiles, 1, 1], dim=-1
        )
        return mean, value[..., 0], quantiles.exp(), 4 * shape[..., 0].sigmoid(), scale[..., 0].exp()


def torch_update(algorithm: Any, env: Environment) -> Callable[[], None]:
    """A function that does all gradient steps of one iteration on a random batch."""
    torch.manual_seed(0)
    network = Network(algorithm, env)
    optimiser = torch.optim.Adam(network.parameters(), lr=algorithm.learning_rate)
    shape = algorithm.chunk_length, algorithm.steps_per_iteration // algorithm.chunk_length
    obs, previous = torch.randn(*shape, env.observation_size), torch.randn(*shape, env.action_size + 2)
    action, log_prob = torch.randn(*shape, env.action_size), torch.randn(shape)
    advantage, returns, costs = torch.randn(shape), torch.randn(shape), torch.rand(shape)
    samples = torch.rand(*shape, algorithm.quantiles)
    levels = (torch.arange(algorithm.quantiles) + 0.5) / algorithm.quantiles
    tail = algorithm.tail_quantiles
    log_rate = torch.log(-torch.log1p(-levels[-tail:]))

    def loss() -> torch.Tensor:
        mean, value, quantiles, weibull_shape, weibull_scale = network(obs, previous)
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
