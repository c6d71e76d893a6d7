"""DreamerV3's loss, of TorchRL's parts with the paper's options (Hafner et al. 2023)."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.data import Composite, Unbounded
from torchrl.envs.model_based import DreamerEnv
from torchrl.modules import WorldModelWrapper
from torchrl.objectives import (
    DreamerV3ActorLoss,
    DreamerV3Loss,
    DreamerV3ModelLoss,
    DreamerV3ValueLoss,
    SoftUpdate,
    ValueEstimators,
)
from torchrl.objectives.utils import TargetNetUpdater

from hydrl.limits import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from hydrl.networks.world_model import DreamerActor, WorldModel

TERMS = ("dynamic", "representation", "reco", "reward", "continue")  # of the world model


class ImaginationEnv(DreamerEnv):
    """Environment of imagined latent states, whose rollout is a loop over plain tensors.

    TorchRL's rollout keeps a graph that REINFORCE does not read, and checks specs at every step. The entries
    are the same, to the bit.

    Args:
        model: gives transitions and rewards.
    """

    def __init__(self, model: WorldModel) -> None:
        transition = TensorDictModule(model.prior, ["state", "belief", "action"], ["_", "state", "belief"])
        reward = TensorDictSequential(
            TensorDictModule(model.reward, ["state", "belief"], ["reward_logits"]),
            TensorDictModule(model.two_hot, ["reward_logits"], ["reward"]),
        )
        sizes = {"state": model.state_size, "belief": model.belief_size}
        device = next(model.parameters()).device
        super().__init__(
            WorldModelWrapper(transition, reward),
            prior_shape=(model.state_size,),
            belief_shape=(model.belief_size,),
            device=device,
        )
        self.observation_spec = Composite(
            {key: Unbounded(size, device=device) for key, size in sizes.items()}
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Unbounded((model.action_size,), device=device)
        self.reward_spec = Unbounded((1,), device=device)

    def reset(self, tensordict: TensorDictBase, **options: Any) -> TensorDictBase:
        """The latent states that imagination begins with."""
        return tensordict

    @torch.no_grad()
    def rollout(
        self, max_steps: int, policy: Callable, *, tensordict: TensorDictBase, **options: Any
    ) -> TensorDictBase:
        """Imagined steps of ``policy``, ``[*batch, max_steps]``, from latent states ``[*batch]``."""
        prior = self.world_model.get_transition_model_operator().module
        reward = self.world_model.get_reward_operator()
        state, belief = tensordict["state"], tensordict["belief"]
        states, beliefs, actions = [state], [belief], []
        for _ in range(max_steps):
            latent = TensorDict({"state": state, "belief": belief}, tensordict.batch_size)
            action = policy(latent)["action"]
            _, state, belief = prior(state, belief, action)
            states.append(state)
            beliefs.append(belief)
            actions.append(action)
        shape = (*tensordict.shape, max_steps)
        latents = {"state": torch.stack(states, -2), "belief": torch.stack(beliefs, -2)}
        following = TensorDict({key: entry[..., 1:, :] for key, entry in latents.items()}, shape)
        reward(following)
        steps = TensorDict({key: entry[..., :-1, :] for key, entry in latents.items()}, shape)
        steps.set("action", torch.stack(actions, tensordict.ndim))
        return steps.set("next", following.exclude("reward_logits"))


class DreamerLoss(DreamerV3Loss):
    """TorchRL's DreamerV3 loss: world model, imagined policy gradient, critic on imagined and real steps.

    TorchRL's defaults are another algorithm: this class sets the paper's, and lists the terms.

    Args:
        world_model: see :class:`hydrl.networks.world_model.WorldModel`.
        actor_model: the policy over its latent states.
        value_model: two-hot critic of latent states.
        horizon: steps; the discount is ``1 - 1 / horizon``, which the continuation head learns.
        imagination: imagined steps.
        lmbda: of the lambda returns.
        entropy_coeff: of the policy's entropy.
        free_nats: below which a KL term of a whole latent state has no gradient.
        representation_coeff: weight of the KL term that moves the posterior.
        replay_value_coeff: weight of the critic's loss on real steps.
        return_rate: of the moving 5th and 95th percentiles of imagined returns, whose difference divides
            advantages.
        return_min_scale: the least divisor.
        slow_critic_coeff: weight of the distance to the slow critic.
    """

    out_keys: ClassVar = [
        *(f"loss_model_{term}" for term in TERMS),
        "loss_actor",
        "loss_value",
        "loss_replay_value",
        "actor_entropy",
        "return_scale",
        "continuation_mean",
    ]

    def __init__(
        self,
        world_model: WorldModel,
        actor_model: DreamerActor,
        value_model: TensorDictModuleBase,
        *,
        horizon: PositiveFloat = 333.0,
        imagination: PositiveInt = 15,
        lmbda: Fraction = 0.95,
        entropy_coeff: NonNegativeFloat = 3e-4,
        free_nats: NonNegativeFloat = 1.0,
        representation_coeff: NonNegativeFloat = 0.1,
        replay_value_coeff: NonNegativeFloat = 0.3,
        return_rate: Fraction = 0.01,
        return_min_scale: PositiveFloat = 1.0,
        slow_critic_coeff: PositiveFloat = 1.0,
    ) -> None:
        model_loss = make_model_loss(
            world_model,
            lambda_representation=representation_coeff,
            continue_target_scale=1 - 1 / horizon,
            free_bits=free_nats,
        )
        actor_loss = make_actor_loss(
            world_model,
            actor_model,
            value_model,
            lmbda,
            imagination_horizon=imagination,
            entropy_bonus=entropy_coeff,
            return_normalization_rate=return_rate,
            return_normalization_min_scale=return_min_scale,
        )
        value_loss = DreamerV3ValueLoss(
            value_model,
            value_loss="two_hot",
            num_value_bins=world_model.bins,
            actor_loss=actor_loss,
            slow_critic_regularization=slow_critic_coeff,
        )
        super().__init__(
            model_loss,
            actor_loss,
            value_loss,
            replay_value_loss_weight=replay_value_coeff,
            continuation_horizon=horizon,
            lmbda=lmbda,
        )

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Loss terms of records ``[batch, time]``, scalars, without TorchRL's latent states."""
        return super().forward(minibatch).select(*self.out_keys)


