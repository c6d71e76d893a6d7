"""World model of DreamerV3 (Hafner et al. 2023), and the policy and critic over its latent states.

The networks are TorchRL's; this file sizes them from the environment's specs. A latent state is ``state``, a
one-hot sample of categorical distributions, and ``belief``, the recurrent network's output.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, cast

import torch
from pydantic import Field
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import Tensor, nn
from torchrl.data import Categorical, OneHot, TensorSpec, Unbounded
from torchrl.envs import EnvBase, ExplorationType, TensorDictPrimer
from torchrl.envs.utils import exploration_type, set_exploration_type
from torchrl.modules import (
    DreamerV3DiscreteActor,
    DreamerV3ImageDecoder,
    DreamerV3ImageEncoder,
    DreamerV3MLP,
    IndependentNormal,
    RSSMPosteriorV3,
    RSSMPriorV3,
    RSSMRolloutV3,
    SymExpTwoHot,
)
from torchrl.objectives import symexp, symlog

from hydrl.errors import UserError
from hydrl.limits import PositiveInt
from hydrl.networks.encoders import image_scaling
from hydrl.specs import action_spec, is_image, mask_keys, observation_keys, require_entries

LATENT_KEYS = ("state", "belief", "previous_action")  # carried from step to step while acting
VECTORS = "vectors"  # entry of all vectors together
STAGES = (2, 3, 4, 4)  # channels of each halving of an image, as multiples of `channels`
UniformShare = Annotated[float, Field(ge=0, lt=1)]


class WorldModel(TensorDictModuleBase):
    """Recurrent state-space model with an encoder, decoders, and heads of reward and continuation.

    Its forward pass reads records ``[batch, time]``, see :mod:`hydrl.experience.records`, and writes under
    ``next`` what TorchRL's ``DreamerV3ModelLoss`` reads: latent states, their logits, reconstructions,
    ``reward_logits`` and ``continue_pred``. The names of targets and of their reconstructions are in
    ``target_keys`` and ``reconstruction_keys``.

    Args:
        vectors: names of vector entries with their sizes.
        images: readers by the names of image entries.
        spec: of the action of one environment.
        classes: classes of each categorical distribution.
        deterministic, hidden, categoricals, units, blocks, layers, bins, unimix: see :func:`world_model`.
    """

    def __init__(
        self,
        vectors: Mapping[NestedKey, int],
        images: Mapping[str, "ImageReader"],
        spec: TensorSpec,
        *,
        deterministic: int,
        hidden: int,
        categoricals: int,
        classes: int,
        units: int,
        blocks: int,
        layers: int,
        bins: int,
        unimix: float,
    ) -> None:
        super().__init__()
        self.vectors, self.spec, self.units, self.bins, self.unimix = {**vectors}, spec, units, bins, unimix
        self.action_size = int(spec.space.n) if isinstance(spec, Categorical | OneHot) else spec.shape[-1]
        self.state_size, self.belief_size = categoricals * classes, deterministic
        vector_size, latent_size = sum(vectors.values()), self.state_size + self.belief_size
        self.vector_encoder = DreamerV3MLP(vector_size, None, layers, units) if vectors else None
        self.vector_decoder = DreamerV3MLP(latent_size, vector_size, layers, units) if vectors else None
        self.images = nn.ModuleDict(images)
        for reader in images.values():
            reader.make_decoder(latent_size, blocks)
        embedding_size = (units if vectors else 0) + sum(reader.size for reader in images.values())
        sizes = {"rnn_hidden_dim": deterministic, "hidden_dim": hidden}
        sizes |= {"num_categoricals": categoricals, "num_classes": classes}
        self.rollout = make_rollout(self.action_size, embedding_size, blocks, unimix, **sizes)
        self.reward = DreamerV3MLP(latent_size, bins, depth=1, num_cells=units, outscale=0.0)
        self.continuation = DreamerV3MLP(latent_size, 1, depth=1, num_cells=units)
        self.two_hot = SymExpTwoHot(bins)
        self.target_keys = [f"target_{name}" for name in self.entry_names]
        self.reconstruction_keys = [f"reconstruction_{name}" for name in self.entry_names]
        self.observation_keys: list[NestedKey] = [*vectors, *images]
        self.in_keys: list[NestedKey] = ["state", "belief", "action", "is_init"]
        self.in_keys += [
            ("next", *((key,) if isinstance(key, str) else key)) for key in self.observation_keys
        ]
        written = ["prior_logits", "posterior_logits", "state", "belief", "reward_logits", "continue_pred"]
        self.out_keys = [("next", key) for key in (*written, *self.target_keys, *self.reconstruction_keys)]

    @property
    def entry_names(self) -> list[str]:
        """The names of all vectors together and of each image."""
        return [*([VECTORS] if self.vectors else []), *self.images]

    @property
    def readers(self) -> Mapping[str, "ImageReader"]:
        """The reader of each image, by name."""
        return cast(Mapping[str, ImageReader], self.images)

    @property
    def prior(self) -> RSSMPriorV3:
        """The network of latent states before their observation."""
        return self.rollout.rssm_prior.module

    @property
    def posterior(self) -> RSSMPosteriorV3:
        """The network of latent states after their observation."""
        return self.rollout.rssm_posterior.module

    def read_targets(self, observations: TensorDictBase) -> dict[str, Tensor]:
        """What is reconstructed, by entry name: symlog of all vectors, and images from 0 to 1."""
        targets = {}
        if self.vectors:
            targets[VECTORS] = symlog(torch.cat([observations[key] for key in self.vectors], -1))
        return targets | {name: reader.scale(observations[name]) for name, reader in self.readers.items()}

    def encode(self, targets: Mapping[str, Tensor]) -> Tensor:
        """The embedding, ``[..., size]``, of :meth:`read_targets`."""
        parts = [self.vector_encoder(targets[VECTORS])] if self.vector_encoder is not None else []
        parts += [reader.encoder(targets[name]) for name, reader in self.readers.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def encode_action(self, action: Tensor) -> Tensor:
        """Actions as the model reads them, ``[..., action_size]``: one-hot if they are discrete."""
        if isinstance(self.spec, Categorical):
            return nn.functional.one_hot(action, self.action_size).float()
        return action.float()

    def decode(self, state: Tensor, belief: Tensor) -> dict[str, Tensor]:
        """Reconstructions of :meth:`read_targets` from latent states."""
        parts = {VECTORS: self.vector_decoder(state, belief)} if self.vector_decoder is not None else {}
        return parts | {name: reader.decoder(state, belief) for name, reader in self.readers.items()}

    def update_latent(
        self, state: Tensor, belief: Tensor, action: Tensor, embedding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The latent state, ``[..., size]`` each, after an action and the observation that followed it.

        In deterministic evaluation each categorical takes its most probable class. TorchRL's
        ``RSSMStateEstimatorV3`` samples there, too, so that a policy's actions would differ from call to
        call. As there the prior's distribution, which acting does not read, is not computed.
        """
        belief = self.prior._update_belief(state, belief, action)
        if exploration_type() in (ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN):
            logits = self.posterior._logits(belief, embedding)
            state = most_probable(logits)
        else:
            _, state = self.posterior(belief, embedding)
        return state.float(), belief.float()

    def split_entries(self, values: Mapping[str, Tensor]) -> dict[NestedKey, Tensor]:
        """Targets or their reconstructions by the environment's entries; vectors in its units."""
        entries: dict[NestedKey, Tensor] = {name: values[name] for name in self.images}
        if self.vectors:
            sizes = [*self.vectors.values()]
            entries |= zip(self.vectors, symexp(values[VECTORS]).split(sizes, -1), strict=True)
        return entries

    def forward(self, records: TensorDictBase) -> TensorDictBase:
        """Writes latent states and predictions for records ``[batch, time]``."""
        targets = self.read_targets(records["next"])
        records.set("action", self.encode_action(records["action"]))
        records.set(("next", "encoded_latents"), self.encode(targets))
        records = self.rollout(records)
        latent = records["next", "state"], records["next", "belief"]
        for name, reconstruction in self.decode(*latent).items():
            records.set(("next", f"target_{name}"), targets[name])
            records.set(("next", f"reconstruction_{name}"), reconstruction)
        records.set(("next", "reward_logits"), self.reward(*latent))
        return records.set(("next", "continue_pred"), self.continuation(*latent))


