"""Writes Stable-Baselines3's defaults to ``sb3_defaults.yaml``, from its own signatures.

    python scripts/benchmark/sb3_defaults.py

``experiment=sb3/…`` is compared with that file by the tests; needs ``pip install 'hydrl[bench]'``.
"""

from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_suffix(".yaml")
ALGORITHMS = {"ppo": "PPO", "dqn": "DQN", "sac": "SAC"}
PLAIN = (bool, int, float, str, type(None))


def defaults() -> dict[str, Any]:
    """The defaults of each algorithm and of its policy, and the version they are of."""
    import stable_baselines3

    tables = {}
    for name, class_name in ALGORITHMS.items():
        algorithm = getattr(stable_baselines3, class_name)
        policy = algorithm.policy_aliases["MlpPolicy"]
        tables[name] = {"algorithm": plain_defaults(algorithm), "policy": plain_defaults(policy)}
    return {"version": version("stable-baselines3"), **tables}


def plain_defaults(function: Any) -> dict[str, Any]:
    """Defaults that are numbers, words or nothing; classes by their names."""
    parameters = signature(function).parameters.values()
    values = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }
    values = {name: value.__name__ if isinstance(value, type) else value for name, value in values.items()}
    return {name: value for name, value in values.items() if isinstance(value, PLAIN)}


if __name__ == "__main__":
    FILE.write_text(yaml.safe_dump(defaults(), sort_keys=False))
