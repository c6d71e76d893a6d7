"""Trains one agent: Hydra chooses the parts, TorchRL does the work, this file wires them.

python train.py algo=ppo env=inverted_double_pendulum
python train.py -m algo=ppo,dqn env=cartpole seed=0,1,2 logger=wandb
"""

import sys
from contextlib import closing
from functools import partial

import hydra
from omegaconf import DictConfig

from hydrl import cli
from hydrl.config import CONFIGS, Settings, check_action_space, load


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
@cli.job
def main(cfg: DictConfig) -> None:
    """One run: everything a user can get wrong is checked before anything starts."""
    train(load(cfg))


def train(settings: Settings) -> None:
    """Builds the parts in the documents' order, then acts, learns, publishes, logs, evaluates and saves."""
    # Imported here so that a typo is answered at once, and not after PyTorch's seconds.
    from tensordict.nn import TensorDictSequential
    from torchrl.envs.utils import check_env_specs

    from hydrl import envs, learning, runtime
    from hydrl.collectors import shut_down_after
    from hydrl.errors import Interrupted
    from hydrl.evaluation import Evaluator
    from hydrl.metrics import due, timed
    from hydrl.record import Record

    started, seed, build = runtime.start_time(), settings.seed, settings.build
    device = runtime.prepare(
        seed,
        settings.device,
        settings.torch_threads,
        compile=settings.compile,
        cudagraph=settings.cudagraph,
    )

    # The environment is seeded before anything resets it; its random frames fix the normaliser.
    make_env = partial(envs.make_env, build("env"), settings.transform_builders, device=device)
    num_envs = settings.collector["num_envs"]
    env = make_env(num_envs=num_envs)
    check_action_space(settings, envs.action_kind(env))
    env.set_seed(seed)
    envs.initialise_normalisers(env, settings.init_stats_frames)
    check_env_specs(env)

    # A part set to none builds None.
    actor = build("actor")(env)
    critic = build("critic")(env)
    exploration = build("exploration")(env.action_spec_unbatched)
    policy = TensorDictSequential(actor, exploration.to(device)) if exploration else actor
    buffer = build("buffer")()
    loss = learning.make_loss(build("loss"), settings.loss.value_estimator, actor, critic)
    target = build("target")(loss)
    optimizer = build("optim")(loss.parameters())
    schedule = build("schedule")(optimizer, settings.batches)
    update = learning.make_update(
        loss,
        optimizer,
        max_grad_norm=settings.max_grad_norm,
        target=target,
        compile=settings.compile,
        cudagraph=settings.cudagraph,
    )
    minibatches = build("minibatches")

    evaluate = Evaluator(make_env, actor, seed=seed, max_steps=settings.eval.max_steps)
    check = partial(evaluate, episodes=settings.eval.episodes)
    confirm = partial(evaluate, episodes=settings.eval.final_episodes, stream=1)  # fresh episodes
    make_worker_env = partial(make_env, num_envs=num_envs, normaliser=envs.normaliser_state(env))
    collector = build("collector")(
        env,
        make_worker_env,
        policy,
        total_frames=settings.batches * settings.frames_per_batch,
        seed=seed,
        device=device,
    )
    frames, final = 0, None
    with (
        shut_down_after(collector),
        closing(evaluate),
        closing(Record(settings, started, actor, critic)) as record,
        runtime.stop_on_signals(),
    ):
        try:
            for batch in timed("time/collect", collector):
                before, frames = frames, frames + batch.numel()
                losses = [update(each) for each in timed("time/sample", minibatches(batch, buffer, loss))]
                if schedule:
                    schedule.step()
                if exploration:
                    exploration.step(batch.numel())
                collector.update_policy_weights_()
                record.learned(batch, losses)

                if evaluating := due(settings.eval.every_frames, frames, before):
                    normaliser = envs.normaliser_state(env)
                    solved = record.evaluated(check(normaliser, frames=frames), normaliser)
                    if solved and settings.eval.stop_when_solved:
                        fresh = confirm(normaliser, frames=frames)
                        final = fresh if record.solves(fresh) else None
                if evaluating or due(settings.log_every_frames, frames, before):
                    record.write({"train/learning_rate": optimizer.param_groups[0]["lr"]})
                if due(settings.checkpoint_every_frames, frames, before):
                    record.save("last", envs.normaliser_state(env))
                if final:
                    break
            normaliser = envs.normaliser_state(env)
            record.save("last", normaliser)
            record.finish(final or confirm(normaliser, frames=frames))
        except Interrupted:
            record.save("last", envs.normaliser_state(env))
            record.finish(None, note=" (interrupted)")
            raise


if __name__ == "__main__":
    sys.exit(cli.run(main, CONFIGS))
