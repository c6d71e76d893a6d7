import pytest

from hydrl.config.trust import check_trust
from hydrl.errors import UserError


@pytest.mark.parametrize(
    "values",
    [
        {"optim": {"_target_": "torch.optim.Adam", "lr": 1e-3}},  # named in configs/
        {"optim": {"_target_": "torch.optim.RMSprop"}},
        {"env": {"_target_": "hydrl.envs.gymnasium_env", "id": "CartPole-v1"}},
        {"env": {"_target_": "torchrl.envs.PendulumEnv"}},
        {"transforms": {"clip": {"_target_": "torchrl.envs.ClipTransform", "low": -1}}},
        {"actor": {"parts": [{"_target_": "torch.nn.Linear"}, {"_target_": "torchrl.modules.MLP"}]}},
    ],
)
def test_hydrl_s_own_parts_and_classes_of_the_libraries_are_trusted(values: dict):
    check_trust(values, "run=x")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"env": {"_target_": "os.system"}}, "os.system"),
        ({"env": {"_target_": "torch.load", "f": "x.pt"}}, "torch.load"),
        ({"env": {"_target_": "torch.nn.init.normal_"}}, "torch.nn.init.normal_"),
        ({"env": {"_target_": "torchrl.envs.check_env_specs"}}, "torchrl.envs.check_env_specs"),
        ({"env": {"_target_": "torchrl.envs.UnityMLAgentsEnv"}}, "UnityMLAgentsEnv"),  # starts a program
        ({"env": {"_target_": "torchrl.envs.nothing.Here"}}, "torchrl.envs.nothing.Here"),
        ({"env": {"_target_": ["os.system"]}}, "os.system"),
        ({"env": {"_target_": "torchrl.envs.Compose", "_args_": [3]}}, "_args_"),
        ({"env": {"id": "${.name}", "name": "antigravity:Env-v0"}}, "${.name}"),
        ({"actor": [{"deep": {"_target_": "my.Part"}}]}, "my.Part"),
        ({"env": {"id": "antigravity:Env-v0"}}, "antigravity:Env-v0"),
        ({"sampler": {"_target_": "optuna.samplers.TPESampler"}}, "optuna"),  # of a search, never of a run
    ],
)
def test_anything_else_is_foreign_unless_it_is_typed_now(values: dict, named: str):
    with pytest.raises(UserError, match=r"^run=x: its configuration names .*Add trust=true") as error:
        check_trust(values, "run=x")
    assert named in str(error.value)


def test_what_the_user_types_now_is_trusted():
    values = {"env": {"_target_": "my.Env", "id": "mine:Env-v0"}}
    check_trust(values, "run=x", ["env._target_=my.Env", "+env.id=mine:Env-v0"])
    with pytest.raises(UserError, match="names mine:Env-v0, which"):
        check_trust(values, "run=x", ["env._target_=my.Env"])
