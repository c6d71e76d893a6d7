"""Trained policy for deployment: acts on NumPy arrays or tensordicts, exports to ONNX or PyTorch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.envs import CatFrames, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl import envs, specs
from hydrl.config.describe import name_env
from hydrl.deploy import export
from hydrl.deploy.load import open_run
from hydrl.envs.evaluation import without_log_probabilities
from hydrl.envs.external_env import ExternalEnv, GymIO
from hydrl.errors import UserError, printable
from hydrl.library_setup import quieten_libraries
from hydrl.networks.precision import in_float32
from hydrl.run.process import choose_device
from hydrl.run.trained_run import TrainedRun
from hydrl.training.evaluator import PolicyEvaluator, preserve_rng


class Policy:
    """Trained policy with its observation normalizer; returned by :func:`hydrl.load`.

    It is stateful: stacked frames and RNN states are carried from call to call, for one environment or a
    vector of them, until :meth:`reset`.

    Args:
        run: the run whose policy it is.
        frames: frames it was trained for.
        evaluator: evaluator of the run.

    Attributes:
        actor: the policy without exploration, a TorchRL module over transformed observations; its parameters
            require no gradients.
        frames: frames it was trained for.
        run: the run whose policy it is.
    """

    def __init__(self, run: TrainedRun, frames: int, evaluator: PolicyEvaluator) -> None:
        self.run, self.frames, self.evaluator = run, frames, evaluator
        self.actor = evaluator.actor.requires_grad_(False)
        self.example_env = self.env()
        stacks_frames = any(isinstance(transform, CatFrames) for transform in self.example_env.transform)
        self.is_stateful = stacks_frames or specs.needs_episode_starts(self.actor)
        self.io: Any = None
        self.external_env: TransformedEnv = None
        self.now: TensorDictBase | None = None  # last observation and action; ``None`` before an episode
        self.begins = torch.zeros((), dtype=torch.bool)

    def __repr__(self) -> str:
        """Algorithm, task, seed and frames."""
        run = self.run
        name = f"{run.algo} on {run.task}, seed {run.seed}"
        return printable(f"<Policy of {name}, after {self.frames:,} frames>")

    def env(self, num_envs: int = 1) -> TransformedEnv:
        """The run's environment for ``rollout(steps, policy.actor)``, with frozen observation normalizers.

        Rewards are scaled as in training, but a running scale starts anew. ``episode_reward`` is the
        environment's own.

        Args:
            num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        """
        return self.evaluator.make_env(num_envs=num_envs, normalizer=self.evaluator.normaliser())

    def reset(self, which: Sequence[bool] | Sequence[int] | np.ndarray | None = None) -> None:
        """Starts new episodes with the next observations.

        Args:
            which: environments of a vector, as ``[n]`` booleans or indices; ``None``: all.
        """
        if which is None:
            self.now = None
        elif self.now is not None:
            self.begins[torch.as_tensor(which)] = True

    def predict(
        self, observation: Any, deterministic: bool = True, mask: Any = None, reward: Any = None
    ) -> Any:
        """Actions for ``step`` of the plain Gymnasium or PettingZoo environment.

        If the run has ``env.wrappers``, that is the wrapped environment, without wrappers for training only.

        Args:
            observation: one observation as the environment returns it (an array, an image in its own layout,
                a dictionary or tuple), or a batch ``[n, *shape]`` as Gymnasium's vector environments return
                it. For several agents a dictionary by agent, as PettingZoo's. For a language model a text, or
                a list of texts.
            deterministic: ``False`` samples from a stochastic policy's distribution; other policies ignore
                it.
            mask: action mask, ``[actions]`` or ``[n, actions]``, if the environment gives it in ``info`` or
                by a method; a mask inside the observation is read there. For several agents a dictionary by
                agent.
            reward: reward of the last step, a number or ``[n]``, for return-conditioned policies.

        Returns:
            ``Discrete``: an ``int``, or ``[n]`` integers. Else an array ``[*shape]`` or ``[n, *shape]``, or a
            ``Dict`` or ``Tuple`` of them. For several agents a dictionary by agent. For a language model a
            text, or a list.

        Raises:
            UserError: for a missing entry, or a wrong shape or dtype. For a missing, needless or all-false
                mask. For another number of environments in the middle of a stateful policy's episodes. For
                environments of other libraries (VMAS, your own TorchRL class): use :meth:`act`.
        """
        if self.io is None:
            make: Any = self.run.build("env")
            io = envs.find_family(make).policy_io(make, self.example_env)
            self.io = self.gym_io("predict") if io is None else io
        entries = self.io.read(observation, mask)
        if reward is not None:
            entries.set("reward", as_reward(reward, entries.shape))
        acted = self.act(entries, deterministic)
        if isinstance(self.io, GymIO):
            return self.io.write(acted[self.example_env.action_key].cpu())
        return self.io.write(acted)

    def gym_io(self, method: str) -> GymIO:
        """Conversion from and to the spaces of the run's Gymnasium environment.

        Raises:
            UserError: for other environments; ``method`` is named in the message.
        """
        make: Any = self.run.build("env")
        gym_maker: Any = envs.find_family(make).gym_maker(make)
        if gym_maker is None:
            env = name_env(self.run.task, self.run.env)
            if method == "export" and specs.agent_groups(self.example_env):
                raise UserError(f"{method}: {env} has several agents, which are not supported.")
            advice = " Use act or env." * (method != "export")
            raise UserError(f"{method}: {env} is no Gymnasium environment.{advice}")
        return GymIO(gym_maker, self.example_env.base_env.action_spec_unbatched, method)

    @torch.no_grad()
    def act(self, tensordict: TensorDictBase, deterministic: bool = True) -> TensorDictBase:
        """Actions for TorchRL environments.

        Args:
            tensordict: ``[]`` or ``[n]``, with the untransformed environment's entries; and ``reward``,
                ``[..., 1]``, of the last step, for return-conditioned policies.
            deterministic: see :meth:`predict`.

        Returns:
            a copy with the action of the untransformed environment.

        Raises:
            UserError: for a missing entry or a wrong shape; see :meth:`predict`.
        """
        if "episode_reward" in self.actor.in_keys and self.now is not None and "reward" not in tensordict:
            raise UserError(
                "reward: a return-conditioned policy needs the reward of the last step. Pass reward, or call "
                "reset() at the start of an episode."
            )
        env = self.env_for(tensordict.batch_size)
        env.base_env.set_observation(tensordict)
        if self.now is None:
            now = env.reset()
        else:
            now = env.step_mdp(env.step(self.now))
            if self.begins.any():
                now = env.reset(now.set("_reset", self.begins.unsqueeze(-1)))
        kind = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
        with set_exploration_type(kind), without_log_probabilities(self.actor):
            self.now = self.actor(now)
        self.begins = torch.zeros(env.batch_size, dtype=torch.bool, device=env.device)
        return tensordict.copy().update(env.transform.inv(self.now).select(*env.base_env.action_keys))

    def env_for(self, batch_size: torch.Size) -> TransformedEnv:
        """The run's transforms over an environment that returns what it is fed, for this batch size."""
        if self.external_env is None or self.external_env.batch_size != batch_size:
            if self.now is not None and self.is_stateful:
                before = list(self.external_env.batch_size)
                problem = f"{list(batch_size)} environments after {before}"
                raise UserError(f"observation: {problem}. Call reset() before another number of them.")
            base = ExternalEnv(self.example_env.base_env, batch_size)
            builders, normaliser = self.run.transform_builders, self.evaluator.normaliser()
            self.external_env = envs.make_env(
                lambda device: base, builders, normalizer=normaliser, policy=self.actor
            )
            self.now = None
        elif self.now is not None and self.begins.all():
            self.now = None
        return self.external_env

    def export(self, path: str | Path) -> Path:
        """Exports the deterministic policy with its normalizer to one file that runs without hydrl.

        A language model becomes a folder that transformers loads, with its tokenizer.

        Inputs are ``observation``, ``[batch, *shape]`` (or each entry of a dictionary by name),
        ``action_mask`` (1 for a valid action, else 0) and RNN states (zeros at episode start). Outputs are
        ``action``, ``[batch, ...]``, as by :meth:`predict`, and the next RNN states. Images have the
        environment's own layout and type, discrete values ``int64`` (binary observations ``float32``), the
        rest ``float32``; so are the layers, also of a run with ``precision=bf16``. The file's metadata and a
        printed line describe it.

        Args:
            path: ends in ``.onnx`` (ONNX runtimes; needs the extra ``export``) or ``.pt2``
                (``torch.export.load``); for a language model a new folder.

        Raises:
            UserError: for another ending, a missing folder or package, stacked frames, several agents,
                ``Dict`` or ``Tuple`` actions, and spaces that are no arrays.
        """
        family = envs.find_family(self.run.build("env"))
        if line := family.export(self.example_env, self.actor, Path(path)):
            print(f"{path}: {line}")
            return Path(path)
        path, io = export.check_export_path(path), self.gym_io("export")
        network = export.ExportedPolicy(self.run.build("actor"), self.evaluator, io)
        acting = Policy(self.run, self.frames, self.evaluator)
        episodes = io.sample_observations(2, 4, 8)
        description = export.describe_policy(self.run.shown, self.frames, network)
        deterministic = set_exploration_type(ExplorationType.DETERMINISTIC)
        with deterministic, without_log_probabilities(network), in_float32(network, self.actor):
            export.check_outputs(network, episodes, acting.predict, acting.reset)
            export.write_model(network, network.begin(*episodes[0][0]), description, path)
        print(f"{path}: {export.describe_in_words(description)}")
        return path


def as_reward(reward: Any, shape: torch.Size) -> torch.Tensor:
    """Rewards, a number or ``[n]``, in the shape environments have, ``[*shape, 1]``."""
    return torch.as_tensor(reward, dtype=torch.float32).expand(shape).unsqueeze(-1).clone()


def open_policy(run: str | Path, checkpoint: str | int, device: str, trust: bool) -> Policy:
    """See :func:`hydrl.load`."""
    quieten_libraries()
    chosen = choose_device(device)
    with preserve_rng():
        opened = open_run(Path(run), checkpoint=str(checkpoint), device=chosen, trust=trust, or_last=True)
        return Policy(*opened)
