"""A policy as one file for other runtimes: what is observed and remembered in, what to do out."""

import json
import logging
from collections.abc import Callable, Sequence
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

from hydrl.config.settings import Settings
from hydrl.envs.external_env import GymIO, adapt_input
from hydrl.envs.spaces import get_path, is_image
from hydrl.envs.transforms import ActionScaling, detach_transform, transforms_read_by
from hydrl.errors import UserError
from hydrl.specs import MASK
from hydrl.training.evaluator import PolicyEvaluator, preserve_rng


def exportable(path: str | Path) -> Path:
    """Where a policy can be written.

    Raises:
        UserError: for another ending than ``.onnx`` and ``.pt2``, a folder that is not there, and where ONNX
            is not installed.
    """
    path = Path(path)
    if path.suffix not in (".onnx", ".pt2"):
        raise UserError(f"export: {path} should end in .onnx or .pt2")
    if not path.parent.is_dir():
        raise UserError(f"export: {path} cannot be written: there is no folder {path.parent}")
    if path.suffix == ".onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise UserError(f"export: {path} needs ONNX, which is not installed: pip install 'hydrl[export]'")
    return path


class Network(nn.Module):
    """Observation to action in the environment's own form, through what the actor reads of the transforms.

    It is on the CPU and in single precision, whatever the run was on and its task observes in.

    Args:
        settings: the run's.
        evaluator: has its policy and normaliser.
        form: of its environment.

    Attributes:
        seen: its inputs by their names, with their spaces: what the task shows, a dictionary entry by entry.
        taken: the space of what it gives.
        memory: what it remembers by the policy's names, with the shapes.

    Raises:
        UserError: for spaces of other kinds than these, and for stacked frames.
    """

    def __init__(self, settings: Settings, evaluator: PolicyEvaluator, form: GymIO) -> None:
        super().__init__()
        self.form, self.taken, self.observe = form, form.acted, form.observe
        self.seen = {name or "observation": space for name, (_, space) in form.entries.items()}
        self.seen |= {MASK: MultiBinary(len(form.allowed.allowed))} if form.allowed else {}
        apart = isinstance(form.task.observation_space, Dict)
        self.names = [name or "pixels" for name in form.entries] if apart else []
        for space in self.seen.values():
            if not isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete):
                raise UserError(f"export writes no policy that observes a {space}; use predict")
        if isinstance(self.taken, Dict | Tuple):
            raise UserError(f"export writes no policy whose actions are a {self.taken}; use predict")
        with preserve_rng():
            env = evaluator.make_env(normaliser=evaluator.normaliser(), device="cpu", policy=None)
            actor = settings.build("actor")(env)
            env.close()
        actor.load_state_dict(evaluator.actor.state_dict())
        if "episode_reward" in actor.in_keys:
            raise UserError("export writes no policy that acts for a return and reads rewards; use predict")
        self.key, self.memory = env.action_key, states_of(actor)
        if any(isinstance(each, CatFrames) for each in env.transform):
            raise UserError(
                "export: this run stacks frames (CatFrames), which no file carries from step to step; use "
                "predict, or train with a memory in their place, memory=lstm, or with "
                "gymnasium.wrappers.FrameStackObservation in env.wrappers"
            )
        transforms = transforms_read_by(actor, env)
        self.scalings = [each for each in env.transform if isinstance(each, ActionScaling)]
        self.inside = [f"observe {self.observe}"] if self.observe else []
        before, after = ([type(each).__name__ for each in side] for side in (transforms, self.scalings))
        self.inside += [*before, "actor", *after]
        standing = list(map(detach_transform, transforms))
        step_by_step(actor)
        self.layers = nn.ModuleList([*standing, actor]).eval().float().requires_grad_(False)
        for each in self.modules():
            if isinstance(each, ObservationNorm):  # branches on a buffer, which no graph can
                standard = bool(each.standard_normal)
                del each.standard_normal
                each.standard_normal = standard

    def begin(self, seen: Any, mask: np.ndarray | None) -> list[Tensor]:
        """The inputs where episodes begin: observed, ``[batch, *shape]``, allowed, and zeros of memory."""
        given = [get_path(seen, path) for path, _ in self.form.entries.values()]
        given += [] if mask is None else [mask]
        zeros = [torch.zeros(len(given[0]), *shape) for shape in self.memory.values()]
        kinds = map(kind, self.seen.values())
        return [
            *(torch.as_tensor(each.astype(kind)) for each, kind in zip(given, kinds, strict=True)),
            *zeros,
        ]

    def forward(self, *given: Tensor) -> Tensor | tuple[Tensor, ...]:
        """What is observed, ``[batch, *shape]``, and remembered, to action ``[batch, ...]`` and the same."""
        entries, states = self.entries(given[: len(self.seen)]), given[len(self.seen) :]
        tensordict = TensorDict({**entries, **dict(zip(self.memory, states, strict=True))})
        for layer in self.layers:
            tensordict = layer(tensordict)
        action = self.acted(tensordict[self.key])
        return (action, *(tensordict["next", key] for key in self.memory)) if states else action

    def entries(self, given: Sequence[Tensor]) -> dict[str, Tensor]:
        """What is observed as the policy has it: by the task's own names, or all as one vector; a mask."""
        read = [adapt_input(each, space) for each, space in zip(given, self.seen.values(), strict=True)]
        mask = {MASK: read.pop() != 0} if self.form.allowed else {}
        if self.names:
            return mask | dict(zip(self.names, read, strict=True))
        vector = torch.cat(read, -1) if len(read) > 1 else read[0]
        return mask | {"observation": vector[:, self.observe] if self.observe else vector}

    def acted(self, action: Tensor) -> Tensor:
        """The policy's action as the task takes it."""
        for each in self.scalings:
            action = each.denormalize(action)
        if isinstance(self.taken, Discrete):
            return action.argmax(-1) + int(self.taken.start)
        if isinstance(self.taken, MultiDiscrete | MultiBinary):
            if isinstance(self.form.spec, OneHot):  # there is one
                action = action.argmax(-1)
            counted = action.reshape(-1, *self.taken.shape)
            return counted + torch.as_tensor(getattr(self.taken, "start", 0), dtype=torch.long)
        return action.float().reshape(-1, *self.taken.shape)


