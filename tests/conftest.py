"""Shared helpers: composing the real configuration tree, and running it in this process."""

import atexit
import csv
import functools
import gc
import hashlib
import importlib.util
import io
import os
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, open_dict

import hydrl.run.logging.run_logger
import hydrl.training.metrics
from hydrl.config import CONFIGS, command_line
from hydrl.config.settings import Settings, load, needs_dataset, read_action_spaces
from hydrl.config.tuned import compose_run as composed_anew
from hydrl.config.user_dirs import named_folders
from hydrl.errors import warnings_of_one_run
from hydrl.experiments import member_checks
from hydrl.losses.build import make_loss
from hydrl.run import process
from hydrl.run.checkpoint import archive as checkpoint
from hydrl.run.checkpoint.replay_buffer import read
from hydrl.run.checkpoint.resume import ResumePoint, find_resume_point
from hydrl.run.logging.loggers import MetricsFile
from hydrl.run.run_folder import RunLock
from hydrl.training.evaluator import Evaluation, PolicyEvaluator, SeedStream


def pytest_xdist_auto_num_workers() -> int:
    """As many as there are for this process; pytest-xdist would count a core of two threads once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


ROOT = Path(__file__).resolve().parents[1]
# Four batches with an evaluation and a checkpoint after each second one, for any algorithm of one agent.
SMALL = ["~tuned", "total_frames=256", "collector.frames_per_batch=64", "minibatches.size=32"]
SMALL += ["actor.num_cells=[16,16]", "eval.every_frames=128", "eval.episodes=2", "eval.final_episodes=2"]
SMALL += ["eval.max_steps=20", "log_every_frames=64", "checkpoint_every_frames=128"]
SMALL_PPO = [*SMALL, "minibatches.epochs=2"]
# Seconds after which a wait has failed: only a hang takes so long, on a slow and crowded machine too.
HANGING = 600.0


def settings(*overrides: str, run_dir: Path | str = "unused") -> Settings:
    """The checked settings that ``python train.py *overrides`` would train with."""
    return load(composed(f"run_dir={run_dir}", *overrides))


def composed(*overrides: str, hydra: bool = False) -> DictConfig:
    """What Hydra makes of overrides, and its own node if asked for; the same choices are composed once."""
    choosing = [each for each in overrides if chooses(each)]
    own = [path for folder in named_folders(choosing) for path in sorted(folder.rglob("*.yaml"))]
    state = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in own)
    cfg = pickle.loads(with_choices(*choosing, state=state))
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values = [each for each in parsed if each.input_line not in choosing]
    ConfigLoaderImpl._apply_overrides_to_config(values, cfg)  # as Hydra does once it has composed
    cfg.hydra.overrides.task = [each.input_line for each in parsed if not each.is_hydra_override()]
    if not hydra:
        with open_dict(cfg):
            del cfg["hydra"]
    return cfg


@functools.cache
def with_choices(*overrides: str, state: tuple[tuple[str, int, int], ...]) -> bytes:
    """A pickled configuration, see :func:`composed`; reading it is faster than a deep copy.

    ``state`` is that of the files in folders of one's own, which a test may write anew.
    """
    return pickle.dumps(composed_anew(overrides, return_hydra_config=True))


def chooses(override: str) -> bool:
    """Whether it chooses of a group or says something of Hydra's, and sets no key of the run."""
    key, _, value = override.partition("=")
    group = key.lstrip("+~").partition("@")[0]
    return group.startswith("hydra") or ((CONFIGS / group).is_dir() and value[:1] != "{")


def data_of(algo: str, path: Path | str = "none") -> list[str]:
    """What an algorithm that learns from a data set is told in addition."""
    is_text = read_action_spaces().get(algo) == ["text"]  # whose tasks solve their own prompts
    return ["data=replay_buffer", f"data.path={path}"] if needs_dataset(algo) and not is_text else []


def loss_of(chosen: Settings, env: Any, **parts: Any) -> Any:
    """The configured loss over ``parts``; ``env`` or an action spec says how it acts."""
    given, spec = chosen.loss, getattr(env, "action_spec_unbatched", env)
    there = {name: each for name, each in parts.items() if each is not None}
    return make_loss(chosen.build("loss"), there, spec, given.networks, given.keys, given.value_estimator)


def needs_vmas() -> None:
    """Skips a test where VMAS is not installed; importing it takes seconds."""
    if importlib.util.find_spec("vmas") is None:
        pytest.skip("needs pip install 'hydrl[vmas]'")


def start(*arguments: str, script: str = "train.py", **options: Any) -> subprocess.Popen[str]:
    """``python train.py`` or another script as a user starts it, its output in one stream."""
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        **{"cwd": ROOT, "stderr": subprocess.STDOUT, **options},
    )


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """What a run has started beside itself, but for the process that these are copies of."""
    found: list[psutil.Process] = []
    for each in process.children():
        with suppress(psutil.NoSuchProcess):  # it has ended, or is a zombie
            found += each.children() if "forkserver" in str(each.cmdline()) else []
    return found


