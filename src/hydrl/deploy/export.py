"""Export of a policy to one ONNX or PyTorch file: observation and RNN state in, action out."""

import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from tensordict import NestedKey, TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import OneHot
from torchrl.envs import CatFrames, ObservationNorm
from torchrl.modules import GRUModule, LSTMModule
from torchrl.modules.utils import get_primers_from_module

from hydrl.envs.external_env import GymIO, adapt_input
from hydrl.envs.spaces import get_path, is_image
from hydrl.envs.transforms import ActionScaling, detach_transform, transforms_read_by
from hydrl.errors import UserError
from hydrl.specs import MASK, PLAN
from hydrl.training.evaluator import PolicyEvaluator, preserve_rng


def check_export_path(path: str | Path) -> Path:
    """Checks the path of an export.

    Raises:
        UserError: for another ending than ``.onnx`` and ``.pt2``, a missing folder, or a missing ``onnx``.
    """
    path = Path(path)
    if path.suffix not in (".onnx", ".pt2"):
        raise UserError(f"export={path}: unknown format. Use a name that ends in .onnx or .pt2.")
    if not path.parent.is_dir():
        raise UserError(f"export={path}: no folder {path.parent}. Create it first.")
    if path.suffix == ".onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise UserError(f"export={path}: ONNX is not installed. Run pip install 'hydrl[export]'.")
    return path


class ExportedPolicy(nn.Module):
    """Network from the environment's own observations to its own actions, which contains the transforms.

    It is on the CPU and in single precision.

    Args:
        build_actor: builds the run's actor for an environment.
        evaluator: holds the policy and its normalizer.
        io: spaces of the environment.

    Attributes:
        inputs: spaces of the inputs by name; a dictionary observation entry by entry.
        action_space: space of the output.
        state_shapes: shapes of the RNN states by the policy's keys.
        steps: names of the transforms and networks inside, in order.

    Raises:
        UserError: for unsupported spaces and for stacked frames.
    """

    def __init__(self, build_actor: Callable[..., Any], evaluator: PolicyEvaluator, io: GymIO) -> None:
        super().__init__()
        self.io, self.action_space, self.observe = io, io.action_space, io.observe
        self.inputs = {name or "observation": space for name, (_, space) in io.entries.items()}
        self.inputs |= {MASK: MultiBinary(len(io.mask_tracker.mask))} if io.mask_tracker else {}
        is_dict = isinstance(io.adapted_env.observation_space, Dict)
        self.names = [name or "pixels" for name in io.entries] if is_dict else []
        for space in self.inputs.values():
            if not isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete):
                raise UserError(f"export: observations in {space} are not supported. Use predict.")
        if isinstance(self.action_space, Dict | Tuple):
            raise UserError(f"export: actions in {self.action_space} are not supported. Use predict.")
        with preserve_rng():
            env = evaluator.make_env(normalizer=evaluator.normaliser(), device="cpu", policy=None)
            actor = build_actor(env)
            env.close()
        actor.load_state_dict(evaluator.actor.state_dict())
        if "episode_reward" in actor.in_keys:
            raise UserError("export: return-conditioned policies are not supported. Use predict.")
        if PLAN in actor.in_keys:
            raise UserError("export: policies that plan are not supported. Use predict.")
        self.key, self.state_shapes = env.action_key, recurrent_shapes(actor)
        if any(isinstance(transform, CatFrames) for transform in env.transform):
            raise UserError(
                "export: stacked frames (CatFrames) are not supported. Use predict, or train with "
                "rnn=lstm or gymnasium.wrappers.FrameStackObservation in env.wrappers."
            )
        transforms = transforms_read_by(actor, env)
        self.scalings = [transform for transform in env.transform if isinstance(transform, ActionScaling)]
        self.steps = [f"observe {self.observe}"] if self.observe else []
        before, after = ([type(step).__name__ for step in side] for side in (transforms, self.scalings))
        self.steps += [*before, "actor", *after]
        detached = list(map(detach_transform, transforms))
        replace_recurrent_modules(actor)
        self.layers = nn.ModuleList([*detached, actor]).eval().float().requires_grad_(False)
        for module in self.modules():
            if isinstance(module, ObservationNorm):  # it branches on a buffer; graphs cannot
                standard = bool(module.standard_normal)
                del module.standard_normal
                module.standard_normal = standard

    def begin(self, observation: Any, mask: np.ndarray | None) -> list[Tensor]:
        """Inputs at episode start: observation ``[batch, *shape]``, mask, and zero RNN states."""
        observed = [get_path(observation, path) for path, _ in self.io.entries.values()]
        observed += [] if mask is None else [mask]
        zeros = [torch.zeros(len(observed[0]), *shape) for shape in self.state_shapes.values()]
        kinds = map(input_dtype, self.inputs.values())
        return [
            *(torch.as_tensor(values.astype(kind)) for values, kind in zip(observed, kinds, strict=True)),
            *zeros,
        ]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Observation ``[batch, *shape]`` and RNN states to action ``[batch, ...]`` and next RNN states."""
        entries, states = self.read_inputs(inputs[: len(self.inputs)]), inputs[len(self.inputs) :]
        tensordict = TensorDict({**entries, **dict(zip(self.state_shapes, states, strict=True))})
        for layer in self.layers:
            tensordict = layer(tensordict)
        action = self.to_env_action(tensordict[self.key])
        return (action, *(tensordict["next", key] for key in self.state_shapes)) if states else action

    def read_inputs(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Policy inputs: entries by name, or one vector of all, and the mask."""
        spaces = self.inputs.values()
        adapted = [adapt_input(values, space) for values, space in zip(inputs, spaces, strict=True)]
        mask = {MASK: adapted.pop() != 0} if self.io.mask_tracker else {}
        if self.names:
            return mask | dict(zip(self.names, adapted, strict=True))
        vector = torch.cat(adapted, -1) if len(adapted) > 1 else adapted[0]
        return mask | {"observation": vector[:, self.observe] if self.observe else vector}

    def to_env_action(self, action: Tensor) -> Tensor:
        """The policy's action in the environment's own space."""
        for scaling in self.scalings:
            action = scaling.denormalize(action)
        if isinstance(self.action_space, Discrete):
            return action.argmax(-1) + int(self.action_space.start)
        if isinstance(self.action_space, MultiDiscrete | MultiBinary):
            if isinstance(self.io.spec, OneHot):  # a single discrete action
                action = action.argmax(-1)
            start = torch.as_tensor(getattr(self.action_space, "start", 0), dtype=torch.long)
            return action.reshape(-1, *self.action_space.shape) + start
        return action.float().reshape(-1, *self.action_space.shape)


