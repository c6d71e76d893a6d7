"""A finished run to act with: NumPy or tensordicts in, actions out, or a file for other runtimes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.envs import CatFrames, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl import envs, specs
from hydrl.config.describe import env_named
from hydrl.config.settings import Settings
from hydrl.deploy import export
from hydrl.deploy.load import open_run
from hydrl.envs.external_env import ExternalEnv, GymIO
from hydrl.envs.pettingzoo import PettingZooIO
from hydrl.errors import UserError, printable
from hydrl.library_setup import quieten_libraries
from hydrl.run.process import choose_device
from hydrl.training.evaluator import PolicyEvaluator, preserve_rng, without_log_probabilities


class Policy:
    """What a run learned, with the normaliser it was trained with; made by :func:`hydrl.load`.

    It acts in episodes: stacked frames and the hidden state of an LSTM or GRU are carried from call to call,
    of one environment or of many side by side, until :meth:`reset`.

    Args:
        settings: the run's.
        frames: how long it was trained.
        evaluator: plays the policy.

    Attributes:
        actor: the policy without exploration, as a module of TorchRL that reads transformed observations;
            its parameters take no gradients, so that rollouts keep none.
        frames: how long it was trained.
        settings: the run's.
    """

    def __init__(self, settings: Settings, frames: int, evaluator: PolicyEvaluator) -> None:
        self.settings, self.frames, self.evaluator = settings, frames, evaluator
        self.actor = evaluator.actor.requires_grad_(False)
        self.like = self.env()
        remembering = any(isinstance(each, CatFrames) for each in self.like.transform)
        self.remembers = remembering or specs.needs_episode_starts(self.actor)
        self.form: GymIO | PettingZooIO | None = None
        self.told: TransformedEnv = None
        self.now: TensorDictBase | None = None  # the last observation and action; none where episodes begin
        self.begins = torch.zeros((), dtype=torch.bool)

    def __repr__(self) -> str:
        """What it is of, for who looks at it."""
        run = self.settings
        name = f"{run.algo} on {run.task}, seed {run.seed}"
        return printable(f"<Policy of {name}, after {self.frames:,} frames>")

    def env(self, num_envs: int = 1) -> TransformedEnv:
        """The run's environment for ``rollout(steps, policy.actor)``, its observation normalisers frozen.

        Rewards are as they were learned from, their scale begun anew; ``episode_reward`` is raw.

        Args:
            num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``, stepped together.
        """
        return self.evaluator.make_env(num_envs=num_envs, normaliser=self.evaluator.normaliser())

    def reset(self, which: Sequence[bool] | Sequence[int] | np.ndarray | None = None) -> None:
        """Says that the next observations begin episodes.

        Args:
            which: of many environments, ``[n]`` booleans or their places; ``None``: all.
        """
        if which is None:
            self.now = None
        elif self.now is not None:
            self.begins[torch.as_tensor(which)] = True

    def predict(
        self, observation: Any, deterministic: bool = True, mask: Any = None, reward: Any = None
    ) -> Any:
        """What to do, for ``step`` of the plain Gymnasium environment.

        That of a run with ``env.wrappers`` is the task in its wrappers, but for those of training alone:
        what they would make of an observation or an action they have to be there to make.

        Args:
            observation: one, as that environment gives it: an array, a picture in its own layout, a
                dictionary or tuple of such; or many, ``[n, *shape]``, a dictionary of such as Gymnasium's
                vector environments give it. Of several agents a dictionary by agent, of those that still act,
                as PettingZoo gives it.
            deterministic: ``False`` draws from the distribution of a stochastic policy; a policy without one
                acts the same.
            mask: which actions are allowed, ``[actions]`` or ``[n, actions]``, where the environment says
                so in ``info`` or by a method; of a dictionary that holds it, it is read there. Of several
                agents a dictionary by agent.
            reward: what the last step paid, a number or ``[n]``, for a policy that acts for a return.

        Returns:
            An ``int``, or ``[n]`` integers, for a ``Discrete`` space; else integers of several choices or
            floats, ``[*shape]`` or ``[n, *shape]``; of a ``Dict`` or ``Tuple`` one of such. Of several agents
            a dictionary by agent.

        Raises:
            UserError: for an entry that lacks, another shape or kind of numbers, or another number of
                observations in the middle of episodes that are remembered; for a mask that lacks, has no
                use or forbids all; for tasks that are neither Gymnasium's nor PettingZoo's (VMAS', your own
                TorchRL class): use :meth:`act`.
        """
        if self.form is None:
            make: Any = self.settings.build("env")
            of_agents = make.func is envs.pettingzoo_env
            self.form = PettingZooIO(make) if of_agents else self.own_form("predict")
        given = self.form.read(observation, mask)
        if reward is not None:
            given.set("reward", of_steps(reward, given.shape))
        acted = self.act(given, deterministic)
        if isinstance(self.form, PettingZooIO):
            return self.form.write(acted)
        return self.form.write(acted[self.like.action_key].cpu())

    def own_form(self, asking: str) -> GymIO:
        """How the run's Gymnasium task sees and acts.

        Raises:
            UserError: where it is not one, naming what was ``asking``.
        """
        make: Any = self.settings.build("env")
        if make.func is not envs.gymnasium_env:
            env = env_named(self.settings.task, self.settings.env)
            if asking == "export" and specs.agent_groups(self.like):
                raise UserError(f"{env} has several agents, and their policies are not exported")
            raise UserError(
                f"{asking} is for Gymnasium's tasks, and {env} is none"
                + "; use act or env" * (asking != "export")
            )
        return GymIO(make, self.like.base_env.action_spec_unbatched, asking)

    @torch.no_grad()
    def act(self, tensordict: TensorDictBase, deterministic: bool = True) -> TensorDictBase:
        """What to do, for those who stay in TorchRL.

        Args:
            tensordict: ``[]`` or ``[n]``, with the entries that the environment gives below all transforms;
                with ``reward``, ``[..., 1]``, what the last step paid, for a policy that acts for a return.
            deterministic: see :meth:`predict`.

        Returns:
            The same entries and the action, as the environment below all transforms takes it.

        Raises:
            UserError: for an entry that lacks or has another shape, and as :meth:`predict`.
        """
        if "episode_reward" in self.actor.in_keys and self.now is not None and "reward" not in tensordict:
            raise UserError(
                "this policy acts for a return, and has to know what the last step paid: give reward=, or "
                "call reset() where episodes begin"
            )
        env = self.listening(tensordict.batch_size)
        env.base_env.tell(tensordict)
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

    def listening(self, batch_size: torch.Size) -> TransformedEnv:
        """The run's transforms over what it is told, where episodes are under way or begin."""
        if self.told is None or self.told.batch_size != batch_size:
            if self.now is not None and self.remembers:
                raise UserError(
                    f"observations came as {list(self.told.batch_size)} environments and now as "
                    f"{list(batch_size)}; call reset() where other episodes begin"
                )
            told, normaliser = ExternalEnv(self.like.base_env, batch_size), self.evaluator.normaliser()
            builders = self.settings.transform_builders
            self.told = envs.make_env(lambda device: told, builders, normaliser=normaliser, policy=self.actor)
            self.now = None
        elif self.now is not None and self.begins.all():
            self.now = None
        return self.told

    def export(self, path: str | Path) -> Path:
        """Writes the deterministic policy with its normaliser to one file, which needs no hydrl to run.

        Its inputs are ``observation``, ``[batch, *shape]``, of a dictionary each entry by its name,
        ``action_mask`` of a task that forbids actions, 1 where one is allowed and else 0, and what an LSTM or
        GRU remembers, which zeros begin; its outputs ``action``, ``[batch, ...]`` as of
        :meth:`predict` with many, and what is remembered then. Pictures are bytes in the task's own layout,
        choices ``int64`` (bits that are observed are not), the rest ``float32``. The file says so, and a line
        here.

        Args:
            path: ends in ``.onnx`` (for ONNX runtimes, needs the extra ``export``) or ``.pt2`` (for
                ``torch.export.load``).

        Raises:
            UserError: for another ending, a folder that is not there, a missing package, frames that a
                transform stacks, several agents, actions in a ``Dict`` or ``Tuple``, and spaces of other
                kinds than Gymnasium's own of numbers.
        """
        path, form = export.exportable(path), self.own_form("export")
        network = export.Network(self.settings, self.evaluator, form)
        acting = Policy(self.settings, self.frames, self.evaluator)
        episodes = form.observed(2, 4, 8)
        said = export.described(self.settings, self.frames, network)
        with set_exploration_type(ExplorationType.DETERMINISTIC), without_log_probabilities(network):
            export.check(network, episodes, acting.predict, acting.reset)
            export.write(network, network.begin(*episodes[0][0]), said, path)
        print(f"{path}: {export.in_words(said)}")
        return path


def of_steps(reward: Any, shape: torch.Size) -> torch.Tensor:
    """What steps paid, a number or ``[n]``, as environments give it, ``[*shape, 1]``."""
    return torch.as_tensor(reward, dtype=torch.float32).expand(shape).unsqueeze(-1).clone()


def open_policy(run: str | Path, checkpoint: str | int, device: str, trust: bool) -> Policy:
    """See :func:`hydrl.load`."""
    quieten_libraries()
    chosen = choose_device(device)
    with preserve_rng():
        opened = open_run(Path(run), checkpoint=str(checkpoint), device=chosen, trust=trust, or_last=True)
        return Policy(*opened)
