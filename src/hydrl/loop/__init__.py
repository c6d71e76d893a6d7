"""What ``train.py`` calls for each batch: update, evaluation, metrics, progress. Imports ``parts``."""

from hydrl.loop.clock import Clock
from hydrl.loop.evaluation import Episodes, Evaluator
from hydrl.loop.metrics import Metrics, timed
from hydrl.loop.progress import Progress
from hydrl.loop.update import Update, anneal, learning

__all__ = ["Clock", "Episodes", "Evaluator", "Metrics", "Progress", "Update", "anneal", "learning", "timed"]
