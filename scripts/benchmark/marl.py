"""BenchMARL's own loop with hydrl's numbers: the same networks, batches, updates and task.

It asks for an earlier TorchRL than hydrl does, so that both lie in a folder of their own, which the variable
``BENCHMARL`` names; PyTorch and VMAS are those of hydrl:

    pip install --no-deps --target DIR benchmarl==1.5.2 torchrl==0.11.1 tensordict==0.11.0
    BENCHMARL=DIR python scripts/benchmark speed --tasks mappo
"""

import os
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory


def mappo() -> Iterator[tuple[int, int]]:
    """MAPPO on VMAS' navigation: 64 environments, 3,200 frames and 80 updates of 400 a batch.

    What it would do beside, evaluating, logging and saving, is turned off. Actor and critic have an optimizer
    each there, which both step in an update. Each pass through its loop is one batch: it goes on where the
    last stopped.
    """
    sys.path.insert(0, os.environ["BENCHMARL"])
    from benchmarl.algorithms import MappoConfig
    from benchmarl.environments import VmasTask
    from benchmarl.experiment import Experiment, ExperimentConfig
    from benchmarl.models.mlp import MlpConfig

    class GoingOn(Experiment):
        """Closes nothing at the end of its loop."""

        def close(self) -> None:
            """Leaves the collector for the next batch."""

    config, frames, size, epochs = ExperimentConfig.get_from_yaml(), 3_200, 400, 10
    config.on_policy_n_envs_per_worker = 64
    config.on_policy_collected_frames_per_batch = frames
    config.on_policy_minibatch_size, config.on_policy_n_minibatch_iters = size, epochs
    config.max_n_frames, config.lr = 1_000_000_000, 1e-3
    config.evaluation = config.render = config.create_json = False
    config.loggers = []
    network, algorithm = MlpConfig.get_from_yaml(), MappoConfig.get_from_yaml()  # two hidden layers of 256
    algorithm.entropy_coef = 1e-4
    task = VmasTask.NAVIGATION.get_from_yaml()
    with TemporaryDirectory() as config.save_folder:
        experiment = GoingOn(task, algorithm, network, seed=0, config=config)
        while True:
            experiment.config.max_n_frames = experiment.total_frames + frames
            experiment._collection_loop()
            yield frames, frames // size * epochs
