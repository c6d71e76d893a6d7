"""What reads pictures: its published shapes, and one reading for an actor and a critic that share it."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict
from torch import nn
from torchrl.envs import CatFrames, EnvBase
from torchrl.objectives import A2CLoss, ClipPPOLoss

from hydrl.envs import gymnasium_env, make_env
from hydrl.errors import UserError
from hydrl.experience.minibatches import estimate_advantages
from hydrl.losses.build import make_loss
from hydrl.networks import actors, critics, encoders
from hydrl.networks.encoders import Encoder
from tests.fakes.pixel_envs import DotEnv

NET = {"num_cells": [8], "activation": "ReLU"}


def shows(size: int = 12, channels: int | None = 3, name: str = "Dot-v0"):
    """An environment that shows pictures of that size."""
    more = {} if name == "Scene-v0" else {"channels": channels}
    return make_env(partial(gymnasium_env, f"tests.fakes.pixel_envs:{name}", size=size, **more), [], seed=0)


def built(reader: str, size: int, colours: int | None = None, **options: object) -> nn.Module:
    """The encoder of that name with its sizes."""
    env = shows(size, colours)
    module = encoders.encoder(env, ["pixels"], reader=reader, **options)
    with torch.no_grad():
        assert module(env.reset())["features"].ndim == 1
    return module


def weights(module: nn.Module) -> list[list[int]]:
    """The shapes of all weights but biases."""
    return [list(each.shape) for each in module.parameters() if each.ndim > 1]


@pytest.mark.parametrize(
    ("reader", "size", "convolutions", "layer"),
    [
        ("cnn", 84, [[32, 3, 8, 8], [64, 32, 4, 4], [64, 64, 3, 3]], [512, 64 * 7 * 7]),
        ("minatar", 10, [[16, 3, 3, 3]], [128, 16 * 8 * 8]),
        ("impala", 84, [[16, 3, 3, 3], *[[16, 16, 3, 3]] * 4, [32, 16, 3, 3], *[[32, 32, 3, 3]] * 4,
                        [32, 32, 3, 3], *[[32, 32, 3, 3]] * 4], [256, 32 * 11 * 11]),
    ],
)  # fmt: skip
def test_readers_have_their_published_shapes(reader, size, convolutions, layer):
    assert weights(built(reader, size, 3)) == [*convolutions, layer]


@pytest.mark.parametrize(
    ("reader", "convolutions"),
    [("cnn", [8, 16, 16]), ("minatar", [8]), ("impala", [*[8] * 5, *[16] * 10])],
)
def test_all_convolutions_are_as_much_narrower_as_the_first(reader, convolutions):
    *narrow, layer = weights(built(reader, 36, 3, channels=8))
    assert [each[0] for each in narrow] == convolutions
    assert layer[0] == {"cnn": 512, "minatar": 128, "impala": 256}[reader]


def test_auto_reads_by_size_and_an_entry_may_have_a_reader_of_its_own():
    assert weights(built("auto", 36))[0] == [32, 1, 8, 8]
    assert weights(built("auto", 35))[0] == [16, 1, 3, 3]
    assert weights(built("auto", 36, pixels="minatar"))[0] == [16, 1, 3, 3]
    assert weights(built("cnn", 36, features=7))[-1] == [7, 64]
    assert weights(built("mlp", 12)) == []


def test_bytes_are_scaled_by_the_greatest_that_their_space_has():
    env = shows()
    module = encoders.encoder(env, ["pixels"], reader="mlp")
    pixels = torch.randint(256, (2, 5, 3, 12, 12), dtype=torch.uint8)
    features = module(TensorDict({"pixels": pixels}, [2, 5]))["features"]
    torch.testing.assert_close(features, pixels.flatten(2) / 255)


def any_picture(kind: str, low, high, transforms=(), num_envs: int = 1):
    """An environment that shows pictures drawn from a space of that kind and those bounds, `[12, 12, 3]`."""

    def task() -> DotEnv:
        made, box = DotEnv(), Box(low, high, (12, 12, 3), np.dtype(kind).type)
        made.observation_space, made.show, made.side = box, box.sample, 0
        return made

    gymnasium.register(id := f"Drawn{kind.title()}-v0", task)
    return make_env(partial(gymnasium_env, id), transforms, num_envs=num_envs, seed=0)


DEPTH = np.array([0, 0, -10], np.float32) + np.zeros((12, 12, 3), np.float32)  # of a channel of its own


@pytest.mark.parametrize(
    ("kind", "low", "high", "by_hand"),
    [
        ("uint8", 0, 255, lambda x: x / 255),
        ("uint8", 10, 200, lambda x: x / 200),
        ("bool", 0, 1, lambda x: x / 1),
        ("uint16", 0, 65_535, lambda x: x / 65_535),
        ("int32", 0, 255, lambda x: x / 255),
        ("int8", -128, 127, lambda x: (x + 128) / 255),
        ("float32", 0, 255, lambda x: x / 255),
        ("float64", -1, 3, lambda x: (x + 1) / 4),
        ("float32", 0, 1, lambda x: x),
        ("float32", DEPTH, DEPTH + 20, lambda x: (x - torch.tensor([0, 0, -10])[:, None, None]) / 20),
    ],
)
def test_a_first_convolution_reads_0_to_1_of_any_kind_of_pictures(kind, low, high, by_hand):
    env = any_picture(kind, low, high)
    module = encoders.encoder(env, ["pixels"], scale="bounds")
    read = []
    kernel = next(each for each in module.modules() if isinstance(each, nn.Conv2d))
    kernel.register_forward_pre_hook(lambda _, given: read.append(given[0][0]))
    shown = [env.reset() for _ in range(4)]
    for each in shown:
        module(each)
        assert torch.equal(read[-1], by_hand(each["pixels"].float()))
    assert 0 <= min(each.min() for each in read) < 0.1
    assert 0.9 < max(each.max() for each in read) <= 1
    assert module.state_dict().keys() == encoders.encoder(env, ["pixels"]).state_dict().keys()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_stacked_frames_are_scaled_as_one_is(num_envs):
    stack = partial(CatFrames, N=2, dim=-3, in_keys=["pixels"])
    env = any_picture("float32", DEPTH, DEPTH + np.float32([20, 255, 20]), [stack], num_envs)
    seen = env.rollout(3)["pixels"]
    features = encoders.encoder(env, ["pixels"], reader="mlp", scale="bounds")(TensorDict({"pixels": seen}))
    one = torch.tensor([[0, 0, -10], [20, 255, 20]]).repeat(1, 2)[:, :, None, None]
    assert torch.equal(features["features"], ((seen - one[0]) / one[1]).flatten(-3))
    assert len(features["features"].unique()) > 1000


def test_each_channel_is_scaled_by_its_own_bounds_and_one_without_is_left():
    low, high = DEPTH, DEPTH.copy()
    high[..., 0], high[..., 1], high[..., 2] = 255, np.inf, -10
    env = any_picture("float32", low, high)
    seen = env.reset()
    features = encoders.encoder(env, ["pixels"], reader="mlp", scale="bounds")(seen)["features"]
    red, endless, constant = features.reshape(3, 12, 12)
    torch.testing.assert_close(red, seen["pixels"][0] / 255)
    assert torch.equal(endless, seen["pixels"][1])
    assert not constant.any()


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("float32", -np.inf, np.inf),
        ("float32", 0, np.finfo(np.float32).max),
        ("int32", 0, 2**31 - 1),
        ("int64", -(2**63), 2**63 - 1),
    ],
)
def test_a_picture_without_bounds_is_read_as_it_is_and_a_line_says_so(kind, low, high, capsys):
    env = any_picture(kind, low, high)
    seen = env.reset()
    assert torch.equal(of_bytes(env)(seen)["features"], flat(seen))
    assert not capsys.readouterr().err
    module = encoders.encoder(env, ["pixels"], reader="mlp", scale="bounds")
    assert torch.equal(module(seen)["features"], flat(seen))
    assert capsys.readouterr().err.startswith("warning: encoder.scale=bounds: an image without bounds")


def of_bytes(env: EnvBase) -> nn.Module:
    return encoders.encoder(env, ["pixels"], reader="mlp", scale="bytes")


def flat(seen: TensorDict) -> torch.Tensor:
    """The pixels of a picture in a row."""
    return seen["pixels"].flatten()


def test_before_there_was_a_choice_whole_numbers_alone_were_scaled():
    env = any_picture("float32", 0, 255)
    seen = env.reset()
    assert torch.equal(of_bytes(env)(seen)["features"], flat(seen))


@pytest.mark.parametrize(("reader", "last"), [("cnn", True), ("impala", True), ("minatar", False)])
def test_several_convolutions_read_channels_side_by_side_to_the_same_numbers(reader, last):
    module = built(reader, 40, 3)
    picture = next(each for each in module.modules() if isinstance(each, encoders.ImageEncoder))
    strides = []
    kernel = next(each for each in module.modules() if isinstance(each, nn.Conv2d))
    kernel.register_forward_pre_hook(lambda _, given: strides.append(given[0].stride()))
    pixels = torch.randint(256, (2, 3, 3, 40, 40), dtype=torch.uint8)

    def read() -> tuple[torch.Tensor, ...]:
        features = picture(pixels)
        return features, *torch.autograd.grad(features.square().sum(), [*picture.parameters()])

    found = read()
    assert (strides[0][-3:] == (1, 40 * 3, 3)) is last
    picture.channels_last = False
    for one, other in zip(found, read(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert strides[1][-3:] == (40 * 40, 40, 1)
    picture.channels_last = last
    torch.testing.assert_close(torch.vmap(picture)(pixels), found[0], atol=1e-5, rtol=1e-5)


def test_entries_of_several_kinds_are_joined_in_order():
    env = shows(40, name="Scene-v0")
    module = encoders.encoder(env, ["camera", "goal", "speed"])
    start = env.reset()
    features = module(start)["features"]
    torch.testing.assert_close(features[512:], torch.cat([start["goal"], start["speed"]]).to(features.dtype))


def test_vectors_alone_are_read_by_hidden_layers_as_they_are():
    env = make_env(partial(gymnasium_env, "CartPole-v1"), [], seed=0)
    assert encoders.encoder(env, ["observation"]) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"reader": "cnn"},
            r"encoder=cnn: images of 12 x 12 are below 36 x 36",
        ),
        ({"pixels": "cnn"}, r"encoder\.pixels=cnn: images of 12 x 12"),
        ({"camera": "cnn"}, r"encoder\.camera=cnn: no such entry\. Entries are pixels"),
    ],
)
def test_a_reader_that_does_not_fit_is_told_in_a_line(options, told):
    with pytest.raises(UserError, match=told):
        encoders.encoder(shows(), ["pixels"], **options)


def test_a_reader_of_pictures_fits_no_vector():
    env = shows(40, name="Scene-v0")
    with pytest.raises(UserError, match=r"encoder\.goal=cnn: goal is a vector, not an image. Write mlp"):
        encoders.encoder(env, ["camera", "goal"], goal="cnn")
    with pytest.raises(UserError, match="encoder=impala: it is for images, and speed has none"):
        encoders.encoder(env, ["speed"], reader="impala")
    with pytest.raises(UserError, match=r"encoder.features=64: it is for images, and speed has none"):
        encoders.encoder(env, ["speed"], features=64)
    with pytest.raises(
        UserError,
        match=r"camera is an image of 3 x 40 x 40, and a network without encoder reads vectors. Write",
    ):
        actors.categorical(env, **NET)


def test_orthogonal_weights_reach_the_convolutions():
    actor = actors.categorical(shows(), **NET, encoder=encoders.encoder, init="orthogonal")
    kernel = next(each for each in actor.modules() if isinstance(each, nn.Conv2d)).weight.flatten(1)
    torch.testing.assert_close(kernel @ kernel.mT, 2 * torch.eye(len(kernel)), atol=1e-5, rtol=1e-5)


def test_noise_is_for_what_follows_an_encoder():
    actor = actors.q_value(shows(), **NET, encoder=encoders.encoder, noisy=0.5)
    (features,) = (each for each in actor.modules() if isinstance(each, Encoder))
    assert [type(each) for each in features.modules() if isinstance(each, nn.Linear)] == [nn.Linear]
    assert "NoisyLinear" in {type(each).__name__ for each in actor.modules()}


def rows_of(env, count: int = 6) -> TensorDict:
    """Rows to learn from, as a rollout of random actions has them, with an advantage and a target."""
    rows = env.rollout(count, break_when_any_done=False).detach()
    rows["action_log_prob"] = torch.full((count,), -0.7)
    rows["advantage"], rows["value_target"] = torch.randn(2, count, 1)
    return rows


@pytest.mark.parametrize(("loss", "functional"), [(ClipPPOLoss, False), (ClipPPOLoss, True), (A2CLoss, True)])
def test_a_shared_encoder_reads_once_and_its_gradient_is_that_of_both(loss, functional):
    env = shows()
    actor = actors.categorical(env, **NET, encoder=encoders.encoder)
    critic = critics.state_value(env, actor, **NET, encoder="shared")
    module = loss(actor, critic, functional=functional)
    (features,) = {each for each in [*actor.modules(), *critic.modules()] if isinstance(each, Encoder)}
    rows, readings = rows_of(env), []
    features.module[0].register_forward_hook(lambda *_: readings.append(1))

    def learned() -> dict[str, torch.Tensor]:
        module.zero_grad()
        terms = module(rows.clone(False))
        sum(terms[key] for key in terms.keys() if key.startswith("loss")).backward()  # noqa: SIM118
        return {name: each.grad.clone() for name, each in features.named_parameters()}

    once = learned()
    assert len(readings) == 1
    features.shared = False  # by which the critic reads by itself
    twice = learned()
    assert len(readings) == 3
    assert once.keys() == twice.keys()
    for name in once:
        torch.testing.assert_close(once[name], twice[name], atol=1e-6, rtol=1e-4)
    assert len([*module.parameters()]) == len({*actor.parameters(), *critic.parameters()})

    features.shared = True
    with torch.no_grad():
        for each in features.parameters():
            each.mul_(0.5)
    learned()
    assert len(readings) == 4  # nothing of what older weights made of the same rows


def test_weights_that_changed_and_rows_that_did_are_read_anew():
    env = shows()
    actor = actors.categorical(env, **NET, encoder=encoders.encoder)
    critics.state_value(env, actor, **NET, encoder="shared")
    (features,) = (each for each in actor.modules() if isinstance(each, Encoder))
    rows = rows_of(env)
    first = features(rows.select("pixels"))["features"]
    assert features(rows.select("pixels"))["features"] is first
    assert features(rows.select("pixels"))["features"] is not first  # each reading is handed on once
    with torch.no_grad():
        next(features.parameters()).mul_(2)
    changed = features(rows.select("pixels"))["features"]
    assert not torch.equal(changed, first)
    rows["pixels"].fill_(0)
    assert not torch.equal(features(rows.select("pixels"))["features"], changed)


def test_a_critic_may_have_an_encoder_of_its_own():
    env = shows()
    actor = actors.categorical(env, **NET, encoder=encoders.encoder)
    critic = critics.state_value(env, actor, **NET, encoder=encoders.encoder)
    assert not {*actor.parameters()} & {*critic.parameters()}
    assert weights(critic)[0] == [16, 3, 3, 3]


def test_losses_that_are_kept_apart_take_no_shared_encoder():
    env = shows()
    actor = actors.categorical(env, **NET, encoder=encoders.encoder)
    parts = {"actor": actor, "critic": critics.state_value(env, actor, **NET, encoder="shared")}
    networks = {"actor_network": "actor", "critic_network": "critic"}
    apart = partial(ClipPPOLoss, separate_losses=True)
    with pytest.raises(UserError, match=r"separate_losses=true: .* Write critic\.encoder=own"):
        make_loss(apart, parts, env.action_spec, networks, {}, {})
    parts["critic"] = critics.state_value(env, actor, **NET, encoder=encoders.encoder)
    make_loss(apart, parts, env.action_spec, networks, {}, {})


@pytest.mark.parametrize(("loss", "functional"), [(ClipPPOLoss, False), (A2CLoss, True)])
def test_a_batch_of_pictures_is_judged_in_parts_to_the_same_advantages(loss, functional):
    env = shows()
    actor = actors.categorical(env, **NET, encoder=encoders.encoder)
    parts = {"actor": actor, "critic": critics.state_value(env, actor, **NET, encoder="shared")}
    networks = {"actor_network": "actor", "critic_network": "critic"}
    make = partial(make_loss, partial(loss, functional=functional), parts, env.action_spec, networks, {})
    rows, read = rows_of(env, 48).reshape(16, 3), list[int]()
    features = next(each for each in actor.modules() if isinstance(each, Encoder))
    features.register_forward_pre_hook(lambda _, given: read.append(given[0].numel()))

    def advantages(**asked: int) -> torch.Tensor:
        batch = rows.clone()
        estimate_advantages(batch, make({"gamma": 0.9, "lmbda": 0.8, "average_gae": False, **asked}))
        return batch["advantage"]

    whole = advantages(num_chunks=1)
    assert max(read) == 48
    read.clear()
    torch.testing.assert_close(advantages(), whole, atol=1e-5, rtol=1e-5)
    assert max(read) == 6  # two of sixteen environments
    assert whole.std() > 0