def make_model_loss(world_model: WorldModel, **options: float) -> DreamerV3ModelLoss:
    """The world model's loss; ``options`` are TorchRL's."""
    loss = DreamerV3ModelLoss(
        world_model,
        kl_mode="separate",
        lambda_continue=1.0,
        unimix=world_model.unimix,
        reco_symlog=False,  # targets are symlog values or images
        num_reward_bins=world_model.bins,
        detach_output=False,
        **options,
    )
    loss.set_keys(pixels=world_model.target_keys, reco_pixels=world_model.reconstruction_keys)
    return loss


def make_actor_loss(
    world_model: WorldModel,
    actor_model: DreamerActor,
    value_model: TensorDictModuleBase,
    lmbda: float,
    **options: Any,
) -> DreamerV3ActorLoss:
    """The policy's loss over imagined steps; ``options`` are TorchRL's."""
    continuation = TensorDictSequential(
        TensorDictModule(world_model.continuation, ["state", "belief"], ["continue_logits"]),
        TensorDictModule(nn.Sigmoid(), ["continue_logits"], ["continuation"]),
    )
    loss = DreamerV3ActorLoss(
        actor_model.policy,
        value_model,
        ImaginationEnv(world_model),
        continuation_model=continuation,
        use_reinforce=True,
        **options,
    )
    # The continuation head has the discount already.
    loss.make_value_estimator(ValueEstimators.TDLambda, gamma=1.0, lmbda=lmbda)
    return loss


def slow_critic(loss: DreamerLoss, *, tau: Fraction) -> TargetNetUpdater:
    """Moves the slow critic by ``tau`` towards the critic at every update.

    TorchRL's ``SoftUpdate`` finds no target in the whole loss.
    """
    return SoftUpdate(loss.value_loss, tau=tau)
