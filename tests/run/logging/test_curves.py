from matplotlib import image

from hydrl.run.logging.curves import save_curves
from hydrl.run.logging.loggers import MetricsFile

ORANGE, BLUE, GREEN = (230, 159, 0), (0, 114, 178), (0, 158, 115)


def coloured(path, colour):
    pixels = (image.imread(path)[..., :3] * 255).round().astype(int)
    return int((abs(pixels - colour).max(axis=-1) <= 2).sum())


def test_curves_show_training_and_evaluation(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.csv")
    for frames in range(100, 1100, 100):
        metrics.write(
            frames, {"train/return": frames / 10, "eval/return_mean": frames / 5, "eval/return_std": 3.0}
        )
    path = tmp_path / "curves.png"
    save_curves(metrics, path, title="ppo on cartpole", solved_return=150)
    assert coloured(path, ORANGE) > 300
    assert coloured(path, BLUE) > 300
    assert coloured(path, GREEN) == 0
    save_curves(metrics, path, title="ppo on cartpole", solved_return=150, final=(1_000, 190.0, 12.0))
    assert coloured(path, GREEN) > 50


def test_a_single_evaluation_shows_its_spread(tmp_path):
    def drawn(std):
        metrics = MetricsFile(tmp_path / f"{std}.csv")
        metrics.write(100, {"eval/return_mean": 10.0, "eval/return_std": std})
        save_curves(metrics, tmp_path / f"{std}.png", title="", solved_return=20)
        return coloured(tmp_path / f"{std}.png", BLUE)

    assert drawn(5.0) > drawn(0.0) + 100


def test_a_run_without_evaluation_still_has_its_picture(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.csv")
    metrics.write(100, {"train/return": 1.0})
    metrics.write(200, {"train/return": 2.0})
    path = tmp_path / "curves.png"
    save_curves(metrics, path, title="ppo on cartpole", solved_return=None)
    assert coloured(path, ORANGE) > 300
    assert coloured(path, BLUE) == 0


def test_a_picture_of_nothing_says_so_in_its_middle(tmp_path):
    path = tmp_path / "curves.png"

    def dark():
        height = (pixels := image.imread(path)[..., :3]).shape[0]
        return int((pixels[height * 4 // 10 : height * 6 // 10, 200:-50] < 0.2).all(axis=-1).sum())

    metrics = MetricsFile(tmp_path / "metrics.csv")
    save_curves(metrics, path, title="", solved_return=None)
    assert dark() > 300
    metrics.write(100, {"train/return": 1.0})
    save_curves(metrics, path, title="", solved_return=None)
    assert dark() == 0
