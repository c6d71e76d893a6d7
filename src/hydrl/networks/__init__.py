"""Networks from observations to actions and values, by one builder: encoder, RNN, layers, head."""

from hydrl.networks.build import materialise

__all__ = ["materialise"]