def typed(*words: str, script: str = "train.py", curves: bool = False) -> subprocess.CompletedProcess[str]:
    """What :func:`start` would start, in this process, where nothing has to be imported anew.

    Its curves are drawn if asked for, see :func:`_curves_drawn_once`.
    """
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("HYDRA_FULL_ERROR", "0")  # put back what command_line.run sets
        patch.setattr(HydraConfig.instance(), "cfg", None)  # and what Hydra does
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "argv", [script, *words])
        patch.setattr(command_line, "exit_process", sys.exit)  # which would end the tests
        if curves:
            patch.setattr(hydrl.run.logging.run_logger, "save_curves", draw_curves)
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # train.py lets it kill
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def saved(folder: Path, part: str, which: str = "last") -> Any:
    """One part of a checkpoint of the run in ``folder``; of the buffer, its rows from the oldest on.

    Of ``frames``, the pictures that the rows have the numbers of, and what else is kept of them.
    """
    archive = checkpoint.find(folder, which)
    if part not in ("buffer", "frames"):
        return checkpoint.load(archive, [part])[part]
    told = checkpoint.verify(archive, with_rows=True)["memory"]
    told = told["frames"] if part == "frames" else told
    rows = torch.cat([rows for _, rows in read(archive.parent, told)]).to_dict()
    return {"rows": rows, **told["state"]} if part == "frames" else rows


def killed(run: Path, folder: Path) -> int:
    """Makes in ``folder`` what a kill before the last checkpoint of a run would have left.

    Returns:
        the frames that it goes on from.
    """
    shutil.copytree(run, folder)
    newest, before = checkpoint.archives(folder)
    newest.unlink()
    (folder / "summary.json").unlink()
    return checkpoint.frames_of(before)


def whole_and_resumed(run: Any, words: list[str], batches: list[Any], place: Path) -> tuple[Path, Path]:
    """Folders of a run of four batches and of the same, killed after two and resumed, which ends alike."""
    whole = run(*words, folder="whole")
    unbroken = batches.copy()
    assert len(set(unbroken)) == 4
    batches.clear()
    assert killed(whole, place / "halves") == 128
    halves = run(*words, "resume=auto", folder="halves")
    assert batches == unbroken[2:]
    for component in ("loss", "optimizer", "collector"):
        assert digest(saved(halves, component)) == digest(saved(whole, component)), component
    return whole, halves


def digest(value: Any) -> str:
    """SHA-256 over nested containers of tensors, dictionaries in the order of their keys."""
    total = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                total.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        elif isinstance(value, torch.Tensor):
            total.update(str(value.dtype).encode() + value.contiguous().numpy().tobytes())
        else:
            total.update(repr(value).encode())

    add(value)
    return total.hexdigest()


def logged(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in csv.DictReader(file)]


process.quieten_libraries()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side: eval.backend=auto starts no process
# Under nohup or in a shell's background some are ignored, and so would be what tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


pytest_plugins = "pytester"

FILE_SECONDS = "hydrl/file_seconds"  # the entry of pytest's cache
file_seconds: Counter[str] = Counter()  # of this run


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A worker's files in the order of their seconds in the last whole run, so that none is long at the end.

    A file that was not run yet counts by its number of tests.
    """
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(file_of(item.nodeid) for item in items)
    cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
    seconds = cache.get(FILE_SECONDS, {}) if cache else {}
    known = [file for file in tests if file in seconds]
    mean = sum(seconds[file] for file in known) / sum(tests[file] for file in known) if known else 1.0
    expected = {file: seconds.get(file, count * mean) for file, count in tests.items()}
    items.sort(key=lambda item: (-expected[file_of(item.nodeid)], file_of(item.nodeid)))


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file_seconds[file_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What starts the workers remembers how long each file took."""
    config, cache = session.config, getattr(session.config, "cache", None)
    if config.getoption("dist", "no") == "loadfile" and not hasattr(config, "workerinput") and cache:
        cache.set(FILE_SECONDS, cache.get(FILE_SECONDS, {}) | file_seconds)


