"""Trains one agent: Hydra chooses the components, TorchRL does the work, this file wires them.

python train.py -m algo=ppo,dqn env=cartpole seed=0,1,2 logger=wandb
"""

import signal
from contextlib import closing
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the rest is imported

import hydra
from omegaconf import DictConfig

from hydrl.config import CONFIGS, command_line
from hydrl.config.settings import Settings, load
from hydrl.run import Session, rendering, run_folder
from hydrl.run.checkpoint.resume import ResumePoint, find_resume_point, is_finished
from hydrl.run.checkpoint.resume_command import expand
from hydrl.run.components import RunComponents
from hydrl.run.logging import console


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
@command_line.job
def main(cfg: DictConfig) -> None:
    """One run, in a process of its own."""
    start(cfg)


def start(cfg: DictConfig, session: Session | None = None) -> None:
    """Checks everything a user can get wrong, then trains."""
    settings = load(cfg)
    with run_folder.RunLock() as lock:
        point = find_resume_point(settings.shown, settings.keep_auto_values, lock.acquire)
        if not is_finished(settings.shown, point):
            with run_folder.hydra_files(cfg):
                train(settings, point, session)


def build(settings: Settings, point: ResumePoint | None) -> RunComponents:
    """Builds a run's components in the documents' order; imports PyTorch, now that no key is wrong."""
    from tensordict.nn import TensorDictSequential

    from hydrl import envs, specs
    from hydrl.datasets.digest import record_data
    from hydrl.experience.buffers import prepare_buffer
    from hydrl.run import process
    from hydrl.run.checkpoint import replay_buffer, user_classes, warm_start
    from hydrl.run.logging.run_logger import RunInfo
    from hydrl.training import Metrics, PolicyEvaluator, bind_accepted, make_learners

    make, saved = settings.build, settings.shown
    seed = point.env_seed if point else settings.seed  # what a checkpoint restores, it restores over this
    device = process.prepare(seed, settings.device, int(settings.torch_threads), **settings.compiling)
    source = None if point else warm_start.find_warm_start(saved)  # another run, for its weights

    # The environment is seeded before anything resets it; its random frames fix the normalizer.
    make_env = partial(envs.make_env, make("env"), settings.transform_builders, device=device)
    env = make_env(num_envs=settings.num_envs)
    family, known = envs.find_family(make("env")), point.normaliser if point else None
    settings.check_env(family.action_kind(env), [*specs.agent_groups(env)], alike=specs.are_alike(env))
    normaliser = family.prepare(env, seed, settings.init_stats_frames, known, settings.env["_target_"])
    buffer = prepare_buffer(make("buffer")(), env)
    size = replay_buffer.check_size(buffer, env, settings.steps_per_row, Path(settings.run_dir))
    actor = make("actor")(env)
    networks = {name: actor if name == "actor" else make(name)(env, actor) for name in settings.networks}
    exploration = specs.make_exploration(make("exploration"), env, actor)
    policy = TensorDictSequential(actor, exploration.to(device)) if exploration else actor
    data = bind_accepted(make("data"), make_env=make_env)(env, actor)  # an offline dataset
    rows, classes = record_data(data, saved, point), user_classes.record_classes(saved, point or source)
    info = RunInfo(**settings.identity, start=point or source, data=rows, classes=classes, size_note=size)
    learners = make_learners(settings.learners, networks, specs.action_spec(env), buffer, data)
    metrics = Metrics(learners, exploration, data if settings.from_data else None)
    warm_start.apply(source, env, learners[-1])
    schedule = make("schedule")(learners[-1].optimizer, settings.anneal_batches)
    make_run_env = partial(make_env, num_envs=settings.num_envs, normalizer=normaliser())
    collector = bind_accepted(make("collector"), data=data)
    collect = partial(collector, env, make_run_env, policy, seed=seed, device=device)
    cap, play = settings.eval.max_steps, family.evaluate
    measure = family.make_measure(env, actor, nash=settings.eval.nash)
    evaluate = PolicyEvaluator(make_env, actor, normaliser, play, measure, seed=settings.seed, max_steps=cap)
    return RunComponents(
        info, env, networks, exploration, buffer, learners, schedule, metrics, make_run_env, collect, evaluate
    )


def train(settings: Settings, point: ResumePoint | None = None, session: Session | None = None) -> None:
    """Builds the components, then acts, learns, anneals, publishes, evaluates, logs and saves."""
    rendering.prepare("eval.video", wanted=settings.eval.video)  # before anything below imports MuJoCo
    from hydrl.experience.collectors import shut_down_after
    from hydrl.run.checkpoint.checkpointer import Checkpointer
    from hydrl.run.eval_schedule import EvalSchedule
    from hydrl.run.logging.run_logger import RunLogger
    from hydrl.run.process import Stop
    from hydrl.run.video import EpisodeVideo
    from hydrl.training import Clock, Progress, anneal, learn, train_mode

    session, score, keep = session or Session.of_job(), settings.eval, settings.keep_checkpoints
    clock, run, run_dir = Clock(session.began), build(settings, point), Path(settings.run_dir)
    progress, metrics = Progress(settings.batches, settings.frames_per_batch, *settings.goal), run.metrics
    video = EpisodeVideo(run.evaluate, run_dir, progress, clock, score.frames_between_videos)
    with (
        Stop(session.stop_requested) as stop,
        shut_down_after(run.collect(stop=stop.check)) as collector,
        closing(RunLogger(run_dir, settings.logger_builders, run.info, progress, metrics, clock)) as logger,
        closing(EvalSchedule(run.evaluate, progress, clock, *score.counts, stop.check)) as evaluations,
    ):
        components = run.with_state | {"collector": collector, "looks": evaluations, "record": logger}
        components |= {"progress": progress, "metrics": metrics, "clock": clock}
        checkpoints = Checkpointer(run_dir, components, run.make_env, logger.metadata, keep, logger.say)
        evaluations.backend = settings.eval_backend(run.evaluate, stop=stop.check)
        evaluations.return_to, evaluations.say = checkpoints.return_to, logger.say
        evaluations.on_result = logger.flush, checkpoints.set_score
        with checkpoints.saved_on_interrupt(logger.finish), stop.as_interrupt():
            checkpoints.load(point)
            evaluations.join()
            batches = clock.timed(collector)
            while not progress.confirmed(evaluations.evaluate_final, logger.say) and progress.batches_left:
                checkpoints.maybe_save(settings.checkpoint_every_frames)
                batch = next(batches)
                progress.collected(batch.numel())
                with train_mode(run.networks.values()):
                    *extra_losses, losses = learn(run.learners, batch, clock)
                progress.learned(len(losses))
                metrics.learned(batch, losses, *extra_losses)
                anneal(run.schedule, run.exploration, batch.numel())
                collector.publish()
                if evaluations.maybe_start() or progress.due(settings.log_every_frames):
                    logger.write()
                video.maybe_record(stop.check, logger.say, logger.show)
                evaluations.join()
                stop.check()
            checkpoints.save()
            video.record_final_policy(stop.check, logger.say, logger.show)
            logger.finish(evaluations.evaluate_final(progress.frames))


if __name__ == "__main__":
    console.outlive_readers()
    command_line.exit_process(command_line.run(main, expand))
