"""What ``train.py`` calls for each batch: update, evaluation, metrics, progress. Imports ``parts``."""

from hydrl.loop.clock import Clock, timed
from hydrl.loop.evaluation import Episodes, Evaluator
from hydrl.loop.learner import Learner, make_learners
from hydrl.loop.metrics import Metrics
from hydrl.loop.progress import Progress
from hydrl.loop.update import Update, anneal, learning

__all__ = [
    "Clock", "Episodes", "Evaluator", "Learner", "Metrics", "Progress", "Update",
    "anneal", "learning", "make_learners", "timed",
]  # fmt: skip
