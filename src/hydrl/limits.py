"""Types of hyperparameters with their ranges; the configuration is checked against them."""

from typing import Annotated, Literal

from pydantic import Field

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]  # neither 0 nor 1
Reduction = Literal["last", "mean", "sum", "max"]  # of a value of ``info`` over the steps of an episode
HalfOpenFraction = Annotated[float, Field(ge=0, lt=1)]  # 0, but not 1

# Activations of torch.nn that make sense between layers and need no arguments.
Activation = Literal["Tanh", "ReLU", "ELU", "SiLU", "GELU", "SELU", "CELU", "Mish", "LeakyReLU", "Softplus"]

# Of a Ray cluster. Its older client, ray://HOST:PORT, has no collectors.
ClusterAddress = Annotated[str, Field(pattern=r"^(auto|[^:/\s]+:\d+)$")]