def most_probable(logits: Tensor) -> Tensor:
    """The state of the most probable classes, ``[..., size]``, of logits ``[..., categoricals, classes]``."""
    return nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).flatten(-2).float()


def make_rollout(
    action_size: int, embedding_size: int, blocks: int, unimix: float, **sizes: int
) -> RSSMRolloutV3:
    """The recurrent part of a world model, of TorchRL's prior and posterior.

    Args:
        action_size: of an action.
        embedding_size: of an encoded observation.
        blocks, unimix: see :func:`world_model`.
        **sizes: of both networks, by TorchRL's names.
    """
    prior = RSSMPriorV3(
        action_shape=(action_size,),
        action_dim=action_size,
        unimix=unimix,
        recurrent_model="block_gru",
        num_blocks=blocks,
        **sizes,
    )
    posterior = RSSMPosteriorV3(obs_embed_dim=embedding_size, unimix=unimix, use_rms_norm=True, **sizes)
    latent = [("next", "state"), ("next", "belief")]
    return RSSMRolloutV3(
        TensorDictModule(prior, ["state", "belief", "action"], [("next", "prior_logits"), *latent]),
        TensorDictModule(
            posterior,
            [("next", "belief"), ("next", "encoded_latents")],
            [("next", "posterior_logits"), ("next", "state")],
        ),
    )


