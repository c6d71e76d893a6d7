"""Tasks as environments: Gymnasium's, with a maker for each family, under one stack of transforms.

May import what all parts share (specs, limits, libraries) and transforms; no networks, no experience.
"""

from hydrl.parts.environments.gymnasium import gymnasium_env
from hydrl.parts.environments.normalisers import initialise_normalisers, load_normaliser, normaliser_state
from hydrl.parts.environments.pettingzoo import pettingzoo_env
from hydrl.parts.environments.stack import keeping_to_specs, make_env

__all__ = [
    "gymnasium_env",
    "initialise_normalisers",
    "keeping_to_specs",
    "load_normaliser",
    "make_env",
    "normaliser_state",
    "pettingzoo_env",
]