class RecurrentStep(nn.Module):
    """One step of an LSTM or GRU that can be exported; TorchRL's module branches on the batch shape.

    Args:
        cell: the LSTM or GRU of ``torch.nn`` or TorchRL.
    """

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, features: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """``[batch, size]`` and states ``[batch, layers, units]`` to ``[batch, units]`` and next states."""
        before = [state.transpose(0, 1) for state in states]
        out, after = self.cell(features.unsqueeze(1), tuple(before) if len(before) > 1 else before[0])
        following = after if isinstance(after, tuple) else (after,)
        return out.squeeze(1), *(state.transpose(0, 1) for state in following)


def replace_recurrent_modules(actor: nn.Module) -> None:
    """Replaces each recurrent module by a :class:`RecurrentStep`."""
    for parent in list(actor.modules()):
        for name, child in parent.named_children():
            if isinstance(child, LSTMModule | GRUModule):
                cell = child.make_python_based()
                step = RecurrentStep(cell.lstm if isinstance(cell, LSTMModule) else cell.gru)
                keys = [key for key in child.in_keys if key != "is_init"]  # zero states mark a start
                setattr(parent, name, TensorDictModule(step, in_keys=keys, out_keys=child.out_keys))


def recurrent_shapes(actor: TensorDictModuleBase) -> dict[NestedKey, list[int]]:
    """Keys and shapes of an actor's RNN states: two for an LSTM, one for a GRU."""
    primer = get_primers_from_module(actor, warn=False)
    primers = [module for module in (primer.modules() if primer else ()) if hasattr(module, "primers")]
    return {
        key: list(spec.shape) for transform in primers for key, spec in transform.primers.items(True, True)
    }


def check_outputs(
    network: ExportedPolicy, episodes: Sequence[Sequence[Any]], predict: Callable[..., Any], reset: Callable
) -> None:
    """Compares an exported network's actions with the policy's.

    Args:
        network: the network to export.
        episodes: observation and mask of each step, by ``GymIO.sample_observations``.
        predict: the policy's ``predict``.
        reset: the policy's ``reset``.

    Raises:
        UserError: if they differ.
    """
    for episode in episodes:
        reset()
        inputs = len(network.inputs)
        states = network.begin(*episode[0])[inputs:]
        for observation, mask in episode:
            try:
                outputs = network(*network.begin(observation, mask)[:inputs], *states)
            except (KeyError, NotImplementedError) as error:
                raise UserError(f"export: the policy reads more than the observation: {error}.") from error
            action, *states = outputs if states else [outputs]
            if not np.allclose(action, predict(observation, mask=mask), rtol=1e-4, atol=1e-4):
                raise UserError("export: the exported policy acts differently. Use predict.")