class Step(nn.Module):
    """One step of an LSTM or GRU as a graph has it: TorchRL's module looks at the shape of its batch.

    Args:
        cell: ``torch.nn``'s, or TorchRL's in its place.
    """

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, seen: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """``[batch, size]`` and states ``[batch, layers, units]`` to ``[batch, units]`` and the next ones."""
        before = [each.transpose(0, 1) for each in states]
        out, after = self.cell(seen.unsqueeze(1), tuple(before) if len(before) > 1 else before[0])
        following = after if isinstance(after, tuple) else (after,)
        return out.squeeze(1), *(each.transpose(0, 1) for each in following)


def step_by_step(actor: nn.Module) -> None:
    """Puts a :class:`Step` in the place of each memory."""
    for parent in list(actor.modules()):
        for name, each in parent.named_children():
            if isinstance(each, LSTMModule | GRUModule):
                cell = each.make_python_based()
                step = Step(cell.lstm if isinstance(cell, LSTMModule) else cell.gru)
                keys = [key for key in each.in_keys if key != "is_init"]  # which zeros say
                setattr(parent, name, TensorDictModule(step, in_keys=keys, out_keys=each.out_keys))


def states_of(actor: TensorDictModuleBase) -> dict[NestedKey, list[int]]:
    """The entries by which an actor remembers, with their shapes: of an LSTM two, of a GRU one."""
    primer = get_primers_from_module(actor, warn=False)
    primers = [each for each in (primer.modules() if primer else ()) if hasattr(each, "primers")]
    return {key: list(spec.shape) for each in primers for key, spec in each.primers.items(True, True)}


