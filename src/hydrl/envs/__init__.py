"""Environments and their transforms: one builder, one file for each family of environments."""

from hydrl.envs.build import keeping_to_specs, make_env
from hydrl.envs.gymnasium import gymnasium_env
from hydrl.envs.normalization import initialise_normalisers, load_normaliser, normaliser_state
from hydrl.envs.pettingzoo import pettingzoo_env

__all__ = [
    "gymnasium_env",
    "initialise_normalisers",
    "keeping_to_specs",
    "load_normaliser",
    "make_env",
    "normaliser_state",
    "pettingzoo_env",
]
