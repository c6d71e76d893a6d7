"""Names of hydrl's own metrics: columns of ``metrics.csv``, keys of ``summary.json`` and of the loggers.

Besides these a loss adds each of its outputs as ``loss/NAME``, and a value followed in ``info`` is
``train/NAME`` and ``eval/NAME``.
"""

TRAIN_RETURN = "train/return"  # mean over the training episodes that ended since the last row
TRAIN_EPISODES = "train/episodes"  # how many ended
TRAIN_LENGTH = "train/episode_length"  # mean steps of these
TRAIN_REWARD = "train/reward"  # mean of a step
CUT_SHORT = "train/cut_short"  # episodes that `random_truncation` cut
LEARNING_RATE = "train/learning_rate"
EPSILON = "train/epsilon"  # share of random actions
SIGMA = "train/sigma"  # scale of the exploration noise
Q_VALUE = "train/q_value"  # mean value of the greedy action
EXPLAINED_VARIANCE = "train/explained_variance"  # share of the value targets' variance

RETURN_MEAN = "eval/return_mean"  # over the episodes of an evaluation
RETURN_STD = "eval/return_std"
RETURN_MIN = "eval/return_min"
RETURN_MAX = "eval/return_max"
LENGTH_MEAN = "eval/length_mean"  # steps
EVAL_EPISODES = "eval/episodes"  # how many
CUT_EPISODES = "eval/cut_episodes"  # how many of them still ran at `eval.max_steps`
EVAL_FRAMES = "eval/frames"  # in the summary: frames at the last evaluation
BEST_RETURN = "best_eval/return_mean"  # in the summary: the highest mean return
FINAL_RETURN = "final/return_mean"  # of the final evaluation, in TensorBoard
VIDEO = "eval/video"
FINAL_VIDEO = "eval/final_video"

ELAPSED = "time/elapsed"  # seconds since the run began
FRAMES_PER_SECOND = "time/frames_per_second"  # of the loop
POLICY_LAG = "time/policy_lag"  # mean number of newer policies when a frame was learned from
# Shares of the loop's time.
COLLECTING = "time/collect"
SAMPLING = "time/sample"
UPDATING = "time/update"  # with compiling
COMPILING = "time/compile"
EVALUATING = "time/evaluate"
RECORDING = "time/video"
