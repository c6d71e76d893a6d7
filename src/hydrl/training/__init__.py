"""What ``train.py`` calls each batch: update, learners, evaluator, metrics, progress, timers."""

from hydrl.training.evaluator import Episodes, Evaluator
from hydrl.training.learner import Learner, make_learners
from hydrl.training.metrics import Metrics
from hydrl.training.progress import Progress
from hydrl.training.timers import Clock, timed
from hydrl.training.update import Update, anneal, learning

__all__ = [
    "Clock", "Episodes", "Evaluator", "Learner", "Metrics", "Progress", "Update",
    "anneal", "learning", "make_learners", "timed",
]  # fmt: skip
