"""Trains one agent: Hydra chooses the parts, TorchRL does the work, this file wires them.

python train.py algo=ppo env=inverted_double_pendulum
python train.py -m algo=ppo,dqn env=cartpole seed=0,1,2 logger=wandb
"""

import gc
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
    if "torch" not in sys.modules:
        gc.disable()  # importing it makes much and no garbage; process.prepare turns it on again
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

    from hydrl.loop import Clock, Episodes, Evaluator, Metrics, Progress, Update, anneal, learning, timed
    from hydrl.parts import environments, specs
    from hydrl.parts.experience import collectors
    from hydrl.parts.experience.buffers import in_its_own_unit
    from hydrl.parts.losses import make_loss, parameter_groups
    from hydrl.run import memory, process
    from hydrl.run.films import Camera
    from hydrl.run.record import Record
    from hydrl.run.state import TrainingState

    clock, build, given, score = Clock(), settings.build, settings.loss, settings.eval
    seed = origin.env_seed if origin else settings.seed  # what a checkpoint restores, it restores over this
    compiling = {"compile": settings.compile is True, "cudagraph": settings.cudagraph}
    device = process.prepare(seed, settings.device, int(settings.torch_threads), **compiling)

    # The environment is seeded before anything resets it; its random frames fix the normaliser.
    make_env = partial(environments.make_env, build("env"), settings.transform_builders, device=device)
    env = make_env(num_envs=settings.num_envs)
    check_action_space(settings, specs.action_kind(env))
    env.set_seed(seed)
    environments.initialise_normalisers(env, settings.init_stats_frames, resume.normaliser(origin))
    check_env_specs(env)
    normaliser = partial(environments.normaliser_state, env)

    # The loss learns these networks; another part that was not chosen builds None.
    actor, action_spec = build("actor")(env), specs.action_spec(env)
    parts = {part: actor if part == "actor" else build(part)(env, actor) for part in settings.networks}
    exploration = build("exploration")(action_spec)
    policy = TensorDictSequential(actor, exploration.to(device)) if exploration else actor
    buffer = in_its_own_unit(build("buffer")(), env)
    memory.require_memory(buffer, env)
    loss = make_loss(build("loss"), parts, action_spec, given.networks, given.keys, given.value_estimator)
    target = build("target")(loss)
    optimizer = build("optim")(parameter_groups(loss, given.param_groups))
    schedule = build("schedule")(optimizer, settings.anneal_batches)
    norm, kl = settings.max_grad_norm, settings.target_kl
    update = Update(
        loss, optimizer, target, given.skip, given.every, max_grad_norm=norm, target_kl=kl, **compiling
    )
    minibatches = build("minibatches")(buffer, loss)
    make_worker_env = partial(make_env, num_envs=settings.num_envs, normaliser=normaliser())
    make_collector = partial(build("collector"), env, make_worker_env, policy, seed=seed, device=device)

    evaluate = Evaluator(make_env, actor, normaliser, seed=settings.seed, max_steps=score.max_steps)
    evaluate_closing = partial(evaluate, episodes=score.final_episodes, drawn=Episodes.CLOSING)
    progress = Progress(settings.batches, settings.frames_per_batch, score.solved_at, score.stop_when_solved)
    metrics = Metrics(update, exploration)
    camera = Camera(evaluate, settings)

    with (
        process.Stop() as stop,
        collectors.shut_down_after(make_collector(stop=stop.here)) as collector,
        closing(evaluate),
        closing(Record(settings, progress, metrics, clock, origin)) as record,
    ):
        learner = {"actor": actor, "loss": loss, "target": target, "optimizer": optimizer, "update": update}
        learner |= {"exploration": exploration, "schedule": schedule, "minibatches": minibatches}
        state = TrainingState(record, env, collector, buffer, learner, make_worker_env)
        with state.saved_if_cut_short(), stop.blamed():
            if origin:
                state.load(origin)
            batches = timed("time/collect", collector)
            while not progress.confirmed(evaluate_closing, record.say) and progress.batches_left:
                if progress.improved or progress.due(settings.checkpoint_every_frames):
                    state.save()
                batch = next(batches)
                progress.collected(batch.numel())
                with learning(parts.values()):
                    losses = update.over(timed("time/sample", minibatches(batch)))
                progress.learned(len(losses))
                metrics.learned(batch, losses)
                anneal(schedule, exploration, batch.numel())
                collector.publish()

                if evaluation_due := progress.due(score.every_frames):
                    progress.evaluated(evaluate(progress.frames, score.episodes), clock.elapsed)
                if evaluation_due or progress.due(settings.log_every_frames):
                    record.write()
                camera.film(record, stop.here)
                stop.here()
            state.save()
            camera.film(record, stop.here, final=True)
            record.finish(evaluate_closing(progress.frames))


if __name__ == "__main__":
    screen.outlive_readers()
    sys.exit(command_line.run(main, resume.expand))
