"""Trains one agent: Hydra chooses the parts, TorchRL does the work, this file wires them.

python train.py algo=ppo env=inverted_double_pendulum
python train.py -m algo=ppo,dqn env=cartpole seed=0,1,2 logger=wandb
"""

import signal
import sys
from contextlib import closing
from functools import partial

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the rest is imported

import hydra
from omegaconf import DictConfig

from hydrl.config import CONFIGS, command_line
from hydrl.config.settings import Settings, check_action_space, load
from hydrl.run import folder, headless, resume, screen


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
@command_line.job
def main(cfg: DictConfig) -> None:
    """One run: everything a user can get wrong is checked before anything starts."""
    settings = load(cfg)
    origin = resume.origin(settings)
    if not resume.finished(settings, origin):
        with folder.begun(cfg):
            train(settings, origin)


def train(settings: Settings, origin: resume.Origin | None = None) -> None:
    """Builds the parts in the documents' order, then acts, learns, publishes, evaluates, logs and saves."""
    if settings.eval.video:
        headless.prepare("eval.video")  # before anything below imports MuJoCo
    # Imported here so that a typo is answered at once, and not after PyTorch's seconds.
    from tensordict.nn import TensorDictSequential
    from torchrl.envs.utils import check_env_specs

    from hydrl.loop import Clock, Episodes, Evaluator, Metrics, Progress, make_update, timed
    from hydrl.parts import collectors, environments
    from hydrl.parts.losses import make_loss
    from hydrl.run import process
    from hydrl.run.films import Camera
    from hydrl.run.profile import profiled
    from hydrl.run.record import Record
    from hydrl.run.state import TrainingState

    clock, build, score = Clock(), settings.build, settings.eval
    seed = origin.env_seed if origin else settings.seed  # what a checkpoint restores, it restores over this
    compiling = {"compile": settings.compile, "cudagraph": settings.cudagraph}
    device = process.prepare(seed, settings.device, settings.torch_threads, **compiling)

    # The environment is seeded before anything resets it; its random frames fix the normaliser.
    make_env = partial(environments.make_env, build("env"), settings.transform_builders, device=device)
    env = make_env(num_envs=settings.num_envs)
    check_action_space(settings, environments.action_kind(env))
    env.set_seed(seed)
    environments.initialise_normalisers(env, settings.init_stats_frames, resume.normaliser(origin))
    check_env_specs(env)
    normaliser = partial(environments.normaliser_state, env)

    # A part that was not chosen builds None.
    actor = build("actor")(env)
    critic = build("critic")(env, actor)
    exploration = build("exploration")(env.action_spec_unbatched)
    policy = TensorDictSequential(actor, exploration.to(device)) if exploration else actor
    buffer = build("buffer")()
    loss = make_loss(build("loss"), settings.loss.value_estimator, actor, critic)
    target = build("target")(loss)
    optimizer = build("optim")(loss.parameters())
    schedule = build("schedule")(optimizer, settings.anneal_batches)
    update = make_update(loss, optimizer, target, max_grad_norm=settings.max_grad_norm, **compiling)
    minibatches = build("minibatches")(buffer, loss)
    make_worker_env = partial(make_env, num_envs=settings.num_envs, normaliser=normaliser())
    make_collector = partial(build("collector"), env, make_worker_env, policy, seed=seed, device=device)

    evaluate = Evaluator(make_env, actor, normaliser, seed=settings.seed, max_steps=score.max_steps)
    evaluate_closing = partial(evaluate, episodes=score.final_episodes, drawn=Episodes.CLOSING)
    progress = Progress(settings.batches, settings.frames_per_batch, score.solved_at, score.stop_when_solved)
    metrics = Metrics(optimizer, exploration)
    camera = Camera(evaluate, settings)

    with (
        process.Stop() as stop,
        collectors.shut_down_after(make_collector(stop=stop.here)) as collector,
        closing(evaluate),
        closing(Record(settings, progress, metrics, clock, origin)) as record,
        profiled(record.directory, settings.batches, settings.profile_batches) as profile,
    ):
        learner = {"actor": actor, "loss": loss, "exploration": exploration, "target": target}
        learner |= {"optimizer": optimizer, "schedule": schedule}
        state = TrainingState(record, env, collector, buffer, learner)
        with state.saved_if_cut_short():
            if origin:
                state.load(origin)
            batches = timed("time/collect", collector)
            while progress.batches_left and not progress.confirmed(evaluate_closing):
                batch = next(batches)
                progress.collected(batch.numel())
                losses = [update(minibatch) for minibatch in timed("time/sample", minibatches(batch))]
                progress.learned(len(losses))
                metrics.learned(batch, losses)
                if schedule:
                    schedule.step()
                if exploration:
                    exploration.step(batch.numel())
                collector.update_policy_weights_()

                if evaluation_due := progress.due(score.every_frames):
                    progress.evaluated(evaluate(progress.frames, score.episodes), clock.elapsed)
                if evaluation_due or progress.due(settings.log_every_frames):
                    record.write()
                camera.film(record, stop.here)
                if progress.improved or progress.due(settings.checkpoint_every_frames):
                    state.save()
                profile()
                stop.here()
            state.save()
            camera.film(record, stop.here, final=True)
            record.finish(evaluate_closing(progress.frames))


if __name__ == "__main__":
    screen.outlive_readers()
    sys.exit(command_line.run(main, resume.expand))
