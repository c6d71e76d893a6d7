"""What maps observations to actions and values: encoders, memories, actors, critics.

May import what all parts share (specs, finite, libraries); an environment is known by its specs.
"""
