"""Environments and their transforms: one builder, one file for each family of environments."""

from hydrl.envs.build import EnvFamily, explain_spec_errors, find_family, make_env
from hydrl.envs.gymnasium import gymnasium_env
from hydrl.envs.normalization import init_normalizers, load_normalizer, normalizer_state
from hydrl.envs.pettingzoo import pettingzoo_env

__all__ = [
    "EnvFamily",
    "find_family",
    "gymnasium_env",
    "init_normalizers",
    "explain_spec_errors",
    "load_normalizer",
    "make_env",
    "normalizer_state",
    "pettingzoo_env",
]
