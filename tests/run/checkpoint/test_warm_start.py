"""A run that begins with what another has learned has its weights, and needs it no more once it has begun."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from hydrl import envs
from hydrl.errors import UserError
from hydrl.run.checkpoint import archive, warm_start
from tests.conftest import SMALL, SMALL_PPO, digest, killed, logged, loss_of, saved, settings, typed
from train import train

PPO = [*SMALL_PPO, "env=cartpole", "critic.num_cells=[16,16]"]
SAC = [*SMALL, "algo=sac", "env=pendulum", "critic.num_cells=[16,16]", "minibatches.updates=2"]
SAC += ["minibatches.warmup_frames=64", "collector.init_random_frames=64"]
SEEING = [
    *(each for each in SAC if each != "env=pendulum"),
    "env=gym",
    "env.id=tests.fakes.pixel_envs:Aim-v0",
]
SEEING += ["encoder.features=8", "critic.encoder=shared", "collector.num_envs=2"]


@pytest.fixture(scope="module")
def ppo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ppo") / "run"
    train(settings(*PPO, "transforms=normalized", "init_stats_frames=200", run_dir=folder))
    return folder


@pytest.fixture(scope="module")
def sac(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sac") / "run"
    train(settings(*SAC, "total_frames=192", run_dir=folder))
    return folder


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing") / "run"
    train(settings(*SEEING, "total_frames=192", run_dir=folder))
    return folder


@pytest.fixture
def begun(monkeypatch):
    """What a run's loss and normaliser hold once the other's are taken, and the lines that tell of it."""
    found = {}
    apply = warm_start.apply

    def spy(source, env, learner):
        apply(source, env, learner)
        found["loss"] = {
            name: value.clone() for name, value in learner.components["loss"].state_dict().items()
        }
        found["normaliser"] = envs.normalizer_state(env)
        found["source"] = source
        raise UserError("that is enough")

    monkeypatch.setattr(warm_start, "apply", spy)

    def call(*words, folder):
        with pytest.raises(UserError, match="that is enough"):
            train(settings(*words, run_dir=folder))
        return found

    return call


def heads(state, head):
    return {name: value for name, value in state.items() if name.startswith(head)}


def same(ours, theirs, head):
    assert heads(theirs, head)
    assert digest(heads(ours, head)) == digest(heads(theirs, head)), head


def test_all_networks_and_the_normaliser_are_those_of_the_checkpoint(ppo, begun, tmp_path):
    words = [*PPO, "transforms=normalized", "init_stats_frames=200", "seed=5", "optim.lr=1e-5"]
    found = begun(*words, f"init_from.run={ppo}", "init_from.checkpoint=last", folder=tmp_path)
    for head in ("actor_network", "critic_network"):
        same(found["loss"], saved(ppo, "loss"), head)
    assert digest(found["normaliser"]) == digest(saved(ppo, "normaliser"))
    assert found["source"].lineage["init_from"]["taken"] == {"actor": 6, "critic": 6, "normaliser": 2}
    assert found["source"].lineage["init_from"]["left"] == {}
    assert found["source"].frames == 256
    best = begun(*words, f"init_from.run={ppo}", folder=tmp_path)["source"].frames
    assert best == archive.frames_of(archive.find(ppo, "best"))
    at = begun(*words, f"init_from.run={ppo}", "init_from.checkpoint=128", folder=tmp_path)
    assert digest(heads(at["loss"], "critic")) == digest(heads(saved(ppo, "loss", "128"), "critic"))


def test_both_critics_are_taken_and_targets_are_theirs_unless_asked_for(sac, begun, tmp_path):
    then, plain = saved(sac, "loss"), [*SAC, f"init_from.run={sac}", "init_from.checkpoint=last"]
    assert not torch.equal(  # so that taking the one for the other would be seen
        then["qvalue_network_params.module.0.weight"], then["target_qvalue_network_params.module.0.weight"]
    )
    found = begun(*plain, folder=tmp_path)["loss"]
    assert found["qvalue_network_params.module.0.weight"].shape[0] == 2
    same(found, then, "qvalue_network")
    same(found, then, "actor_network")
    for name, value in heads(found, "target_").items():
        assert torch.equal(value, then[name.removeprefix("target_")]), name
    assert found["log_alpha"] == 0.0 != then["log_alpha"]  # the temperature begins anew
    found = begun(*plain, "init_from.parts=[critic,targets]", folder=tmp_path)["loss"]
    same(found, then, "target_")
    same(found, then, "qvalue_network")
    assert digest(heads(found, "actor")) != digest(heads(then, "actor"))


def test_a_relative_takes_what_has_its_names_and_bounds_stay_its_own(sac, begun, tmp_path):
    td3 = [*(word.replace("algo=sac", "algo=td3") for word in SAC), "~transforms.action_scaling"]
    found = begun(*td3, f"init_from.run={sac}", "init_from.checkpoint=last", folder=tmp_path)
    same(found["loss"], saved(sac, "loss"), "qvalue_network")
    assert found["loss"]["actor_network_params.module.1.action_high"] == 2.0
    left = found["source"].lineage["init_from"]["left"]
    assert left["actor.module.0.module.4.weight"] == "[2, 16] there, [1, 16] here"
    assert found["source"].lineage["init_from"]["taken"] == {"actor": 4, "critic": 6}
    assert (
        "2 entries do not fit, not copied: actor.module.0.module.4.weight is [2, 16] there"
        in (found["source"].lines[1])
    )


def test_what_an_actor_shares_here_is_the_other_actor_s_and_not_its_critic_s(tmp_path):
    def parts(encoder: str):
        words = [
            "algo=ppo",
            "env=gym",
            "env.id=tests.fakes.pixel_envs:Dot-v0",
            "encoder.features=4",
            "actor.num_cells=[4]",
        ]
        chosen = settings("~tuned", *words, f"critic.encoder={encoder}", "critic.num_cells=[4]")
        env = envs.make_env(chosen.build("env"), [], seed=0)
        actor = chosen.build("actor")(env)
        return chosen, env, loss_of(chosen, env, actor=actor, critic=chosen.build("critic")(env, actor))

    chosen, _, then = parts("own")
    there = warm_start.by_part(then.state_dict(), chosen.loss.networks)
    _, env, loss = parts("shared")
    source = warm_start.WarmStart("run", tmp_path, 1, there, {}, chosen.loss.networks, ["critic", "actor"])
    warm_start.apply(source, env, SimpleNamespace(components={"loss": loss}))
    same(loss.state_dict(), then.state_dict(), "actor_network")
    assert source.lineage["init_from"]["taken"] == {"actor": 8, "critic": 4}
    weight = "critic.module.0.module.0.module.readers.pixels.net.0.0.weight"
    assert source.lineage["init_from"]["left"][weight] == "the actor's here, which is shared"


def test_an_encoder_that_critics_share_is_the_actor_s_and_has_a_target(seeing, begun, tmp_path):
    words = [*SEEING, f"init_from.run={seeing}", "init_from.checkpoint=last"]
    found, there = begun(*words, folder=tmp_path), saved(seeing, "loss")
    same(found["loss"], there, "encoder_params")
    assert found["source"].lineage["init_from"]["left"] == {}
    target = heads(found["loss"], "target_encoder")
    copied = {name.removeprefix("target_"): each for name, each in target.items()}
    assert digest(copied) == digest(heads(there, "encoder_params"))
    asked = begun(*words, "init_from.parts=[targets]", folder=tmp_path)["loss"]
    same(asked, there, "target_encoder")
    assert digest(heads(asked, "encoder_params")) != digest(heads(there, "encoder_params"))


def test_of_a_task_of_another_size_what_fits_is_taken_and_the_rest_is_named(ppo, begun, tmp_path):
    words = ["env=acrobot", "transforms=normalized", "init_stats_frames=200", "init_from.checkpoint=last"]
    found = begun(*PPO, *words, f"init_from.run={ppo}", folder=tmp_path)
    told = found["source"].lineage["init_from"]
    assert told["taken"]["critic"] == 5
    assert told["left"]["critic.module.0.weight"] == "[16, 4] there, [16, 6] here"
    assert torch.equal(
        found["loss"]["critic_network.module.2.weight"],
        saved(ppo, "loss")["critic_network.module.2.weight"],
    )
    assert "their statistics are not copied" in found["source"].lines[-1]


def test_running_statistics_run_on_for_as_long_as_in_a_new_run(run):
    words = [*PPO, "transforms=running_norm"]
    first = run(*words, "total_frames=128")
    count = next(each for name, each in saved(first, "normaliser")["0"].items() if name.startswith("count"))
    second = run(*words, f"init_from.run={first}", "seed=3", folder="second")
    state = saved(second, "normaliser")["0"]
    assert int(state["earlier"]) == int(count)
    seen = next(each for name, each in state.items() if name.startswith("count"))
    assert 0.75 * 256 <= int(seen) - int(count) < 256 + 8


def test_a_run_begun_so_is_resumed_exactly_without_the_other(ppo, tmp_path):
    other = shutil.copytree(ppo, tmp_path / "other = 1, a")
    words = [*PPO, "transforms=normalized", "init_stats_frames=200", f"init_from={other}", "seed=1"]
    done = typed(*words, "init_from.parts=[actor,normaliser]", f"hydra.run.dir={tmp_path / 'whole'}")
    assert done.returncode == 0, done.stderr
    assert "after 256 frames, copied entries: actor (6), normaliser (2)" in done.stdout.replace("\n", " ")
    told = json.loads((tmp_path / "whole" / "summary.json").read_text())["init_from"]
    assert told["run"] == str(other)
    assert told["taken"] == {"actor": 6, "normaliser": 2}
    killed(tmp_path / "whole", tmp_path / "halves")
    shutil.rmtree(other)
    done = typed(f"resume={tmp_path / 'halves'}")
    assert done.returncode == 0, done.stderr
    for part in ("actor", "loss", "optimizer", "rng"):
        assert digest(saved(tmp_path / "halves", part)) == digest(saved(tmp_path / "whole", part)), part
    assert logged(tmp_path / "halves") == logged(tmp_path / "whole")
    assert json.loads((tmp_path / "halves" / "summary.json").read_text())["init_from"] == told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init_from=nowhere"], "init_from=nowhere: no such folder. Write a run's, or one of its"),
        (["init_from="], "init_from=: no run is named. Write init_from=DIR, or init_from=null for none"),
        (["init_from=tests"], "init_from=tests: no run with a checkpoint"),
        (["init_from.parts=[actor]"], "init_from.parts=[actor]: no run is named. Add init_from=DIR"),
        (["init_from=RUN", "init_from.parts=[actr]"], "init_from.parts"),
        (
            ["init_from=RUN", "init_from.parts=[value]"],
            "this run has no value. Its networks are actor, critic",
        ),
        (
            ["init_from=RUN", "init_from.parts=[targets]"],
            "run has no targets; it has actor, critic, normalis",
        ),
        (
            ["init_from=RUN", "init_from.checkpoint=7"],
            "checkpoint=7: no such checkpoint. Use one of best, last, 128",
        ),
        (["init_from=RUN", "init_from.checkpoint=new"], "init_from.checkpoint=new: should be 'best'"),
        (
            ["init_from=RUN/checkpoints/checkpoint-000000000256.torchrl", "init_from.checkpoint=last"],
            "Leave one",
        ),
        (["init_from=RUN", "transforms=plain", "init_from.parts=[normaliser]"], "this run has no normaliser"),
        (
            ["init_from=RUN", "actor.num_cells=[3]", "init_from.parts=[actor]", "env=acrobot"],
            "no layer of it fits this run. It trained ppo on cartpole: actor.",
        ),
        (["resume=RUN", "init_from=RUN"], "starts a new run, and resume="),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_begun_with_is_said_in_a_line_and_leaves_no_folder(ppo, tmp_path, words, message):
    words = [word.replace("RUN", str(ppo)) for word in words]
    chosen = [] if words[0].startswith("resume") else [*PPO, f"hydra.run.dir={tmp_path / 'new'}"]
    done = typed(*chosen, *words)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_a_damaged_checkpoint_is_refused(ppo, tmp_path):
    other = shutil.copytree(ppo, tmp_path / "other")
    newest = archive.find(other, "last")
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.raises(UserError, match=rf"^init_from={newest}: .* is damaged"):
        warm_start.find_warm_start(settings(*PPO, f"init_from.run={newest}").shown)


@pytest.mark.parametrize("normaliser", [{"0": 3}, {"0": {"loc": 3}}, [1]])
def test_what_a_stranger_put_there_is_refused_in_a_line(ppo, tmp_path, normaliser):
    metadata = archive.verify(archive.find(ppo, "last"))
    states = {"loss": saved(ppo, "loss"), "normaliser": normaliser}
    made = archive.save(tmp_path, states, metadata, keep=1)
    with pytest.raises(UserError, match=rf"^init_from={tmp_path}: {made} (is not as hydrl|cannot be read)"):
        warm_start.find_warm_start(settings(*PPO, f"init_from.run={tmp_path}").shown)


@pytest.mark.parametrize(
    ("exploration", "frames", "now", "then"),
    [
        ({"eps_init": 1.0, "eps_end": 0.1}, 0, "exploration.eps_init=1.0", "exploration.eps_init=0.1"),
        (
            {"sigma_init": 1.0, "sigma_end": 0.1},
            0,
            "exploration.sigma_init=1.0",
            "exploration.sigma_init=0.1",
        ),
        ({}, 64, "collector.init_random_frames=64", "collector.init_random_frames=0"),
    ],
)
def test_how_a_run_explores_at_first_is_said(exploration, frames, now, then):
    line = f"exploration starts anew, {now}; to act by the actor's weights from the start, write {then}"
    assert warm_start.describe_exploration(exploration, {"init_random_frames": frames}) == line
    ended = dict.fromkeys(exploration, 0.1)
    assert warm_start.describe_exploration(ended, {"init_random_frames": 0}) == ""


def test_a_greedy_policy_that_is_taken_into_dqn_is_said_to_explore(run, capsys):
    words = [*SMALL, "algo=dqn", "env=cartpole", "total_frames=64"]
    first = run(*words, folder="first")
    assert "exploration starts anew" not in capsys.readouterr().out
    run(*words, f"init_from.run={first}", folder="second")
    assert "exploration starts anew, exploration.eps_init=1.0; to act" in " ".join(
        capsys.readouterr().out.split()
    )
    run(*words, f"init_from.run={first}", "exploration.eps_init=0.05", folder="third")
    assert "exploration starts anew" not in capsys.readouterr().out
