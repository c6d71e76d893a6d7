"""Names of hydrl's own metrics: columns of ``metrics.csv``, keys of ``summary.json`` and of the loggers.

Besides these a loss adds each of its outputs as ``loss/NAME``, and a value followed in ``info`` is
``train/NAME`` and ``eval/NAME``.
"""

TRAIN_RETURN = "train/return"  # mean over the training episodes that ended since the last row
TRAIN_EPISODES = "train/episodes"  # how many training episodes ended
TRAIN_LENGTH = "train/episode_length"  # mean steps of the training episodes that ended
TRAIN_REWARD = "train/reward"  # mean of a step
CUT_SHORT = "train/cut_short"  # episodes that `random_truncation` cut
LEARNING_RATE = "train/learning_rate"  # of the optimizer, its first parameter group
EPSILON = "train/epsilon"  # share of random actions
SIGMA = "train/sigma"  # scale of the exploration noise
Q_VALUE = "train/q_value"  # mean value of the greedy action
EXPLAINED_VARIANCE = "train/explained_variance"  # share of the value targets' variance

OBJECTIVE = "objective_{}"  # behind `train/` and `eval/`, with `env.weights`: an objective's episode sum

RETURN_MEAN = "eval/return_mean"  # over an evaluation's episodes; in the summary, the final one's
RETURN_STD = "eval/return_std"  # standard deviation of these returns
RETURN_MIN = "eval/return_min"  # lowest of these returns
RETURN_MAX = "eval/return_max"  # highest of these returns
LENGTH_MEAN = "eval/length_mean"  # mean steps of the evaluation's episodes
EVAL_EPISODES = "eval/episodes"  # episodes of an evaluation
CUT_EPISODES = "eval/cut_episodes"  # evaluation episodes that still ran at `eval.max_steps`
EVAL_FRAMES = "eval/frames"  # in the summary: frames at the last evaluation
BEST_RETURN = "best_eval/return_mean"  # in the summary: the highest mean return
FINAL_RETURN = "final/return_mean"  # of the final evaluation, in TensorBoard
VIDEO = "eval/video"  # an episode of the policy
FINAL_VIDEO = "eval/final_video"  # an episode of the last policy

ELAPSED = "time/elapsed"  # seconds since the run began
TRAIN_TOKENS = "train/tokens"  # of language models: mean tokens of the answers that ended
TOKENS_PER_SECOND = "time/tokens_per_second"  # of language models: tokens of answers over time
FRAMES_PER_SECOND = "time/frames_per_second"  # frames over the loop's time, evaluations and videos included
POLICY_LAG = "time/policy_lag"  # mean number of newer policies when a frame was learned from
COLLECTING = "time/collect"  # share of the loop's time: acting in the environments
SAMPLING = "time/sample"  # share: drawing minibatches, estimating advantages
UPDATING = "time/update"  # share: updates, with compiling
COMPILING = "time/compile"  # share: compiling
EVALUATING = "time/evaluate"  # share: evaluating
RECORDING = "time/video"  # share: recording videos
