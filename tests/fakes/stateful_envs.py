"""Environments whose rewards depend on state in places that are hard to find."""

import array
import random
import time
from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Tuple

Pair = namedtuple("Pair", "left right")
Mode = Enum("Mode", ["CALM", "STORM"])


class History(deque):
    """Subclass of a standard container."""

    total = 0.0

    def take(self, value: float) -> float:
        self.append(value)
        self.total = self.total % 7 + value
        return self.total + sum(self)


class StatefulEnv(gymnasium.Env):
    """Environment with episodes of 9 steps, whose rewards are :meth:`pay`."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, (1,))
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
            self.action_space.seed(seed)
        self.steps = 0
        self.begin()
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(self.pay(float(action[0])))
        return np.array([self.steps / 9, np.tanh(reward)], np.float32), reward, False, self.steps == 9, {}

    def begin(self) -> None:
        """A new episode."""

    def pay(self, action: float) -> float:
        raise NotImplementedError


class Containers(StatefulEnv):
    """State in the standard library's containers, one of them under two names."""

    class Calm:
        factor = 1.0

    class Storm:
        factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.one = self.same = [0.0]
        self.ends = self.one, np.zeros(2)
        self.end = self.ends[1]
        self.last, self.history = deque([0.0] * 3, maxlen=3), History()
        self.counts, self.deep = defaultdict(float), defaultdict(lambda: defaultdict(list))
        self.order, self.counter, self.set = OrderedDict(a=0.0, b=1.0), Counter(), {0}
        self.pairs, self.own, self.bytes = [Pair(0, 0.0)], UserDict(n=0), bytearray(3)
        self.numbers, self.mode, self.weather = array.array("d", [0.0]), Mode.CALM, self.Calm
        self.bonus: Callable[[], float] = self.small
        self.by = {("a", 1): [0.0], np.int64(2): [0.0], Mode.CALM: [0.0]}
        self.ring = [0.0, None]
        self.ring[1] = self.ring

    def small(self) -> float:
        return 0.1

    def large(self) -> float:
        return 0.2

    def pay(self, action: float) -> float:
        now = self.counter["steps"] = self.counter["steps"] + 1
        self.one[0] += 1
        self.end[now % 2] += action
        self.last.append(action)
        self.counts[now % 5] += action
        self.deep[now % 3][now % 2] = [*self.deep[now % 3][now % 2][-2:], action]
        self.order.move_to_end("ab"[now % 2])
        self.set = {*list(self.set)[-3:], now}
        self.pairs = [*self.pairs[-3:], Pair(now, action)]
        self.own["n"] += 1
        self.bytes[now % 3] = now % 256
        self.numbers[0] = np.float64(action)
        self.mode, self.weather = [(Mode.STORM, self.Storm), (Mode.CALM, self.Calm)][now // 7 % 2]
        self.bonus = self.large if now // 5 % 2 else self.small
        self.by["a", 1][0] += action
        self.by[Mode.CALM][0] += 1
        self.ring[1][0] += action
        deep = sum(self.deep[now % 3][now % 2])
        total = sum(self.last) + self.history.take(action) + self.counts[3] + deep + len(self.deep)
        total += "ab".index(next(iter(self.order))) + len(self.set) + self.pairs[0].right + self.own["n"] % 3
        total += sum(self.bytes) % 5 + self.numbers[0] + (self.mode is Mode.STORM) + self.by["a", 1][0]
        total += self.by[Mode.CALM][0] % 3 + self.ring[0] + self.bonus()
        return total * self.weather.factor + self.same[0] % 5 + self.ends[0][0] % 3 + self.ends[1][0]


class Generators(StatefulEnv):
    """State in all random generators, one of them made at the first reset."""

    rng = None

    def __init__(self) -> None:
        super().__init__()
        self.nested = Dict(a=Tuple([Box(-1.0, 1.0)]))
        self.made: list[Any] = []

    def begin(self) -> None:
        if self.rng is None:
            self.rng = np.random.default_rng(int(self.np_random.integers(1_000)))
            self.nested.seed(int(self.np_random.integers(1_000)))
        philox = np.random.Philox(int(self.rng.integers(1_000)))
        self.made = [np.random.Generator(philox), random.Random(self.steps)]
        self.made = self.made[:: int(self.rng.choice([1, -1]))]

    def pay(self, action: float) -> float:
        drawn = self.rng.random() + self.observation_space.sample()[0] + self.nested.sample()["a"][0][0]
        drawn += sum(generator.random() for generator in self.made)
        return drawn + np.random.rand() + random.random() + torch.rand(()).item()


COUNT = 0


def counted() -> int:
    counted.calls = getattr(counted, "calls", 0) + 1
    return counted.calls


class OfTheModule(StatefulEnv):
    def pay(self, action: float) -> float:
        global COUNT
        COUNT += 1
        return COUNT


class OfAFunction(StatefulEnv):
    def pay(self, action: float) -> float:
        return counted()


class OfALibrary(StatefulEnv):
    def pay(self, action: float) -> float:
        gymnasium.Env.hidden = getattr(gymnasium.Env, "hidden", 0) + 1
        return gymnasium.Env.hidden


class OfTheClock(StatefulEnv):
    def pay(self, action: float) -> float:
        return time.time() % 1_000


class Unseeded(StatefulEnv):
    """Draws at resets from an unseeded generator."""

    def begin(self) -> None:
        self.worth = np.random.default_rng().random()

    def pay(self, action: float) -> float:
        return self.worth


class Swapped(StatefulEnv):
    """Becomes another class in the middle of each episode."""

    def begin(self) -> None:
        self.__class__ = Swapped

    def pay(self, action: float) -> float:
        if self.steps == 4:
            self.__class__ = Other
        return 0.0


class Other(Swapped):
    def pay(self, action: float) -> float:
        return 1.0


class Hidden(StatefulEnv):
    """From the fifth step of an episode on, reads a view of an array with another name."""

    def begin(self) -> None:
        self.whole, self.part = np.zeros(4), np.zeros(3)

    def pay(self, action: float) -> float:
        if self.steps == 5:
            self.part = self.whole[1:]
        self.whole[1] += 1
        return self.part[0]


class Touchy(StatefulEnv):
    """Fails with another environment's state."""

    def begin(self) -> None:
        self.opened = id(self), 0

    def pay(self, action: float) -> float:
        if self.opened[0] != id(self):
            raise OSError("no such connection")
        return 0.0


class Port(StatefulEnv):
    """Environment that only four times exists in a process, as if it listened on a port."""

    limit = 4

    def __init__(self) -> None:
        super().__init__()
        Port.limit -= 1
        if Port.limit < 0:
            raise OSError("address already in use")

    def close(self) -> None:
        Port.limit += 1

    def pay(self, action: float) -> float:
        return 1.0


SECONDS = 0  # whole ones, of a clock


class OfTheHour(StatefulEnv):
    def pay(self, action: float) -> float:
        return SECONDS


class Prices(StatefulEnv):
    """State in a table that never changes, and in one that does."""

    rows = 100_000

    def __init__(self) -> None:
        super().__init__()
        self.table = np.random.default_rng(0).random(self.rows)
        self.tensor = torch.arange(float(self.rows))
        self.seen = np.zeros(10_000)

    def pay(self, action: float) -> float:
        self.seen[self.steps] += 1
        return self.table[self.steps] + self.tensor[self.steps] + self.seen[self.steps] % 3


for env_class in StatefulEnv.__subclasses__():
    gymnasium.register(f"hidden/{env_class.__name__}-v0", env_class)