class ImageReader(nn.Module):
    """Encoder and decoder of one image entry.

    Args:
        shape: ``[C, H, W]``; sides are halved once for each stage.
        low, span: see :func:`hydrl.networks.encoders.image_scaling`.
        channels: of the first stage, before its multiple.
        stages: multiples of ``channels`` of each halving.
    """

    low: Tensor
    span: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        low: float | Tensor | None,
        span: float | Tensor | None,
        channels: int,
        stages: Sequence[int],
    ) -> None:
        super().__init__()
        self.shape, self.channels, self.stages = tuple(shape), channels, tuple(stages)
        self.register_buffer("low", torch.as_tensor(0.0 if low is None else low), persistent=False)
        self.register_buffer("span", torch.as_tensor(1.0 if span is None else span), persistent=False)
        self.encoder = DreamerV3ImageEncoder(self.shape[0], channels, self.stages)
        self.size = self.encoder.output_features(self.shape)

    def make_decoder(self, latent_size: int, blocks: int) -> None:
        """Adds the decoder of latent states of this size."""
        blocks = blocks if latent_size % blocks == 0 else 1
        self.decoder = DreamerV3ImageDecoder(
            latent_size, self.shape, self.channels, self.stages, num_blocks=blocks
        )

    def scale(self, pixels: Tensor) -> Tensor:
        """Pixels ``[..., C, H, W]`` from 0 to 1."""
        return (pixels.float() - self.low) / self.span


def world_model(
    env: EnvBase,
    actor: TensorDictModuleBase | None = None,
    *,
    deterministic: PositiveInt,
    hidden: PositiveInt,
    categoricals: PositiveInt,
    classes: PositiveInt,
    units: PositiveInt,
    blocks: PositiveInt,
    layers: PositiveInt,
    channels: PositiveInt,
    bins: Annotated[int, Field(gt=2)],
    unimix: UniformShare,
    in_keys: list[str] | None = None,
) -> WorldModel:
    """World model for vectors, images or both; the actor's own one if an actor is given.

    Args:
        env: gives entries and actions.
        actor: acts by its world model, which then is the one that is trained.
        deterministic: units of the recurrent network, a multiple of ``blocks``.
        hidden: units of the layers around it.
        categoricals: categorical distributions of a latent state.
        classes: classes of each of them.
        units: of each hidden layer of encoder, decoder, heads, actor and critic.
        blocks: of the recurrent network's block-diagonal weights.
        layers: hidden layers of encoder and decoder of vectors.
        channels: of the image encoder; its stages have 2, 3, 4 and 4 times as many.
        bins: of the two-hot distributions of rewards and values.
        unimix: share of the uniform distribution in each categorical.
        in_keys: observation entries; ``None``: all.

    Raises:
        UserError: for action masks, and images with an odd side.
    """
    if actor is not None:
        return cast(DreamerActor, actor).world_model
    check_world_model(env, deterministic, blocks)
    keys, spec = in_keys or observation_keys(env), env.observation_spec
    require_entries(spec, keys)
    names = {key: "_".join(key) if isinstance(key, tuple) else key for key in keys}
    image_keys = [key for key in keys if is_image(spec, key)]
    images = {names[key]: make_image_reader(names[key], spec[key], spec.ndim, channels) for key in image_keys}
    vectors = {key: spec[key].shape[-1] for key in keys if key not in image_keys}
    sizes = {"deterministic": deterministic, "hidden": hidden, "categoricals": categoricals}
    sizes |= {"classes": classes, "units": units, "blocks": blocks, "layers": layers, "bins": bins}
    return WorldModel(vectors, images, action_spec(env), unimix=unimix, **sizes).to(env.device)


