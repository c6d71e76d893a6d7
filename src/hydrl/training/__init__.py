"""What ``train.py`` calls each batch: update, learners, evaluator, metrics, progress, timers."""

from hydrl.training.evaluator import PolicyEvaluator, SeedStream
from hydrl.training.learner import Learner, bind_accepted, learn, make_learners
from hydrl.training.metrics import Metrics
from hydrl.training.progress import Progress
from hydrl.training.timers import Clock
from hydrl.training.update import Update, anneal, train_mode

__all__ = [
    "Clock", "SeedStream", "PolicyEvaluator", "Learner", "Metrics", "Progress", "Update",
    "anneal", "bind_accepted", "learn", "make_learners", "train_mode",
]  # fmt: skip
