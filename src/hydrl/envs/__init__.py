"""Environments and their transforms: one builder, one file for each family of environments."""

from hydrl.envs.build import explain_spec_errors, make_env, prepare_env
from hydrl.envs.gymnasium import gymnasium_env
from hydrl.envs.normalization import init_normalizers, load_normalizer, normalizer_state
from hydrl.envs.pettingzoo import pettingzoo_env

__all__ = [
    "gymnasium_env",
    "init_normalizers",
    "explain_spec_errors",
    "load_normalizer",
    "make_env",
    "normalizer_state",
    "prepare_env",
    "pettingzoo_env",
]
