import numpy as np
from matplotlib.image import imread

from hydragnn_hpo.report.importance import Effect, Importance
from hydragnn_hpo.report.importance_figure import draw_importance
from hydragnn_hpo.report.observations import Target

NAMES = ("model.conv", "model.features")


def importance(doubt=None, ped_anova=0.5):
    effects = {name: Effect(0.1, 0.5, 0.4, ped_anova, "2 to 3") for name in reversed(NAMES)}
    shap = np.linspace(-1.0, 1.0, 40).reshape(20, 2)
    at = np.where(np.arange(40).reshape(20, 2) % 5, 0.5, np.nan)
    return Importance(Target("mae", "objective"), 20, 0.7, doubt, effects, NAMES, shap, at)


def test_a_picture_of_all_that_can_be(tmp_path):
    out = tmp_path / "importance.png"
    nothing = Importance(Target("failure", "P(failure)"), 20, None, "No trial failed.")
    draw_importance([importance(), importance("too few", None), nothing], out)
    drawn = out.read_bytes()
    height, width, _ = imread(out).shape
    assert width == 1650
    assert height > 3 * 200
    draw_importance([importance(), importance("too few", None), nothing], out)
    assert out.read_bytes() == drawn


def test_what_is_not_trusted_is_pale(tmp_path):
    pictures = []
    for doubt in (None, "too few"):
        out = tmp_path / "x.png"
        draw_importance([importance(doubt)], out)
        pictures.append(imread(out)[..., :3])
    # blue of the first series at full strength, and nowhere where it is doubtful
    blue = np.array([0x00, 0x72, 0xB2]) / 255
    found = [np.sum(np.all(np.abs(p - blue) < 0.02, axis=-1)) for p in pictures]
    assert found[0] > 1000
    assert found[1] == 0
