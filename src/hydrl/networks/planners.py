"""Planners: TorchRL's CEM and MPPI, corrected where they fail in silence, for policies that plan."""

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import planners

from hydrl.errors import UserError
from hydrl.limits import NonNegativeFloat, PositiveFloat, PositiveInt
from hydrl.specs import PLAN

WORST = -1e30  # the return of a plan whose imagined rewards are NaN or infinite


class PlanSearch(planners.MPCPlannerBase):
    """Base class of the planners, which replaces the search of TorchRL's.

    A search draws plans around a mean, scores them in ``env`` and moves mean and deviation to the best ones,
    for some rounds. Five things differ from TorchRL's:

    - Plans are in [-1, 1], whatever the bounds of actions.
    - The mean starts at the entry ``plan``, the last plan moved on by a step; the new one is written to
      ``("next", "plan")``.
    - The deviation is at least ``min_std``, and the mean itself is one of the candidates.
    - Plans with NaN or infinite rewards rank last.
    - With ``ExplorationType.DETERMINISTIC`` the noise of the search is the same at each call and for all
      environments, so an action depends on observation and plan alone.

    Args:
        env: takes states of any batch size; a learned model, or a stateless simulator.
        planning_horizon: steps of a plan.
        optim_steps: rounds of the search.
        num_candidates: plans in each round.
        top_k: the best plans of a round, at least 2, from which the next one is drawn.
        init_std: deviation of the first round's plans.
        min_std: the least deviation of later rounds.

    Raises:
        UserError: for a ``top_k`` of less than 2, or of more than ``num_candidates``.
    """

    def __init__(
        self,
        env: EnvBase,
        *,
        planning_horizon: PositiveInt,
        optim_steps: PositiveInt,
        num_candidates: PositiveInt,
        top_k: PositiveInt,
        init_std: PositiveFloat,
        min_std: PositiveFloat,
        **others: Any,
    ) -> None:
        if not 2 <= top_k <= num_candidates:
            raise UserError(f"top_k={top_k}: should be from 2 to num_candidates={num_candidates}.")
        super().__init__(
            env,
            planning_horizon=planning_horizon,
            optim_steps=optim_steps,
            num_candidates=num_candidates,
            top_k=top_k,
            **others,
        )
        self.init_std, self.min_std = init_std, min_std

    def planning(self, tensordict: TensorDictBase) -> Tensor:
        """The first action of the plan for states ``[...]``, ``[..., action]``; writes ``("next", "plan")``.

        Args:
            tensordict: states of ``env``, and maybe ``plan``, ``[..., horizon, action]``.
        """
        shape = (*tensordict.shape, self.planning_horizon, *self.action_spec.shape)
        mean = tensordict.get(PLAN, torch.zeros(shape, device=tensordict.device))
        plan = self.search(tensordict.exclude(PLAN, "next"), mean)
        following = torch.cat([plan[..., 1:, :], torch.zeros_like(plan[..., :1, :])], -2)
        tensordict.set(("next", PLAN), following)
        return self.scale(plan[..., 0, :])

    def search(self, states: TensorDictBase, mean: Tensor) -> Tensor:
        """The best plans for states ``[...]``, ``[..., horizon, action]``, searched around ``mean``."""
        states = states.unsqueeze(-1).expand(*states.shape, self.num_candidates).contiguous()
        mean = mean.unsqueeze(-3)  # [..., 1, horizon, action]
        std = torch.full_like(mean, self.init_std)
        is_deterministic = exploration_type() is ExplorationType.DETERMINISTIC
        generator = torch.Generator(mean.device).manual_seed(0) if is_deterministic else None
        shape = (self.num_candidates, *mean.shape[-2:])
        for _ in range(self.optim_steps):
            noise = torch.randn(
                shape if is_deterministic else (*states.shape[:-1], *shape),
                device=mean.device,
                generator=generator,
            )
            noise[..., 0, :, :] = 0.0
            plans = (mean + std * noise).clamp(-1, 1)
            best, rows = self.score(states, plans).topk(self.top_k, -1)
            elites = plans.gather(-3, rows[..., None, None].expand(*rows.shape, *shape[1:]))
            weights = self.weigh(best)[..., None, None]  # [..., top_k, 1, 1]
            mean = (weights * elites).sum(-3, keepdim=True)
            variance = (weights * (elites - mean).square()).sum(-3, keepdim=True)
            std = variance.sqrt().clamp_min(self.min_std)
        return mean.squeeze(-3)

    def score(self, states: TensorDictBase, plans: Tensor) -> Tensor:
        """Imagined returns ``[..., candidates]`` of plans ``[..., candidates, horizon, action]``.

        Rewards after an episode's end do not count.
        """
        returns = torch.zeros(states.shape, device=plans.device)
        running = torch.ones(states.shape, dtype=torch.bool, device=plans.device)
        for step in range(self.planning_horizon):
            states = self.env.step(states.set("action", self.scale(plans[..., step, :])))
            returns = returns + states["next", "reward"].squeeze(-1).where(running, 0.0)
            running = running & ~states["next", "done"].squeeze(-1)
            states = self.env.step_mdp(states)
        return returns.where(returns.isfinite(), WORST)

    def weigh(self, returns: Tensor) -> Tensor:
        """Weights of the best plans, ``[..., top_k]``, which sum to 1, by their returns; equal ones here."""
        return torch.full_like(returns, 1 / self.top_k)

    def scale(self, actions: Tensor) -> Tensor:
        """Actions ``[..., action]`` in [-1, 1] as those of ``env``."""
        space = self.action_spec.space
        return space.low + (actions + 1) / 2 * (space.high - space.low)


class CEMPlanner(PlanSearch, planners.CEMPlanner):
    """TorchRL's planner by the cross-entropy method (Botev et al. 2013), see :class:`PlanSearch`.

    The best plans of a round count equally.
    """


class MPPIPlanner(PlanSearch, planners.MPPIPlanner):
    """TorchRL's planner by model predictive path integrals (Williams et al. 2015), see :class:`PlanSearch`.

    The best plans of a round count by ``exp(temperature * return)``. TorchRL's overflows or underflows at
    returns of a thousand; here the best return is subtracted first.

    Args:
        env: and the others as of :class:`PlanSearch`.
        temperature: factor of the returns; 0 weighs as CEM does, a large one follows the best plan alone.
    """

    def __init__(self, env: EnvBase, *, temperature: NonNegativeFloat, **options: Any) -> None:
        # Returns are summed by the search, so nothing calls TorchRL's module of advantages.
        super().__init__(env, advantage_module=nn.Identity(), temperature=temperature, **options)

    def weigh(self, returns: Tensor) -> Tensor:
        """Weights by the returns' exponentials."""
        return (self.temperature * returns).softmax(-1)