def check_world_model(env: EnvBase, deterministic: int, blocks: int) -> None:
    """Checks what a world model cannot do.

    Raises:
        UserError: for action masks, and recurrent units that ``blocks`` does not divide.
    """
    if masks := [*mask_keys(env).values()]:
        raise UserError(
            f"algo=dreamer_v3: cannot use the action mask {masks[0]}. Use algo=ppo, or for a Gymnasium "
            "environment env.action_mask=false."
        )
    if deterministic % blocks:
        raise UserError(
            f"world_model.blocks={blocks}: should divide world_model.deterministic={deterministic}."
        )


def make_image_reader(name: str, spec: TensorSpec, batch_dims: int, channels: int) -> ImageReader:
    """The reader of an image entry; at most four halvings, of even sides only.

    Raises:
        UserError: for an image whose sides cannot be halved.
    """
    shape = spec.shape[batch_dims:]
    count, sides = 0, list(shape[1:])
    while count < len(STAGES) and min(sides) > 4 and all(side % 2 == 0 for side in sides):
        count, sides = count + 1, [side // 2 for side in sides]
    if not count:
        size = " x ".join(map(str, shape[1:]))
        raise UserError(
            f"algo=dreamer_v3: images of {size} ({name}) cannot be halved. Resize them to 64 x 64 by "
            "+env.wrappers.resize._target_=gymnasium.wrappers.ResizeObservation "
            "+env.wrappers.resize.shape=[64,64]."
        )
    low, span = image_scaling(spec, shape, "bounds")
    return ImageReader(shape, low, span, channels, STAGES[:count])


class GaussianParameters(nn.Module):
    """Network of a policy's mean in [-1, 1] and deviation in [0.1, 1], as in the author's code.

    Args:
        latent_size: of state and belief together.
        actions: action dimensions.
        layers, units: hidden layers and their units.
    """

    def __init__(self, latent_size: int, actions: int, layers: int, units: int) -> None:
        super().__init__()
        self.net = DreamerV3MLP(latent_size, 2 * actions, layers, units, outscale=0.01)

    def forward(self, state: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation, ``[..., actions]`` each."""
        mean, deviation = self.net(state, belief).chunk(2, -1)
        return mean.tanh(), 0.9 * torch.sigmoid(deviation + 2) + 0.1


class DreamerActor(TensorDictModuleBase):
    """Policy over the latent state of a world model, which it updates at every step.

    It reads an observation, and the latent state and action of the step before, which a primer zeroes where
    episodes begin. It writes the action, and under ``next`` what the following step reads.

    Args:
        world_model: shared with the loss.
        policy: reads ``state`` and ``belief``, and writes ``action``, one-hot if it is discrete.
    """

    def __init__(self, world_model: WorldModel, policy: ProbabilisticTensorDictSequential) -> None:
        super().__init__()
        self.world_model, self.policy = world_model, policy
        self.in_keys = [*world_model.observation_keys, *LATENT_KEYS, "is_init"]
        self.out_keys = ["action", *(("next", key) for key in LATENT_KEYS)]

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform that zeroes the latent state at the beginning of episodes."""
        model = self.world_model
        sizes = zip(LATENT_KEYS, (model.state_size, model.belief_size, model.action_size), strict=True)
        device = next(self.parameters()).device
        specs = {key: Unbounded((size,), device=device) for key, size in sizes}
        return TensorDictPrimer(specs, default_value=0.0, expand_specs=True)

    @torch.no_grad()
    def dream(
        self, steps: TensorDictBase, observed: int
    ) -> tuple[dict[NestedKey, Tensor], dict[NestedKey, Tensor]]:
        """What happened, and what the world model imagines of it, by entry, ``[time, ...]``.

        The model reads the first observations, and from then on nothing but actions. Categoricals take their
        most probable class. Images are from 0 to 1.

        Args:
            steps: of episodes from their beginning, ``[time, episodes]``.
            observed: steps whose observations the model reads.
        """
        model = self.world_model
        targets, actions = model.read_targets(steps), model.encode_action(steps["action"])
        embeddings = model.encode(targets)
        state, belief, action = (
            embeddings.new_zeros(*steps.shape[1:], size)
            for size in (model.state_size, model.belief_size, model.action_size)
        )
        states, beliefs = [], []
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            for step, embedding in enumerate(embeddings):
                if step < observed:
                    state, belief = model.update_latent(state, belief, action, embedding)
                else:
                    logits, belief = model.prior._belief_and_logits(state, belief, action)
                    state = most_probable(logits)
                states.append(state)
                beliefs.append(belief)
                action = actions[step]
        dreams = model.decode(torch.stack(states), torch.stack(beliefs))
        return model.split_entries(targets), model.split_entries(dreams)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Acts at a step ``[...]``."""
        model = self.world_model
        embedding = model.encode(model.read_targets(tensordict))
        state, belief, action = (tensordict[key] for key in LATENT_KEYS)
        state, belief = model.update_latent(state, belief, action, embedding)
        latent = TensorDict({"state": state, "belief": belief}, tensordict.batch_size)
        action = self.policy(latent)["action"]
        tensordict.set("action", action.argmax(-1) if isinstance(model.spec, Categorical) else action)
        for key, value in zip(LATENT_KEYS, (state, belief, action.float()), strict=True):
            tensordict.set(("next", key), value)
        return tensordict


def dreamer_actor(env: EnvBase, *, world_model: WorldModel, layers: PositiveInt) -> DreamerActor:
    """Builds the policy: a Gaussian for continuous actions, categorical for discrete ones.

    Actions may lie outside of [-1, 1]; a transform clips them on their way to the environment, and the model
    does, too.

    Args:
        env: gives the action spec.
        world_model: builds the world model from the environment.
        layers: hidden layers, of the world model's units.
    """
    model = world_model(env)
    size, kwargs = model.state_size + model.belief_size, {"depth": layers, "num_cells": model.units}
    if isinstance(model.spec, Categorical | OneHot):
        policy = DreamerV3DiscreteActor(size, model.action_size, unimix=model.unimix, **kwargs)
    else:
        parameters = GaussianParameters(size, model.action_size, layers, model.units)
        policy = ProbabilisticTensorDictSequential(
            TensorDictModule(parameters, ["state", "belief"], ["loc", "scale"]),
            ProbabilisticTensorDictModule(
                ["loc", "scale"],
                ["action"],
                distribution_class=IndependentNormal,
                default_interaction_type=InteractionType.RANDOM,
                return_log_prob=True,
            ),
        )
    return DreamerActor(model, policy).to(env.device).eval()


def dreamer_critic(env: EnvBase, actor: DreamerActor, *, layers: PositiveInt) -> TensorDictSequential:
    """Two-hot critic of latent states, ``state_value`` ``[..., 1]`` and ``state_value_logits``.

    Args:
        env: gives the device.
        actor: gives the sizes.
        layers: hidden layers, of the world model's units.
    """
    model = actor.world_model
    size = model.state_size + model.belief_size
    net = DreamerV3MLP(size, model.bins, layers, model.units, outscale=0.0)
    return TensorDictSequential(
        TensorDictModule(net, ["state", "belief"], ["state_value_logits"]),
        TensorDictModule(SymExpTwoHot(model.bins), ["state_value_logits"], ["state_value"]),
    ).to(env.device)