def pytest_collection_finish() -> None:
    """What is imported by now stays: half a million objects need not be looked through time and again."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # some libraries tell at the end of what was not collected
    gc.set_threshold(20_000)


@pytest.fixture(autouse=True)
def _own_warnings() -> Iterator[None]:
    with warnings_of_one_run():
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


draw_curves = hydrl.run.logging.run_logger.save_curves


@pytest.fixture(autouse=True, scope="session")
def _curves_drawn_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """They take a seventh of a small run; what :func:`start` starts, and test_curves.py, draws real ones."""
    picture = tmp_path_factory.mktemp("curves") / "curves.png"
    draw_curves(MetricsFile(picture.with_suffix(".csv")), picture, title="none", solved_return=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            hydrl.run.logging.run_logger, "save_curves", lambda _, path, **__: shutil.copy(picture, path)
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def _files_read_once() -> Iterator[None]:
    """Hydra reads each file anew at every composition, a quarter of its time; its own files and ours stay."""

    def once(
        load: Callable[[ConfigSource, str], ConfigResult],
    ) -> Callable[[ConfigSource, str], ConfigResult]:
        known: dict[tuple[str, str, str], bytes] = {}

        def loaded(source: ConfigSource, config_path: str) -> ConfigResult:
            if source.scheme() == "file" and Path(source.path) != CONFIGS:
                return load(source, config_path)
            key = (source.provider, source.path, config_path)
            if key not in known:
                known[key] = pickle.dumps(load(source, config_path))
            return pickle.loads(known[key])

        return loaded

    Plugins.instance()  # fills the registry
    with pytest.MonkeyPatch.context() as patch:
        for kind in map(SourcesRegistry.instance().resolve, ("file", "pkg")):
            patch.setattr(kind, "load_config", once(kind.load_config))
        yield


@pytest.fixture(autouse=True, scope="session")
def _options_composed_once() -> Iterator[None]:
    """Hydra resolves and merges the same options several times a command, and each command anew.

    What the options alone decide is kept; values of keys are set on a copy of it. Files elsewhere than in
    Hydra's and our folders may change and are read each time.
    """
    resolve = defaults_list._create_defaults_list
    merge = ConfigLoaderImpl._compose_config_from_defaults_list
    resolved, merged = dict[tuple[Any, ...], bytes](), dict[tuple[Any, ...], bytes]()

    def sources_key(repo: Any) -> tuple[tuple[str, str], ...] | None:
        sources = [(source.scheme(), source.path) for source in repo.get_sources()]
        known = all(scheme != "file" or Path(path) == CONFIGS for scheme, path in sources)
        return tuple(sources) if known else None

    def resolve_once(
        repo: Any, config_name: str | None, overrides: Any, prepend_hydra: bool, skip_missing: bool
    ) -> Any:
        state = {name: field for name, field in vars(overrides).items() if name != "config_overrides"}
        key = (sources_key(repo), config_name, prepend_hydra, skip_missing, pickle.dumps(state))
        if key[0] is None:
            return resolve(repo, config_name, overrides, prepend_hydra, skip_missing)
        if key not in resolved:
            answer = resolve(repo, config_name, overrides, prepend_hydra, skip_missing)
            resolved[key] = pickle.dumps((answer, state))  # resolving has set fields of it
            return answer
        answer, state = pickle.loads(resolved[key])
        vars(overrides).update(state)
        return answer

    def merge_once(loader: ConfigLoaderImpl, defaults: list[Any], repo: Any) -> DictConfig:
        key = (sources_key(repo), *(tuple(vars(default).items()) for default in defaults))
        if key[0] is None:
            return merge(loader, defaults, repo)
        if key not in merged:
            merged[key] = pickle.dumps(merge(loader, defaults, repo))
        return pickle.loads(merged[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defaults_list, "_create_defaults_list", resolve_once)
        patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", merge_once)
        yield


check_envs_in_child = member_checks.check_envs_in_child


@pytest.fixture(autouse=True, scope="session")
def _members_checked_here() -> Iterator[None]:
    """A sweep imports PyTorch anew to check its members; one of the tests in test_sweep.py does too."""

    def check_envs_here(members: Sequence[member_checks.Member]) -> list[str]:
        return member_checks.call("hydrl.run.env_checks.check_envs", pickle.loads(pickle.dumps(members)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member_checks, "check_envs_in_child", check_envs_here)
        yield


def resume_point(chosen: Settings) -> ResumePoint | None:
    """Where a run with these settings is resumed."""
    with RunLock() as lock:
        return find_resume_point(chosen.shown, chosen.keep_auto_values, lock.acquire)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Trains in this process and returns the run folder."""
    from train import train

    def call(*overrides: str, folder: str = "run") -> Path:
        chosen = settings(*overrides, run_dir=tmp_path / folder)
        train(chosen, resume_point(chosen))
        return tmp_path / folder

    return call


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which half is done, left by a user at the command line; who changes it takes a copy."""
    folder = tmp_path_factory.mktemp("half") / "a run"
    words = [*SMALL_PPO, "env=cartpole", "total_frames=128", "+env.max_episode_steps=40"]
    done = typed(*words, f"hydra.run.dir='{folder}'")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what evaluations give by their frames: those of the training and the closing ones."""

    def call(training: dict[int, float], closing: dict[int, float]) -> None:
        def play(self, frames, episodes, drawn, parts=None):
            mean = (training if drawn == SeedStream.TRAINING else closing)[frames]
            return Evaluation(torch.full((episodes,), mean), torch.ones(episodes))

        monkeypatch.setattr(PolicyEvaluator, "play", play)

    return call


def batches_digested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests of the batches that runs of this process collect."""
    seen: list[str] = []
    learned = hydrl.training.metrics.Metrics.learned

    def spy(self, batch, *losses):
        seen.append(digest(batch.to_dict()))
        return learned(self, batch, *losses)

    monkeypatch.setattr(hydrl.training.metrics.Metrics, "learned", spy)
    return seen


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return batches_digested(monkeypatch)
