"""What a ``_target_`` names: environments, networks, collectors, losses, minibatches.

Imports no other room.
"""