def check(
    network: Network, episodes: Sequence[Sequence[Any]], predict: Callable[..., Any], reset: Callable
) -> None:
    """Holds a network to what the policy does.

    Args:
        network: as it will be written.
        episodes: what is observed and allowed at each step of each, as :meth:`OwnForm.observed` gives it.
        predict: the policy.
        reset: tells it that episodes begin.

    Raises:
        UserError: if they differ.
    """
    for episode in episodes:
        reset()
        inputs = len(network.seen)
        states = network.begin(*episode[0])[inputs:]
        for seen, mask in episode:
            try:
                given = network(*network.begin(seen, mask)[:inputs], *states)
            except (KeyError, NotImplementedError) as error:
                raise UserError(f"export: the policy reads more than the observation: {error}") from error
            action, *states = given if states else [given]
            if not np.allclose(action, predict(seen, mask=mask), rtol=1e-4, atol=1e-4):
                raise UserError("export: a transform of this run acts otherwise outside of its environment")


def kind(space: Space) -> str:
    """The numbers that a file has for a space: a picture's own, else one kind of each."""
    if is_image(space) and space.dtype.kind in "biu":
        return str(space.dtype)
    return "int64" if isinstance(space, Discrete | MultiDiscrete) else "float32"


def described(settings: Settings, frames: int, network: Network) -> dict[str, Any]:
    """What a file says of itself: whose policy it is, what it takes, gives, and has inside."""
    chosen = {} if isinstance(network.taken, Box) else {"dtype": "int64"}
    state = [(str(key).removeprefix("recurrent_"), shape) for key, shape in network.memory.items()]
    states = [{"name": name, "dtype": "float32", "shape": ["batch", *shape]} for name, shape in state]
    return {
        "hydrl": version("hydrl"),
        "algo": settings.algo,
        "task": settings.task,
        "env": settings.shown["env"],
        "seed": settings.seed,
        "frames": frames,
        "inside": network.inside,
        "inputs": [
            *(entry(name, space) for name, space in network.seen.items()),
            *({**each, "begins": 0.0} for each in states),
        ],
        "outputs": [
            entry("action", network.taken) | chosen,
            *(each | {"name": f"next_{each['name']}"} for each in states),
        ],
    }


def entry(name: str, space: Space) -> dict[str, Any]:
    """An input or output: its name, kind, shape and bounds, each one number where all are the same."""
    if isinstance(space, Discrete):
        low, high = int(space.start), int(space.start + space.n - 1)
    elif isinstance(space, MultiDiscrete):
        low, high = bound(space.start), bound(space.start + space.nvec - 1)
    elif isinstance(space, MultiBinary):
        low, high = 0, 1
    else:
        low, high = bound(space.low), bound(space.high)
    return {"name": name, "dtype": kind(space), "shape": ["batch", *space.shape], "low": low, "high": high}


def bound(values: np.ndarray) -> Any:
    """Bounds as JSON has them, ``None`` for none."""
    plain = (values + 0).astype(object)  # numbers of truth values, too
    plain[~np.isfinite(values)] = None
    return plain.flat[0] if len(set(plain.flat)) == 1 else plain.tolist()


def in_words(said: dict[str, Any]) -> str:
    """The same in a line."""
    sides = [
        ", ".join("{name} {dtype} {shape}".format(**each).replace("'", "") for each in said[side])
        for side in ("inputs", "outputs")
    ]
    begin = "; zeros begin an episode" if any("begins" in each for each in said["inputs"]) else ""
    return f"{' -> '.join(sides)}{begin}"


def write(network: Network, example: Sequence[Tensor], said: dict[str, Any], path: Path) -> None:
    """Writes ONNX or what ``torch.export.load`` reads, by the ending of ``path``; see :func:`exportable`."""
    many = (tuple({0: torch.export.Dim("batch")} for _ in example),)
    with torch.no_grad():
        program = torch.export.export(network, tuple(example), dynamic_shapes=many)
    if path.suffix == ".pt2":
        torch.export.save(program, path, extra_files={"policy.json": json.dumps(said, indent=2)})
        return
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it would miss torchvision
    taken, given = ([each["name"] for each in said[side]] for side in ("inputs", "outputs"))
    named: dict[str, Any] = {"input_names": taken, "output_names": given, "dynamic_shapes": many}
    made = torch.onnx.export(program, (), verbose=False, **named)
    assert made is not None
    model = made.model
    for key, each in said.items():
        model.metadata_props[key] = each if isinstance(each, str) else json.dumps(each)
    model.doc_string = f"{said['algo']} on {said['task']} after {said['frames']:,} frames: {in_words(said)}"
    made.save(path)