def input_dtype(space: Space) -> str:
    """Dtype of an input or output in the file: an image's own, ``int64`` or ``float32``."""
    if is_image(space) and space.dtype.kind in "biu":
        return str(space.dtype)
    return "int64" if isinstance(space, Discrete | MultiDiscrete) else "float32"


def describe_policy(run: Mapping[str, Any], frames: int, network: ExportedPolicy) -> dict[str, Any]:
    """Metadata of an exported file: origin, inputs, outputs and inner steps of the policy.

    Args:
        run: settings of the run as they are saved.
        frames: frames the policy was trained for.
        network: the exported network.
    """
    action_dtype = {} if isinstance(network.action_space, Box) else {"dtype": "int64"}
    shapes = {str(key).removeprefix("recurrent_"): shape for key, shape in network.state_shapes.items()}
    states = [
        {"name": name, "dtype": "float32", "shape": ["batch", *shape]} for name, shape in shapes.items()
    ]
    return {
        "hydrl": version("hydrl"),
        **{key: run[key] for key in ("algo", "task", "env", "seed")},
        "frames": frames,
        "inside": network.steps,
        "inputs": [
            *(describe_entry(name, space) for name, space in network.inputs.items()),
            *({**description, "begins": 0.0} for description in states),
        ],
        "outputs": [
            describe_entry("action", network.action_space) | action_dtype,
            *(description | {"name": f"next_{description['name']}"} for description in states),
        ],
    }


def describe_entry(name: str, space: Space) -> dict[str, Any]:
    """Name, dtype, shape and bounds of an input or output; equal bounds are one number."""
    if isinstance(space, Discrete):
        low, high = int(space.start), int(space.start + space.n - 1)
    elif isinstance(space, MultiDiscrete):
        low, high = json_bound(space.start), json_bound(space.start + space.nvec - 1)
    elif isinstance(space, MultiBinary):
        low, high = 0, 1
    else:
        low, high = json_bound(space.low), json_bound(space.high)
    return {
        "name": name,
        "dtype": input_dtype(space),
        "shape": ["batch", *space.shape],
        "low": low,
        "high": high,
    }


def json_bound(values: np.ndarray) -> Any:
    """Bounds as JSON values, ``None`` for infinity."""
    plain = (values + 0).astype(object)  # also turns booleans into numbers
    plain[~np.isfinite(values)] = None
    return plain.flat[0] if len(set(plain.flat)) == 1 else plain.tolist()


def describe_in_words(description: dict[str, Any]) -> str:
    """The description in one line."""
    sides = [
        ", ".join("{name} {dtype} {shape}".format(**tensor).replace("'", "") for tensor in description[side])
        for side in ("inputs", "outputs")
    ]
    is_recurrent = any("begins" in tensor for tensor in description["inputs"])
    return " -> ".join(sides) + "; zeros at episode start" * is_recurrent


def write_model(
    network: ExportedPolicy, example: Sequence[Tensor], description: dict[str, Any], path: Path
) -> None:
    """Writes an ONNX or ``torch.export`` file, by the ending of ``path``."""
    batch_dims = (tuple({0: torch.export.Dim("batch")} for _ in example),)
    with torch.no_grad():
        program = torch.export.export(network, tuple(example), dynamic_shapes=batch_dims)
    if path.suffix == ".pt2":
        torch.export.save(program, path, extra_files={"policy.json": json.dumps(description, indent=2)})
        return
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it would warn that torchvision is missing
    inputs, outputs = ([tensor["name"] for tensor in description[side]] for side in ("inputs", "outputs"))
    names: dict[str, Any] = {"input_names": inputs, "output_names": outputs}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "# The axis name")  # all inputs share their first one
        exported = torch.onnx.export(program, (), verbose=False, dynamic_shapes=batch_dims, **names)
    assert exported is not None
    model = exported.model
    for key, value in description.items():
        model.metadata_props[key] = value if isinstance(value, str) else json.dumps(value)
    origin = "{algo} on {task} after {frames:,} frames".format(**description)
    model.doc_string = f"{origin}: {describe_in_words(description)}"
    exported.save(path)
