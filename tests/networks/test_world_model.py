"""World models by kind of observation and action, and what they refuse."""

import pytest
import torch

from hydrl import envs
from hydrl.errors import UserError
from tests.conftest import settings

NANO = ["algo=dreamer_v3", "world_model=nano", "world_model.bins=31"]
IMAGES = ["env=gym", "env.id=tests.fakes.pixel_envs:Scene-v0"]


def actor_of(*words: str):
    chosen = settings(*NANO, *words)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2)
    return chosen.build("actor")(env), env


@pytest.mark.parametrize(
    ("words", "entries", "action"),
    [
        (["env=pendulum"], ["vectors"], 1),
        (["env=cartpole"], ["vectors"], 2),
        ([*IMAGES, "+env.size=12"], None, None),
    ],
)
def test_every_entry_is_encoded_and_reconstructed(words, entries, action):
    actor, env = actor_of(*words)
    model, now = actor.world_model, env.reset()
    targets = model.read_targets(now)
    assert entries in (None, [*targets])
    assert action in (None, model.action_size)
    state, belief = torch.zeros(2, model.state_size), torch.zeros(2, model.belief_size)
    decoded = model.decode(state, belief)
    assert {key: value.shape for key, value in decoded.items()} == {
        key: value.shape for key, value in targets.items()
    }
    for name, value in targets.items():
        if name != "vectors":
            assert value.min() >= 0
            assert value.max() <= 1
    assert model.encode(targets).shape[0] == 2


def test_images_and_vectors_together():
    actor, _ = actor_of(*IMAGES, "+env.size=12")
    assert set(actor.world_model.entry_names) >= {"vectors"}
    assert actor.world_model.images


def test_an_odd_image_is_refused_in_a_line():
    with pytest.raises(UserError, match=r"^algo=dreamer_v3: images of 13 x 13 .* cannot be halved. Resize"):
        actor_of(*IMAGES, "+env.size=13")


def test_masks_are_refused_in_a_line():
    with pytest.raises(
        UserError, match=r"^algo=dreamer_v3: cannot use the action mask action_mask. Use algo=ppo"
    ):
        actor_of("env=gym", "env.id=tests.fakes.masked_envs:Allows-v0")


def test_blocks_divide_the_recurrent_units():
    with pytest.raises(UserError, match=r"^world_model.blocks=5: should divide world_model.deterministic=64"):
        actor_of("env=pendulum", "world_model.blocks=5")
