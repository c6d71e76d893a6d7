"""Numbers: the range of each, and how they fit each other."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from hydrl.config.schema import QUANTITIES, Part, Values, quantity
from hydrl.config.tree import find

Fraction = Annotated[float, Field(ge=0, le=1)]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Distance = Literal["l1", "l2", "smooth_l1"]

# Those of torch.nn that make sense between layers and need no arguments.
Activation = Literal["Tanh", "ReLU", "ELU", "SiLU", "GELU", "SELU", "CELU", "Mish", "LeakyReLU", "Softplus"]

# Ray's older client, ray://HOST:PORT, has no collectors.
ClusterAddress = Annotated[str, Field(pattern=r"^(auto|[^:/\s]+:\d+)$")]

# Ranges of what TorchRL and PyTorch would accept in silence, or refuse late.
RANGES: tuple[tuple[Any, str], ...] = (
    (Part, "buffer.storage"),
    (PositiveInt, "collector.frames_per_batch collector.num_envs collector.num_workers"),
    (PositiveInt, "collector.num_collectors"),
    (NotNegative, "collector.num_cpus collector.num_gpus"),
    (ClusterAddress | None, "collector.address eval.address"),
    (PositiveInt, "minibatches.epochs minibatches.size minibatches.updates minibatches.n_steps"),
    (PositiveInt, "buffer.storage.max_size"),
    (PositiveInt, "exploration.annealing_num_steps target.value_network_update_interval"),
    (Annotated[int, Field(ge=0)], "collector.init_random_frames minibatches.warmup_frames"),
    (Positive, "optim.lr optim.eps loss.module.dtarg"),
    (Positive, "collector.worker_timeout logger.wandb.init_timeout"),
    (NotNegative, "optim.weight_decay schedule.eta_min schedule.power"),
    (NotNegative, "exploration.sigma_init exploration.sigma_end"),
    (NotNegative, "loss.module.min_q_weight loss.module.alpha"),
    (PositiveInt, "loss.module.num_random"),
    (NotNegative, "loss.module.entropy_coeff loss.module.critic_coeff loss.module.beta"),
    (Fraction, "loss.value_estimator.gamma loss.value_estimator.lmbda target.tau"),
    (Fraction, "transforms.reward_scaling.gamma"),
    (float | None, "transforms.reward_scaling.scale"),
    (Positive, "loss.value_estimator.rho_thresh loss.value_estimator.c_thresh"),
    (Fraction, "exploration.eps_init exploration.eps_end buffer.sampler.beta buffer.her_ratio"),
    (NotNegative, "buffer.sampler.alpha"),
    (Annotated[float, Field(gt=0, lt=1)], "loss.module.clip_epsilon minibatches.share"),
    (Distance, "loss.module.loss_critic_type loss.module.loss_function"),
    (list[PositiveInt], "NETWORK.num_cells"),
    (list[PositiveInt] | None, "mixer.state_cells"),
    (Activation, "NETWORK.activation"),
    (PositiveInt, "NETWORK.rnn.hidden_size mixer.mixing_embed_dim"),
    (Annotated[int, Field(ge=2)] | None, "NETWORK.rnn.span"),
    (PositiveInt | None, "encoder.features encoder.channels"),
    (Literal["bounds", "bytes"], "encoder.scale"),
    (PositiveInt | None, "minibatches.sequence"),
    (Annotated[int, Field(ge=0)], "minibatches.burn_in"),
    (Fraction, "minibatches.eta"),
    (Literal["per_state", "log_std", "independent"], "actor.scale"),
    (PositiveInt, "actor.width actor.layers actor.heads actor.context"),
    (Annotated[float, Field(ge=0, lt=1)], "actor.dropout"),
    (Annotated[float, Field(gt=0.01, allow_inf_nan=False)], "actor.scale_init"),
    (Literal["orthogonal"] | None, "NETWORK.init"),
    (Positive | None, "actor.noisy"),
    (Annotated[float, Field(gt=0, le=1)], "transforms.normalize.settle"),
    (Annotated[int, Field(gt=1)], "actor.atoms"),
    (Literal["auto", "online", "offline"], "logger.wandb.mode"),
    (PositiveInt, "env.opponents.every_frames env.opponents.pool_size"),
    (Fraction, "env.opponents.latest_prob env.opponents.random_prob"),
)

# What must not be more than what.
LIMITS = (
    ("total_frames", "anneal_frames"),
    ("exploration.eps_end", "exploration.eps_init"),
    ("minibatches.size", "collector.frames_per_batch"),
    ("minibatches.size", "buffer.storage.max_size"),
    ("minibatches.warmup_frames", "buffer.storage.max_size"),
    ("collector.frames_per_batch", "buffer.storage.max_size"),
)


def too_large(values: Values) -> Iterator[str]:
    """Numbers that do not fit each other."""
    for small, large in LIMITS:
        least, most = find(values, small), find(values, large)
        if large == QUANTITIES["frames"] and quantity(values, "warmup") is not None:
            continue  # drawn from all that is kept
        if None not in (least, most) and least > most:
            advice = f"Use {small}={most} or less, or {large}={least} or more"
            yield f"{small}={least}: is more than {large}={most}. {advice}."
    frames, envs = quantity(values, "frames"), quantity(values, "envs") * (quantity(values, "workers") or 1)
    if over := frames % envs:
        yield (
            f"collector.frames_per_batch={frames}: is not a multiple of {envs}, the environments "
            f"(collector.num_envs in each worker). Use collector.frames_per_batch={frames - over + envs}."
        )
    sequence, burn_in = quantity(values, "sequence"), quantity(values, "burn_in")
    if sequence and burn_in is not None:
        yield from too_long(sequence, burn_in, quantity(values, "size"), envs, values)
    elif sequence:
        steps, size = frames // envs, quantity(values, "size")
        both = math.gcd(steps, size)
        if both % sequence:
            fitting = max(length for length in range(1, sequence) if both % length == 0)
            larger = f"minibatches.size={sequence} collector.frames_per_batch={envs * sequence}, or multiples"
            yield (
                f"minibatches.sequence={sequence}: does not divide both minibatches.size={size} and the "
                f"{steps} steps of each environment in a batch. Use "
                f"{f'minibatches.sequence={fitting}' if fitting > 1 else larger}."
            )


def too_long(sequence: int, burn_in: int, size: int, envs: int, values: Values) -> Iterator[str]:
    """Sequences in a replay buffer that do not fit what is drawn of them, or what they lie in."""
    line = f"minibatches.sequence={sequence}"
    if sequence <= burn_in:
        yield f"{line}: minibatches.burn_in={burn_in} leaves nothing to learn from. Use fewer of those."
    if sequence > size:
        yield f"{line}: is more than minibatches.size={size}, the frames of a minibatch. Use more."
    frames = find(values, "buffer.storage.max_size")
    if frames and frames < envs * sequence:
        yield f"buffer.storage.max_size={frames}: holds no {line} of each of {envs} environments. Use more."
