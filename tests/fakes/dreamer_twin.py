"""DreamerV3's eight loss terms in plain tensors (Hafner et al. 2023), beside TorchRL's."""

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, softmax

from hydrl.networks.world_model import WorldModel

RATE, LAMBDA = 0.01, 0.95


def symlog(values: Tensor) -> Tensor:
    return values.sign() * values.abs().log1p()


def two_hot(values: Tensor, bins: Tensor) -> Tensor:
    """Weights ``[..., bins]`` of the two neighbours of each value."""
    values = values.clamp(bins[0], bins[-1])
    above = torch.searchsorted(bins, values.contiguous(), right=True).clamp(1, len(bins) - 1)
    low, high = bins[above - 1], bins[above]
    share = (values - low) / (high - low)
    weights = torch.zeros(*values.shape, len(bins))
    weights.scatter_(-1, (above - 1).unsqueeze(-1), (1 - share).unsqueeze(-1))
    return weights.scatter_(-1, above.unsqueeze(-1), share.unsqueeze(-1))


def cross_entropy(logits: Tensor, values: Tensor, bins: Tensor) -> Tensor:
    return -(two_hot(values, bins) * log_softmax(logits, -1)).sum(-1)


def lambda_returns(rewards: Tensor, values: Tensor, live: Tensor, kept: Tensor) -> Tensor:
    """Returns of steps 0 to T - 2, from rewards, values, discounts and lambdas ``[batch, T]``."""
    following, returns = values[:, -1], []
    for step in range(rewards.shape[1] - 1, 0, -1):
        mixed = (1 - kept[:, step]) * values[:, step] + kept[:, step] * following
        following = rewards[:, step] + live[:, step] * mixed
        returns.append(following)
    return torch.stack(returns[::-1], 1)


def terms(
    model: WorldModel,
    value: torch.nn.Module,
    slow: torch.nn.Module,
    parameters: torch.nn.Module,
    records: TensorDictBase,
    actions: Tensor,
    *,
    horizon: float,
    entropy: float,
    discrete: bool,
) -> dict[str, Tensor]:
    """The terms for records ``[batch, time]`` of vectors.

    Imagined ``actions`` are ``[batch * time, steps, n]``.

    Categoricals have one class, so that nothing else is random.
    """
    bins, (batch, time), following = model.two_hot.bins, records.shape, records["next"]
    observations = symlog(following["observation"])
    embedding, is_init = model.vector_encoder(observations), records["is_init"]
    state, belief = records["state"][:, 0], records["belief"][:, 0]
    latents = []
    for step in range(time):
        first = is_init[:, step]
        state, belief = state.masked_fill(first, 0), belief.masked_fill(first, 0)
        action = records["action"][:, step].float().masked_fill(first, 0)
        prior_logits, _, belief = model.prior(state, belief, action)
        logits, state = model.posterior(belief, embedding[:, step])
        latents.append((state, belief, prior_logits, logits))
    state, belief, prior_logits, logits = (torch.stack(entries, 1) for entries in zip(*latents, strict=True))

    def mixed(values: Tensor) -> Tensor:
        return (1 - model.unimix) * softmax(values, -1) + model.unimix / values.shape[-1]

    def divergence(first: Tensor, second: Tensor) -> Tensor:
        return (first * (first.log() - second.log())).sum((-1, -2)).clamp_min(1.0).mean()

    posterior, prior = mixed(logits), mixed(prior_logits)
    losses = {"loss_model_dynamic": divergence(posterior.detach(), prior)}
    losses["loss_model_representation"] = 0.1 * divergence(posterior, prior.detach())
    losses["loss_model_reco"] = (model.vector_decoder(state, belief) - observations).square().sum(-1).mean()
    rewards, done, terminated = (
        following[key].squeeze(-1).float() for key in ("reward", "done", "terminated")
    )
    losses["loss_model_reward"] = cross_entropy(model.reward(state, belief), rewards, bins).mean()
    discount = 1 - 1 / horizon
    continue_logits = model.continuation(state, belief).squeeze(-1)
    losses["loss_model_continue"] = binary_cross_entropy_with_logits(
        continue_logits, discount * (1 - terminated)
    )

    with torch.no_grad():
        imagined_states, imagined_beliefs = [state.flatten(0, 1)], [belief.flatten(0, 1)]
        for action in actions.unbind(1):
            _, next_state, next_belief = model.prior(
                imagined_states[-1], imagined_beliefs[-1], action.float()
            )
            imagined_states.append(next_state)
            imagined_beliefs.append(next_belief)
        imagined = torch.stack(imagined_states, 1), torch.stack(imagined_beliefs, 1)
        live = model.continuation(*imagined).squeeze(-1).sigmoid()
        imagined_rewards = (softmax(model.reward(*imagined), -1) * bins).sum(-1)
        values = (softmax(value(*imagined), -1) * bins).sum(-1)
        returns = lambda_returns(imagined_rewards, values, live, torch.full_like(live, LAMBDA))
        weights = live.cumprod(1)[:, :-1]
        low, high = (
            RATE * returns.flatten().quantile(share) for share in (0.05, 0.95)
        )  # averages begin at 0
        advantages = (returns - values[:, :-1]) / (high - low).clamp_min(1.0)
        acted = tuple(entry[:, :-1] for entry in imagined)
        slow_values = (softmax(slow(*acted), -1) * bins).sum(-1)
    if discrete:
        log_probabilities = parameters(*acted).log_softmax(-1)
        chosen = (log_probabilities * actions).sum(-1)
        entropies = -(log_probabilities.exp() * log_probabilities).sum(-1)
    else:
        policy = torch.distributions.Normal(*parameters(*acted))
        chosen, entropies = policy.log_prob(actions).sum(-1), policy.entropy().sum(-1)
    losses["loss_actor"] = -(weights * (chosen * advantages + entropy * entropies)).mean()
    critic_logits = value(*acted)
    errors = cross_entropy(critic_logits, returns, bins) + cross_entropy(critic_logits, slow_values, bins)
    losses["loss_value"] = (weights * errors).mean()

    bootstrap = returns[:, 0].view(batch, time)
    with torch.no_grad():
        real = lambda_returns(rewards, bootstrap, discount * (1 - terminated), LAMBDA * (1 - done))
        slow_values = (softmax(slow(state[:, :-1], belief[:, :-1]), -1) * bins).sum(-1)
    logits = value(state[:, :-1], belief[:, :-1])
    errors = cross_entropy(logits, real, bins) + cross_entropy(logits, slow_values, bins)
    losses["loss_replay_value"] = 0.3 * ((1 - done[:, :-1]) * errors).mean()
    return losses
