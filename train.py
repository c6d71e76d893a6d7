"""Trains one agent: Hydra chooses the parts, TorchRL does the work, this file wires them.

python train.py algo=ppo env=inverted_double_pendulum
python train.py -m algo=ppo,dqn env=cartpole seed=0,1,2 logger=wandb
"""

import sys
from contextlib import closing
from functools import partial
from itertools import islice

import hydra
from omegaconf import DictConfig

from hydrl.config import command_line
from hydrl.config.settings import CONFIGS, Settings, check_action_space, load
from hydrl.run import headless, resume
from hydrl.run.resume import Origin
from hydrl.study import sweep


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
@sweep.job
def main(cfg: DictConfig) -> None:
    """One run: everything a user can get wrong is checked before anything starts."""
    settings = load(cfg)
    origin = resume.origin(settings)
    if not resume.finished(settings, origin):
        command_line.keep_command(cfg)
        train(settings, origin)


def train(settings: Settings, origin: Origin | None = None) -> None:
    """Builds the parts in the documents' order, then acts, learns, publishes, logs, evaluates and saves."""
    if settings.eval.video:
        headless.prepare("eval.video")  # before anything below imports MuJoCo
    # Imported here so that a typo is answered at once, and not after PyTorch's seconds.
    from tensordict.nn import TensorDictSequential
    from torchrl.envs.utils import check_env_specs

    from hydrl.errors import DivergedError, Interrupted, WorkerError
    from hydrl.loop.evaluation import Evaluation, Evaluator
    from hydrl.loop.metrics import exploration_metrics, timed
    from hydrl.loop.update import make_update
    from hydrl.parts import environments
    from hydrl.parts.collectors import shut_down_after
    from hydrl.parts.losses import make_loss
    from hydrl.run import process
    from hydrl.run.films import Camera
    from hydrl.run.record import Record
    from hydrl.run.state import TrainingState

    started, build = process.start_time(), settings.build
    seed = origin.env_seed if origin else settings.seed  # what a checkpoint restores, it restores over this
    device = process.prepare(
        seed,
        settings.device,
        settings.torch_threads,
        compile=settings.compile,
        cudagraph=settings.cudagraph,
    )

    # The environment is seeded before anything resets it; its random frames fix the normaliser.
    make_env = partial(environments.make_env, build("env"), settings.transform_builders, device=device)
    num_envs = settings.collector["num_envs"]
    env = make_env(num_envs=num_envs)
    check_action_space(settings, environments.action_kind(env))
    env.set_seed(seed)
    environments.initialise_normalisers(
        env, settings.init_stats_frames, origin.normaliser if origin else None
    )
    check_env_specs(env)

    # A part set to none builds None.
    actor = build("actor")(env)
    critic = build("critic")(env)
    exploration = build("exploration")(env.action_spec_unbatched)
    policy = TensorDictSequential(actor, exploration.to(device)) if exploration else actor
    buffer = build("buffer")()
    loss = make_loss(build("loss"), settings.loss.value_estimator, actor, critic)
    target = build("target")(loss)
    optimizer = build("optim")(loss.parameters())
    schedule = build("schedule")(optimizer, settings.anneal_batches)
    update = make_update(
        loss,
        optimizer,
        max_grad_norm=settings.max_grad_norm,
        target=target,
        compile=settings.compile,
        cudagraph=settings.cudagraph,
    )
    minibatches = build("minibatches")

    evaluate = Evaluator(make_env, actor, seed=settings.seed, max_steps=settings.eval.max_steps)
    camera = Camera(evaluate, settings)
    check = partial(evaluate, episodes=settings.eval.episodes)
    confirm = partial(evaluate, episodes=settings.eval.final_episodes, stream=1)  # fresh episodes
    make_worker_env = partial(make_env, num_envs=num_envs, normaliser=environments.normaliser_state(env))
    make_collector = partial(build("collector"), env, make_worker_env, policy, seed=seed, device=device)
    with (
        process.Stop() as stop,
        shut_down_after(make_collector(stop=stop.here)) as collector,
        closing(evaluate),
        closing(Record(settings, started, origin)) as record,
    ):
        state = TrainingState(
            settings,
            record,
            env=env,
            collector=collector,
            buffer=buffer,
            optimizer=optimizer,
            schedule=schedule,
            actor=actor,
            loss=loss,
            exploration=exploration,
            target=target,
        )

        def confirmed() -> Evaluation | None:
            """The closing evaluation, where this moment's was a solution and fresh episodes confirm it."""
            if not (record.solved and settings.eval.stop_when_solved):
                return None
            fresh = confirm(environments.normaliser_state(env), frames=record.frames)
            return fresh if record.solves(fresh) else None

        try:
            if origin:
                state.load(origin)
            final = confirmed()  # a resumed run may have been stopped right here
            for batch in timed("time/collect", islice(collector, 0 if final else record.batches_left)):
                frames = record.collected(batch)
                losses = [update(each) for each in timed("time/sample", minibatches(batch, buffer, loss))]
                record.learned(batch, losses)
                if schedule:
                    schedule.step()
                if exploration:
                    exploration.step(batch.numel())
                collector.update_policy_weights_()

                if evaluating := record.due(settings.eval.every_frames):
                    record.evaluated(check(environments.normaliser_state(env), frames=frames))
                    final = confirmed()
                if evaluating or record.due(settings.log_every_frames):
                    learning_rate = optimizer.param_groups[0]["lr"]
                    record.write({"train/learning_rate": learning_rate, **exploration_metrics(exploration)})
                if evaluating:
                    camera.film(record, environments.normaliser_state(env), stop.here)
                if record.best_at == frames or record.due(settings.checkpoint_every_frames):
                    state.save()
                if final:
                    break
                stop.here()
            state.save()
            final = final or confirm(environments.normaliser_state(env), frames=record.frames)
            camera.film(record, environments.normaliser_state(env), stop.here, final=True)
            record.finish(final)
        except Interrupted as interruption:
            state.save(whole=not interruption.midway)
            record.finish(None, "interrupted")
            raise
        except WorkerError:
            state.save()
            record.finish(None, "failed")
            raise
        except DivergedError as divergence:
            divergence.frames, divergence.saved_at = record.frames, state.saved_at
            record.finish(None, "diverged")
            raise


if __name__ == "__main__":
    sys.exit(sweep.close(command_line.run(main)))
