"""Trains one agent: Hydra chooses the components, TorchRL does the work, this file wires them.

python train.py -m algo=ppo,dqn env=cartpole seed=0,1,2 logger=wandb
"""

import gc
import signal
import sys
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
from hydrl.run.logging import console


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
@command_line.job
def main(cfg: DictConfig) -> None:
    """One run, in a process of its own."""
    if "torch" not in sys.modules:
        gc.disable()  # importing it makes much and no garbage; process.prepare turns it on again
    start(cfg)


def start(cfg: DictConfig, session: Session | None = None) -> None:
    """Everything a user can get wrong is checked before anything starts."""
    settings = load(cfg)
    with run_folder.RunLock() as lock:
        point = find_resume_point(settings.shown, settings.keep, lock.acquire)
        if not is_finished(settings.shown, point):
            with run_folder.hydra_files(cfg):
                train(settings, point, session)


def train(settings: Settings, point: ResumePoint | None = None, session: Session | None = None) -> None:
    """Builds the components in the documents' order, then acts, learns, evaluates, logs and saves."""
    rendering.prepare("eval.video", wanted=settings.eval.video)  # before anything below imports MuJoCo
    # Imported here so that a typo is answered at once, and not after PyTorch's seconds.
    from tensordict.nn import TensorDictSequential

    from hydrl import envs, specs
    from hydrl.datasets.digest import record_data
    from hydrl.experience import buffers, collectors
    from hydrl.run import process
    from hydrl.run.checkpoint import replay_buffer, warm_start
    from hydrl.run.checkpoint.checkpointer import Checkpointer
    from hydrl.run.checkpoint.user_classes import record_classes
    from hydrl.run.eval_schedule import EvalSchedule
    from hydrl.run.logging.run_logger import RunInfo, open_logger
    from hydrl.run.video import EpisodeVideo
    from hydrl.training import Clock, Metrics, Progress, anneal, timed, train_mode
    from hydrl.training.evaluator import PolicyEvaluator, SeedStream
    from hydrl.training.learner import bind_accepted, learn, make_learners

    session, build, score, saved = session or Session(), settings.build, settings.eval, settings.shown
    clock, run_dir = Clock(session.began), Path(settings.run_dir)
    seed = point.env_seed if point else settings.seed  # what a checkpoint restores, it restores over this
    device = process.prepare(seed, settings.device, int(settings.torch_threads), **settings.compiling)
    source = None if point else warm_start.find_warm_start(saved)  # another run, for its weights

    # The environment is seeded before anything resets it; its random frames fix the normalizer.
    make_env = partial(envs.make_env, build("env"), settings.transform_builders, device=device)
    env = make_env(num_envs=settings.num_envs)
    family, known = envs.find_family(build("env")), point.normaliser if point else None
    settings.check_env(family.action_kind(env), [*specs.agent_groups(env)], alike=specs.are_alike(env))
    normaliser = family.prepare(env, seed, settings.init_stats_frames, known, settings.env["_target_"])
    buffer = buffers.prepare_buffer(build("buffer")(), env)
    size = replay_buffer.check_size(buffer, env, settings.steps_of_a_row, run_dir)
    # The loss learns these networks; another component that was not chosen builds None.
    actor, action_spec = build("actor")(env), specs.action_spec(env)
    networks = {name: actor if name == "actor" else build(name)(env, actor) for name in settings.networks}
    exploration = specs.make_exploration(build("exploration"), env, actor)
    policy = TensorDictSequential(actor, exploration.to(device)) if exploration else actor
    data = bind_accepted(build("data"), make_env=make_env)(env, actor)  # an offline dataset
    rows, classes = record_data(data, saved, point), record_classes(saved, point, source)
    *extras, learner = learners = make_learners(settings.learners, networks, action_spec, buffer, data)
    warm_start.apply(source, env, learner)
    schedule = build("schedule")(learner.optimizer, settings.anneal_batches)
    make_worker_env = partial(make_env, num_envs=settings.num_envs, normaliser=normaliser())
    collect = partial(bind_accepted(build("collector"), data=data), env, make_worker_env, policy)
    player = partial(PolicyEvaluator, seed=settings.seed, max_steps=score.max_steps, play=family.evaluate)
    evaluate = player(make_env, actor, normaliser)
    evaluate_final = partial(evaluate, episodes=score.final_episodes, seed_stream=SeedStream.FINAL)
    progress = Progress(settings.batches, settings.frames_per_batch, *settings.goal)
    names, drawn_from = [extra.name for extra in extras], data if settings.from_data else None
    metrics = Metrics(learner.update, exploration, names, drawn_from)
    video = EpisodeVideo(evaluate, run_dir, progress, score.video_every_frames if score.video else None)
    info = RunInfo(**settings.identity, data=rows, classes=classes, start=point or source, size_note=size)
    with (
        process.Stop(session.stop_requested) as stop,
        collectors.shut_down_after(collect(seed=seed, device=device, stop=stop.check)) as collector,
        closing(evaluate),
        closing(open_logger(run_dir, settings.logger_builders, info, progress, metrics, clock)) as logger,
        closing(EvalSchedule(evaluate, progress, clock, score.every_frames, score.episodes)) as evaluations,
    ):
        parts = {"actor": actor, **learner.components, "exploration": exploration, "schedule": schedule}
        parts |= {f"before_{extra.name}": extra for extra in extras}
        counters = {"progress": progress, "metrics": metrics, "clock": clock}
        counters |= {"record": logger, "looks": evaluations}
        acting, keep = (env, collector, buffer, make_worker_env), settings.keep_checkpoints
        state = Checkpointer(run_dir, parts, counters, *acting, info.metadata, keep, logger.say)
        evaluations.backend = settings.eval_backend(evaluate, stop=stop.check)
        evaluations.on_result = state.set_score, logger.flush
        with state.saved_on_interrupt(logger.finish), stop.as_interrupt():
            state.load(point)
            evaluations.join(stop.check)
            batches = timed("time/collect", collector)
            while not progress.confirmed(evaluate_final, logger.say) and progress.batches_left:
                if progress.improved or progress.due(settings.checkpoint_every_frames):
                    state.save()
                state.snapshot_if_old()
                batch = next(batches)
                progress.collected(batch.numel())
                with train_mode(networks.values()):
                    *extra_losses, losses = learn(learners, batch)
                progress.learned(len(losses))
                metrics.learned(batch, losses, *extra_losses)
                anneal(schedule, exploration, batch.numel())
                collector.publish()

                if evaluations.maybe_start() or progress.due(settings.log_every_frames):
                    logger.write()
                video.maybe_record(stop.check, logger.say, logger.show)
                evaluations.join(stop.check)
                stop.check()
            state.save()
            video.record_final(stop.check, logger.say, logger.show)
            logger.finish(evaluate_final(progress.frames))


if __name__ == "__main__":
    console.outlive_readers()
    command_line.exit_process(command_line.run(main, expand))
