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
from hydrl.config.settings import Settings, check_action_space, check_groups, load
from hydrl.run import rendering, run_folder
from hydrl.run.checkpoint import resume
from hydrl.run.logging import console


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
@command_line.job
def main(cfg: DictConfig) -> None:
    """One run, in a process of its own."""
    if "torch" not in sys.modules:
        gc.disable()  # importing it makes much and no garbage; process.prepare turns it on again
    start(cfg)


def start(cfg: DictConfig) -> None:
    """Everything a user can get wrong is checked before anything starts."""
    settings = load(cfg)
    origin = resume.origin(settings)
    if not resume.finished(settings, origin):
        with run_folder.begun(cfg):
            train(settings, origin)


def train(settings: Settings, origin: resume.Origin | None = None) -> None:
    """Builds the parts in the documents' order, then acts, learns, publishes, evaluates, logs and saves."""
    rendering.prepare("eval.video", wanted=settings.eval.video)  # before anything below imports MuJoCo
    # Imported here so that a typo is answered at once, and not after PyTorch's seconds.
    from tensordict.nn import TensorDictSequential
    from torchrl.envs.utils import check_env_specs

    from hydrl import envs, specs
    from hydrl.datasets.digest import record_data
    from hydrl.datasets.recorded_env import warn_of_other_env
    from hydrl.experience import buffers, collectors
    from hydrl.run import process
    from hydrl.run.checkpoint import replay_buffer, warm_start
    from hydrl.run.checkpoint.training_state import TrainingState
    from hydrl.run.checkpoint.user_classes import record_classes
    from hydrl.run.eval_schedule import make_looks
    from hydrl.run.logging.run_logger import Record
    from hydrl.run.video import Camera
    from hydrl.training import Clock, Metrics, Progress, anneal, timed, train_mode
    from hydrl.training.evaluator import PolicyEvaluator, SeedStream
    from hydrl.training.learner import bind_accepted, make_learners

    clock, build, score = Clock(), settings.build, settings.eval
    seed = origin.env_seed if origin else settings.seed  # what a checkpoint restores, it restores over this
    device = process.prepare(seed, settings.device, int(settings.torch_threads), **settings.compiling)

    source = warm_start.source(settings, origin)  # another run, from whose weights this one begins

    # The environment is seeded before anything resets it; its random frames fix the normaliser.
    make_env = partial(envs.make_env, build("env"), settings.transform_builders, device=device)
    env = make_env(num_envs=settings.num_envs)
    check_action_space(settings, specs.action_kind(env))
    check_groups(settings, [*specs.agent_groups(env)], alike=specs.are_alike(env))
    env.set_seed(seed)
    with envs.explain_spec_errors(settings.env["_target_"]):
        envs.init_normalizers(env, settings.init_stats_frames, resume.normaliser(origin))
        check_env_specs(env)
    normaliser = partial(envs.normalizer_state, env)

    buffer = buffers.prepare_buffer(build("buffer")(), env)
    replay_buffer.require_memory(buffer, env, settings.steps_of_a_row)

    # The loss learns these networks; another part that was not chosen builds None.
    actor, action_spec = build("actor")(env), specs.action_spec(env)
    parts = {part: actor if part == "actor" else build(part)(env, actor) for part in settings.networks}
    exploration = specs.make_exploration(build("exploration"), env, actor)
    policy = TensorDictSequential(actor, exploration.to(device)) if exploration else actor
    data = bind_accepted(build("data"), make_env=make_env)(env, actor)  # what others have collected
    warn_of_other_env(data, settings)
    data_read = record_data(data, settings, origin)
    classes = record_classes(settings, origin, source)
    learners = make_learners(settings.learners, parts, action_spec, buffer, data)
    learner = learners[-1]  # by the run's own loss; others, where it says so, learn before
    warm_start.take(source, env, learner)
    schedule = build("schedule")(learner.optimizer, settings.anneal_batches)
    make_worker_env = partial(make_env, num_envs=settings.num_envs, normaliser=normaliser())
    collect = bind_accepted(build("collector"), data=data)
    make_collector = partial(collect, env, make_worker_env, policy, seed=seed, device=device)

    evaluate = PolicyEvaluator(make_env, actor, normaliser, seed=settings.seed, max_steps=score.max_steps)
    evaluate_closing = partial(evaluate, episodes=score.final_episodes, drawn=SeedStream.CLOSING)
    progress = Progress(settings.batches, settings.frames_per_batch, score.solved_at, score.stop_when_solved)
    drawn_from = data if settings.from_data else None
    metrics = Metrics(learner.update, exploration, [each.name for each in learners[:-1]], drawn_from)
    camera = Camera(evaluate, settings)

    with (
        process.Stop() as stop,
        collectors.shut_down_after(make_collector(stop=stop.here)) as collector,
        closing(evaluate),
        closing(Record(settings, progress, metrics, clock, origin, source, data_read, classes)) as record,
        closing(make_looks(record, evaluate, stop.here)) as looks,
    ):
        learns = {"actor": actor, **learner.parts, "exploration": exploration, "schedule": schedule}
        learns |= {f"before_{each.name}": each for each in learners[:-1]}
        state = TrainingState(record, env, collector, buffer, learns, make_worker_env, looks)
        with state.saved_if_cut_short(), stop.blamed():
            state.load(origin)
            looks.wait()
            batches = timed("time/collect", collector)
            while not progress.confirmed(evaluate_closing, record.say) and progress.batches_left:
                if progress.improved or progress.due(settings.checkpoint_every_frames):
                    state.save()
                state.remember()
                batch = next(batches)
                progress.collected(batch.numel())
                with train_mode(parts.values()):
                    *before, losses = (each.learn(batch) for each in learners)
                progress.learned(len(losses))
                metrics.learned(batch, losses, *before)
                anneal(schedule, exploration, batch.numel())
                collector.publish()

                if looks.look() or progress.due(settings.log_every_frames):
                    record.write()
                camera.film(record, stop.here)
                looks.wait()
                stop.here()
            state.save()
            camera.film(record, stop.here, final=True)
            record.finish(evaluate_closing(progress.frames))


if __name__ == "__main__":
    console.outlive_readers()
    command_line.leave(command_line.run(main, resume.expand))
