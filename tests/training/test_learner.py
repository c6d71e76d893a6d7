"""Two losses in one run: a judge that learns first and writes the reward that PPO then learns from."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives import LossModule

from hydrl.errors import UserError
from hydrl.experience.minibatches import Epochs, Minibatches
from tests.conftest import digest, logged, saved, settings


class Judge(LossModule):
    """Its network learns to say 3 of every observation."""

    out_keys = ("loss_judge", "said")

    def __init__(self, judge):
        super().__init__()
        self.judge = judge

    def forward(self, minibatch):
        said = self.judge(minibatch.select("observation"))["state_value"]
        return TensorDict({"loss_judge": (said - 3).square().mean(), "said": said.mean().detach()})


class Rows(Minibatches):
    """The whole batch, a few times."""

    def __init__(self, buffer, loss, *, times: int) -> None:
        self.times = times

    def __call__(self, batch):
        yield from (batch.reshape(-1).clone() for _ in range(self.times))


class Reward:
    """What the judge says of where a step led to is its reward."""

    def __init__(self, networks, *, scale: float) -> None:
        self.networks, self.scale = networks, scale

    @torch.no_grad()
    def __call__(self, batch):
        following = batch["next"].select("observation")
        batch["next", "reward"] = self.scale * self.networks["value"](following)["state_value"]


WRITES = ",writes:{_target_:tests.training.test_learner.Reward,scale:2.0}"
JUDGE = (
    "+extra_learners.judge={loss:{module:{_target_:tests.training.test_learner.Judge},networks:{judge:value}},"
    "optim:{_target_:torch.optim.SGD,lr:0.05},minibatches:{_target_:tests.training.test_learner.Rows,times:5}"
)
SMALL = [
    "algo=ppo", "env=cartpole", "~tuned", "value=state_value", "value.num_cells=[8]", "transforms=plain",
    "collector.num_envs=2", "collector.frames_per_batch=64", "minibatches.size=32", "minibatches.epochs=2",
    "log_every_frames=64", "eval.every_frames=1_000", "eval.final_episodes=1", "eval.max_steps=5",
]  # fmt: skip


def test_one_learns_after_the_other_and_reads_the_reward_it_wrote(run, monkeypatch):
    seen, judged = [], []
    own, write = Epochs.__call__, Reward.__call__

    def spy(self, batch):
        seen.append(batch["next", "reward"].clone())
        return own(self, batch)

    def noted(self, batch):
        write(self, batch)
        following = batch["next"].select("observation")
        judged.append(2.0 * self.networks["value"](following)["state_value"].detach())

    monkeypatch.setattr(Epochs, "__call__", spy)
    monkeypatch.setattr(Reward, "__call__", noted)
    folder = run(*SMALL, f"{JUDGE}{WRITES}}}", "total_frames=640")
    assert len(seen) == 10
    for read, wrote in zip(seen, judged, strict=True):
        assert torch.equal(read, wrote)
    assert abs(seen[0].mean() - 6) > abs(seen[-1].mean() - 6)  # it has learned to say 3
    assert seen[-1].mean() == pytest.approx(6, abs=0.5)
    rows = logged(folder)
    said = [float(row["loss/judge/said"]) for row in rows]
    assert abs(said[-1] - 3) < abs(said[0] - 3)
    assert {"loss/judge/judge", "loss/judge/grad_norm", "loss/objective"} <= rows[0].keys()
    assert float(rows[-1]["train/return"] or 0) < 100  # of the task's own, 1 a step, and not of 6


def test_what_learns_before_goes_on_to_the_last_bit(run):
    words = [*SMALL, f"{JUDGE}{WRITES}}}"]
    whole = run(*words, "total_frames=256", folder="whole")
    run(*words, "total_frames=128", "anneal_frames=256", folder="cut")
    cut = run(*words, "total_frames=256", "resume=auto", folder="cut")
    for part in ("actor", "loss", "optimizer", "before_judge"):
        assert digest(saved(whole, part)) == digest(saved(cut, part)), part
    assert saved(whole, "before_judge")["update"]["made"] == 4 * 5


class Novelty(LossModule):
    """Random network distillation in small: a network learns what a fixed one says (Burda et al. 2019)."""

    out_keys = ("loss_novelty",)

    def __init__(self, predictor):
        super().__init__()
        self.predictor = predictor

    def forward(self, minibatch):
        return TensorDict({"loss_novelty": prediction_error(self.predictor, minibatch).mean()})


def prediction_error(predictor, rows):
    observations = rows.select("observation")
    return (predictor(observations)["state_value"] - observations["observation"].sin().sum(-1, True)).square()


class NoveltyReward:
    """The reward of a step is how badly its next observation is predicted."""

    def __init__(self, networks):
        self.predictor = networks["value"]

    @torch.no_grad()
    def __call__(self, batch):
        batch["next", "reward"] = prediction_error(self.predictor, batch["next"])


NOVELTY = (
    "+extra_learners.novelty={loss:{module:{_target_:tests.training.test_learner.Novelty},networks:{predictor:value}},"
    "optim:{_target_:torch.optim.Adam,lr:0.01},writes:{_target_:tests.training.test_learner.NoveltyReward}}"
)


def test_an_extra_learner_shares_the_minibatches_of_the_run_s_loss(run, monkeypatch):
    drawn, learned, rewards = [], [], []
    draw, learn, write = Epochs.__call__, Novelty.forward, NoveltyReward.__call__

    def drawing(self, batch):
        rewards.append((batch["next", "reward"].clone(), written.pop()))
        for minibatch in draw(self, batch):
            drawn.append(minibatch["observation"].clone())
            yield minibatch

    def learning(self, minibatch):
        learned.append(minibatch["observation"].clone())
        return learn(self, minibatch)

    def writing(self, batch):
        write(self, batch)
        written.append(batch["next", "reward"].clone())

    written = []
    monkeypatch.setattr(Epochs, "__call__", drawing)
    monkeypatch.setattr(Novelty, "forward", learning)
    monkeypatch.setattr(NoveltyReward, "__call__", writing)
    folder = run(*SMALL, NOVELTY, "total_frames=640")
    assert len(drawn) == len(learned) == 10 * 2 * 2  # batches, epochs, minibatches an epoch
    assert all(map(torch.equal, drawn, learned))
    assert len(rewards) == 10
    assert all(torch.equal(read, wrote) for read, wrote in rewards)
    assert {"loss/novelty/novelty", "loss/novelty/grad_norm"} <= logged(folder)[0].keys()
    assert saved(folder, "before_novelty")["update"]["made"] == saved(folder, "update")["made"] == 40


def test_learners_of_shared_minibatches_resume_to_the_last_bit(run):
    whole = run(*SMALL, NOVELTY, "total_frames=256", folder="whole")
    run(*SMALL, NOVELTY, "total_frames=128", "anneal_frames=256", folder="cut")
    cut = run(*SMALL, NOVELTY, "total_frames=256", "resume=auto", folder="cut")
    for part in ("actor", "loss", "optimizer", "before_novelty"):
        assert digest(saved(whole, part)) == digest(saved(cut, part)), part


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (
            JUDGE.replace("lr:0.05", "lrr:0.05") + "}",
            r"extra_learners\.judge\.optim\.lrr=0\.05: torch\.optim\.SGD",
        ),
        (JUDGE.replace("judge:value", "judge:nobody") + "}", "nobody"),
        (JUDGE.replace("times:5", "sizes:5") + "}", r"extra_learners\.judge\.minibatches\.sizes=5"),
        (
            JUDGE + ",writes:{_target_:tests.training.test_learner.Reward}}",
            r"writes.*: cannot be built|_target_=tests\.training\.test_learner\.Reward: ",
        ),
    ],
)
def test_a_wrong_key_of_what_learns_before_is_named(word, told):
    with pytest.raises(UserError, match=told):
        settings(*SMALL, word)
