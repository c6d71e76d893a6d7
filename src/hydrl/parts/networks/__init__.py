"""What maps observations to actions and values, by one builder: encoder, memory, hidden layers, head.

May import what all parts share (specs, finite, libraries); an environment is known by its specs.
"""

from hydrl.parts.networks.network import materialise

__all__ = ["materialise"]
