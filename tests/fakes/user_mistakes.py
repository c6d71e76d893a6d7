"""The mistakes of `test_cli.py`: what a stranger types, and what the answer must hold."""

# The key, the value, and what would do.
MISTAKES: dict[str, list[str]] = {
    # Keys that do not exist.
    "optim.lrr=1": ["optim.lrr=1", "did you mean optim.lr?"],
    "+optim.lrr=1": ["optim.lrr=1", "did you mean optim.lr?"],
    "++optim.lrr=1": ["optim.lrr=1", "did you mean optim.lr?"],
    "+eval.foo=1": ["eval.foo=1", "eval has every_frames, episodes, final_episodes"],
    "+foo=1": ["foo=1", "python train.py --cfg job prints all"],
    "+loss.module.clip_epsilonn=0.1": [
        "loss.module.clip_epsilonn=0.1",
        "did you mean loss.module.clip_epsilon?",
    ],
    "+loss.value_estimator.gama=0.9": [
        "loss.value_estimator.gama=0.9",
        "did you mean loss.value_estimator.gamma?",
    ],
    "+buffer.storage.max_sise=9": ["buffer.storage.max_sise=9", "buffer.storage.max_size"],
    "optim.lr=null": ["optim.lr=null"],
    "algo=mappo env=vmas env.scenario=balance +env.max_steps=20": [
        "env.max_steps=20",
        "transforms.step_counter.max_steps truncates",
    ],
    "collector.num_envs=null": ["collector.num_envs=null"],
    "minibatches.size=null": ["minibatches.size=null"],
    "loss.value_estimator.gamma=null": ["loss.value_estimator.gamma=null"],
    "loss.module.clip_epsilon=2": ["loss.module.clip_epsilon=2", "less than 1"],
    "lr=1e-3": ["lr=1e-3", "did you mean optim.lr?"],
    "gamma=0.9": ["gamma=0.9", "did you mean loss.value_estimator.gamma?"],
    "num_envs=4": ["num_envs=4", "did you mean collector.num_envs?"],
    "optim/lr=3": ["optim/lr=3", "did you mean optim.lr?"],
    "eval.foo.bar=3": ["eval.foo.bar=3", "eval has every_frames"],
    "seed.foo=3": ["seed.foo=3", "did you mean seed?"],
    "optim.amsgrad=true": ["optim.amsgrad=true", "optim has lr, eps", "write +optim.amsgrad=true"],
    "hydra.run.dirr=x": ["hydra.run.dirr=x", "did you mean hydra.run.dir?"],
    "+loss.module.gamma=0.9": ["loss.module.gamma=0.9", "set loss.value_estimator.gamma"],
    "+collector.seed=3": ["collector.seed=3", "the run fills this in; leave it out"],
    "+collector.total_frames=3": [
        "collector.total_frames=3: hydrl.experience.collectors.make_collector takes no"
    ],
    "+env.num_envs=3": ["env.num_envs=3", "the run fills this in"],
    "+schedule.T_max=3 schedule=cosine": ["schedule.T_max=3", "leave it out"],
    "+optim.lr=1": ["already at 'optim.lr'", "remove + prefix"],
    # Keys of other libraries.
    "learning_rate=1": ["learning_rate=1", "did you mean optim.lr?"],
    "n_steps=5": [
        "n_steps=5",
        "did you mean collector.frames_per_batch (the steps of all environments together)?",
    ],
    "algo=dqn env=cartpole n_steps=5": ["environments together) or minibatches.n_steps?"],
    "policy=MlpPolicy": ["policy=MlpPolicy", "choices of actor and critic, and actor.num_cells=[64,64]"],
    "clip_range_vf=0.2": ["clip_range_vf=0.2", "write +loss.module.clip_value=0.2\n"],
    "batch_size=64": ["batch_size=64", "did you mean minibatches.size?"],
    "minibatches.batch_size=64": ["minibatches.batch_size=64", "did you mean minibatches.size?"],
    "n_envs=4": ["n_envs=4", "did you mean collector.num_envs?"],
    "collector.num_workers=2": ["collector.num_workers=2", "collector=multi_sync"],
    "total_timesteps=9": ["total_timesteps=9", "did you mean total_frames?"],
    "algo=dqn env=cartpole exploration_fraction=0.1": ["did you mean exploration.annealing_num_steps?"],
    "algo=dqn env=cartpole end_e=0.1": ["did you mean exploration.eps_end?"],
    "policy_lr=1": ["policy_lr=1", "did you mean optim.lr?"],
    "norm_adv=true": ["norm_adv=true", "did you mean loss.module.normalize_advantage?"],
    "adv_norm=true": ["adv_norm=true", "did you mean loss.module.normalize_advantage?"],
    "num_minibatches=4": ["num_minibatches=4", "did you mean minibatches.size?"],
    "tau=0.1": ["tau=0.1: there is no such key; target=soft has target.tau"],
    "algo=sac env=pendulum tau=0.1": ["did you mean target.tau?"],
    "algo=sac env=pendulum ent_coef=0.1": ["did you mean loss.module.alpha_init?"],
    "algo=dqn env=cartpole learning_starts=9": ["or minibatches.warmup_frames?"],
    "algo=dqn env=cartpole update_epochs=4": ["minibatches=epochs has minibatches.epochs"],
    "algo=dqn env=cartpole clip_coef=0.2": ["loss=clip_ppo and ", " have loss.module.clip_epsilon"],
    "algo=dqn env=cartpole vf_coef=0.2": ["loss=a2c and ", " have loss.module.critic_coeff"],
    "anneal_lr=true": ["anneal_lr=true", "did you mean schedule?"],
    "ent_coef=0.1": ["ent_coef=0.1", "did you mean loss.module.entropy_coeff?"],
    "environment=cartpole": ["environment=cartpole", "did you mean env?"],
    "target.tau=0.5": ["target.tau=0.5", "target=soft has it"],
    "encoder=resnet": ["encoder=resnet: no such choice; try auto, cnn, impala, minatar, mlp"],
    "++actor.encoder.reader=cnn": ["actor.encoder={reader: cnn}", "encoder.KEY=VALUE"],
    "encoder.nonsense=1": ["encoder.nonsense=1", "auto, mlp, cnn, impala, minatar"],
    "critic.encoder=nature": [
        "critic.encoder=nature: should be own, shared, auto, mlp, cnn, impala or minatar"
    ],
    "algo=td3 env=pendulum critic.encoder=nature": ["should be own, auto, mlp, "],
    "encoder.reader=nature": ["encoder.reader=nature: should be 'auto', 'mlp', 'cnn', 'impala' or 'minatar'"],
    "algo=dqn env=cartpole critic.encoder=shared": ["there is no such key; algo=dqn has no critic\n"],
    "algo=ppo env=cartpole actor.encoder=shared": ["actor.encoder=shared", "use actor.encoder=own"],
    "algo=bc env=pendulum data.path=x eval.target_return=-100": [
        "eval.target_return=-100 is of algo=decision_transformer",
    ],
    "algo=td3 env=pendulum critic.encoder=shared": ["critic.encoder=shared", "use critic.encoder=own"],
    "algo=sac rnn=gru env=pendulum critic.encoder=shared": ["without an RNN", "use critic.encoder=own"],
    "optim._target_=torch.optim.SGD": ["optim.eps=", "torch.optim.SGD takes no eps", "~optim.eps"],
    "actor._target_=torch.nn.Linear": ["actor._target_=torch.nn.Linear", "called as actor(env, …)"],
    # Keys that an algorithm or tuned numbers set for another class; the folder is that of docs/own_parts.md.
    "--config-dir=docs/my_project/conf algo=ppo env=cartpole actor=net": [
        "actor.init=null: my_nets.actor takes no init, which tuned=ppo/cartpole sets; "
        "add tuned=none ~actor.init ~actor.num_cells ~actor.scale ~actor.scale_init\n",
    ],
    "--config-dir=docs/my_project/conf algo=ppo env=cartpole actor=net tuned=none": [
        "which algo=ppo sets; add ~actor.init ~actor.num_cells ~actor.scale ~actor.scale_init\n",
    ],
    "--config-dir=docs/my_project/conf algo=my_ppo env=line +env.size=3": [
        "env.size=3: my_envs.Line takes no size; env has width",
    ],
    "--config-dir=docs/my_project/conf algo=dqn env=cartpole loss=flat": [
        "critic=null does not fit loss=flat, which reads actor as actor_network and critic as critic_network",
        "use algo=a2c, gail, impala, ppo, recurrent_ppo or reinforce\n",
    ],
    "--config-dir=docs/my_project/conf algo=my_ppo env=line loss=dqn": ["loss=dqn does not fit algo=my_ppo"],
    "--config-dir=docs/my_project env=cartpole": ["docs/my_project holds no group of choices, as actor/ or"],
    # Wrong types.
    "device=0": ["device=0", "auto, cpu, cuda or cuda:N"],
    "optim.lr=abc": ["optim.lr=abc", "a valid number"],
    "total_frames=abc": ["total_frames=abc", "an integer"],
    "total_frames=1M": ["total_frames=1M", "an integer; write total_frames=1_000_000\n"],
    "target_kl=None": ["target_kl=None", "a valid number; write target_kl=null\n"],
    "minibatches.sequence=None": ["minibatches.sequence=None", "; write minibatches.sequence=null\n"],
    "optim.lr=None": ["optim.lr=None: should be a valid number\n"],
    "total_frames=1e6": ["total_frames=1000000.0", "an integer; write total_frames=1000000"],
    "seed=1.5": ["seed=1.5", "an integer"],
    "seed=abc total_frames=1.5": ["seed=abc", "an integer"],
    "actor.num_cells=64": ["actor.num_cells=64", "a list; write actor.num_cells=[64]"],
    "actor.num_cells=abc": [
        "actor.num_cells=abc: should be a list of integers, as actor.num_cells=[64,64]\n"
    ],
    "algo=qmix env=simple_spread mixer.state_cells=abc": ["a list of integers, as mixer.state_cells=[64,64]"],
    "actor.num_cells=64x64": ["actor.num_cells=64x64", "a list; write actor.num_cells=[64,64]\n"],
    "action_spaces=discrete": ["a list; write action_spaces=[discrete]\n"],
    "actor.num_cells=[64,abc]": ["actor.num_cells=[64, abc]", "an integer"],
    "actor.num_cells.0=abc": ["actor.num_cells=[abc, ", "an integer"],
    "eval.stop_when_solved=maybe": ["eval.stop_when_solved=maybe", "true or false"],
    "eval.video=maybe": ["eval.video=maybe", "true or false"],
    "eval.reward_threshold=high": ["eval.reward_threshold=high", "a valid number"],
    "torch_threads=many": ["torch_threads=many", "an integer or 'auto'"],
    "eval=3": ["eval=3", "a group of keys"],
    "transforms.normalize=null": ["transforms.normalize=null", "leave it out by ~transforms.normalize"],
    "env._target_=null": ["env={_target_: null", "the dotted path of a class or function"],
    "+transforms.mine.low=3": ["transforms.mine={low: 3}", "should have _target_"],
    # Out of range.
    "optim.lr=-1": ["optim.lr=-1", "greater than 0"],
    "optim.lr=nan": ["optim.lr=nan", "a finite number"],
    "loss.value_estimator.gamma=2": ["loss.value_estimator.gamma=2", "less than or equal to 1"],
    "algo=impala loss.value_estimator.rho_thresh=0": ["loss.value_estimator.rho_thresh=0", "greater than 0"],
    "algo=impala loss.value_estimator.value_type=vtrac": ["value_type=vtrac", "'gae', 'magae' or 'vtrace'"],
    "algo=impala +loss.value_estimator.lmbda=0.9": ["loss.value_estimator.lmbda=0.9", "there is no such key"],
    "collector.num_envs=0": ["collector.num_envs=0", "greater than 0"],
    "eval.video_every_frames=0": ["eval.video_every_frames=0", "greater than 0"],
    "seed=-1": ["seed=-1", "greater than or equal to 0"],
    "max_grad_norm=0": ["max_grad_norm=0", "greater than 0"],
    "target_kl=0": ["target_kl=0", "greater than 0"],
    "minibatches.epochs=0": ["minibatches.epochs=0", "greater than 0"],
    "loss.module.loss_critic_type=huber": ["loss.module.loss_critic_type=huber", "'l1', 'l2' or 'smooth_l1'"],
    "device=tpu": ["device=tpu", "auto, cpu, cuda or cuda:N"],
    "logger=[wandb,trackio] logger.group=x": ["logger.group=x", "no such key"],
    "logger=wandb logger.wandb.mode=offlin": ["logger.wandb.mode=offlin", "'auto', 'online' or 'offline'"],
    "+transforms.step_counter.max_steps=-3": ["transforms.step_counter", "max_steps", "one"],
    # Choices that do not exist, the nearest first.
    "env=cartpol": ["env=cartpol", "try cartpole, "],
    "env=CartPole-v1": ["env=CartPole-v1", "env=cartpole or", "env=gym env.id=CartPole-v1"],
    "env=cartpole-v1": ["env=cartpole-v1", "use env=cartpole or", "env=gym env.id=CartPole-v1"],
    "env=ALE/Pong-v5": ["env=ALE/Pong-v5: no such choice; use env=atari env.id=ALE/Pong-v5"],
    "algo=PPO": ["algo=PPO", "try ppo, "],
    "debug=true": ["debug=true: no such choice; try fast"],
    "algo=ppo.yaml": ["algo=ppo.yaml", "write algo=ppo\n"],
    "actor=cnn": [
        "actor=cnn: no such choice; pictures are read by encoder=cnn, impala, minatar or one of your own",
        "stochastic",
    ],
    "schedule=None": ["schedule=None: no such choice; write schedule=null, or try cosine, linear\n"],
    "-m exploration=null,gaussian": ["exploration=null,gaussian: a sweep cannot leave a group out"],
    "env=[cartpole,pendulum]": ["write env=CHOICE, or -m env=cartpole,pendulum"],
    "env=none": ["env is missing and cannot be left out"],
    "+algo=dqn": ["algo", "leave out the +"],
    "algo=pppo": ["algo=pppo", "try ppo, "],
    "actor=tanhnormal": ["actor=tanhnormal", "try tanh_normal, "],
    "logger=wandbb": ["logger=wandbb", "try wandb, "],
    "logger=[wandb,trackioo]": ["logger=trackioo", "try trackio, "],
    "logger=wandb logger.mode=offlin": ["logger.wandb.mode=offlin", "'auto', 'online' or 'offline'"],
    "layers@actor=transformer": [
        "layers@actor=transformer: no such choice; try batch_renorm, layer_norm, mlp, noisy"
    ],
    "rnn=transformer": ["rnn=transformer: no such choice; try gru, lstm"],
    "optim=adm": ["optim=adm", "try adam, adamw"],
    "exploration=nosuch": ["exploration=nosuch", "try e_greedy"],
    "algo=": ["algo=", "dqn", "ppo"],
    "experiment=nosuch": ["experiment=nosuch", "dqn_intro", "quickstart"],
    "tuned=cartpole": ["tuned=cartpole", "try bc/cartpole, ppo/cartpole, dqn/cartpole"],
    "algo=dqn env=cartpole tuned=ppo/pendulum": [
        "error: tuned=ppo/pendulum is for algo=ppo, not algo=dqn: critic={init: null, num_cells: [64, 64]}",
    ],
    "algo=ppo env=cartpole tuned=dqn/cartpole": ["tuned=dqn/cartpole is for algo=dqn, not algo=ppo"],
    "hydra/launcher=nosuch": ["hydra/launcher=nosuch: no such choice", "basic"],
    # The environment.
    "env=gym": ["env.id has no value; write env.id=VALUE, which should be a name, such as CartPole-v1"],
    "algo=mappo env=pettingzoo": ["env.id has no value", "such as mpe2/simple_spread_v3\n"],
    "env=self_play env.id=null": ["env.id=null: should be a name, such as classic/tictactoe_v3\n"],
    "env=self_play env.id=classic/tictactoe_v3 env.opponents.random_prob=2": [
        "env.opponents.random_prob=2: should be less than or equal to 1\n"
    ],
    "env=self_play env.id=classic/tictactoe_v3 env.opponents.latest_prob=-1": ["greater than or equal to 0"],
    "env=self_play env.id=classic/tictactoe_v3 env.opponents.pool_size=0": [
        "env.opponents.pool_size=0: ",
        "than 0",
    ],
    "env=self_play env.id=classic/tictactoe_v3 env.opponents.every_frames=0": ["every_frames=0: ", "than 0"],
    # A task's own keywords, without the plus.
    "algo=mappo env=simple_spread env.N=5": ["For a keyword of the task's own write +env.N=5\n"],
    "env=cartpole env.sutton_barto_reward=true": ["task's own write +env.sutton_barto_reward=true\n"],
    "algo=mappo env=vmas env.scenario=balance env.scenario_kwargs.n_agents=4": [
        "there is no such key; write +env.scenario_kwargs.n_agents=4\n"
    ],
    "algo=mappo env=vmas env.scenario=balance env.n_agents=4": [
        "For a keyword of the task's own write +env.scenario_kwargs.n_agents=4\n"
    ],
    "env=custom": ["env._target_ has no value", "env._target_=VALUE"],
    "env.id=cartpole": ["env.id=cartpole: env=inverted_double_pendulum is", "; use env=cartpole\n"],
    "env=gym env.id=null": ["error: env.id=null: should be a name, such as CartPole-v1"],
    "env=gym env.id=3": ["error: env.id=3: should be a name, such as CartPole-v1"],
    "env=custom env._target_=3": ["error: env._target_=3: should be a valid string"],
    "env=gym env.id=NoSuchEnv-v0": [
        "env.id=NoSuchEnv-v0",
        "doesn't exist. One of your own is env.id=MODULE:NoSuchEnv-v0, whose module registers it\n",
    ],
    "env=gym env.id=CartPol-v1": ["env.id=CartPol-v1", "Did you mean", "CartPole"],
    "env=cartpole +env.gravityy=3": ["env.gravityy=3: CartPole-v1 takes no gravityy; env has id, observe, "],
    "env=gym env.id=HalfCheetah-v5 +env.wdth=2": ["HalfCheetah-v5 takes no wdth; did you mean env.width?"],
    "--config-dir=docs/my_project/conf env=gym env.id=my_envs:Corridor-v0 +env.len=3": [
        "env.len=3: my_envs:Corridor-v0 takes no len; did you mean env.length?",
    ],
    "env=cartpole +env.sutton_barto_reward=3": ["env.sutton_barto_reward=3: should be true or false"],
    "env=gym env.id=ALE/Pong-v5": [
        "env.id=ALE/Pong-v5 could not be made: write env=atari env.id=ALE/Pong-v5\n"
    ],
    "env=gym env.id=MinAtar/Breakout-v1": ["write env=minatar env.id=MinAtar/Breakout-v1\n"],
    "env=custom env._target_=no.such.Class": [
        "env._target_=no.such.Class",
        "cannot be imported: No module named 'no'; put it beside the folder of --config-dir=DIR",
    ],
    "env=custom env._target_=torchrl.envs.Pendulum": [
        "env._target_=torchrl.envs.Pendulum",
        "cannot be imported",
    ],
    "env=custom env._target_=torchrl.envs": ["env._target_=torchrl.envs is no class or function"],
    "env=custom env._target_=gymnasium.envs.classic_control.CartPoleEnv": [
        "CartPoleEnv is a class, but no EnvBase",
        "use env=gym env.id=CartPole-v1",
    ],
    "env=custom env._target_=tests.fakes.envs.Corridor": [
        "env._target_=tests.fakes.envs.Corridor",
        "use env=gym env.id=tests.fakes.envs:Corridor-v0",
    ],
    # Sizes that do not fit each other.
    "collector.frames_per_batch=1000 collector.num_envs=3": [
        "collector.frames_per_batch=1000",
        "3, the environments (collector.num_envs in each worker)",
        "use collector.frames_per_batch=1002",
    ],
    "collector=multi_sync collector.num_workers=3 collector.num_envs=4 collector.frames_per_batch=1000": [
        "collector.frames_per_batch=1000",
        "a multiple of 12",
        "use collector.frames_per_batch=1008",
    ],
    "minibatches.size=5000 collector.frames_per_batch=64": [
        "minibatches.size=5000",
        "collector.frames_per_batch=64; use minibatches.size=64 or less",
    ],
    "algo=dqn env=cartpole minibatches.size=500 buffer.storage.max_size=100": [
        "minibatches.size=500",
        "use minibatches.size=100 or less, or buffer.storage.max_size=500 or more",
    ],
    "algo=dqn env=cartpole minibatches.warmup_frames=5000 buffer.storage.max_size=1000": [
        "minibatches.warmup_frames=5000",
        "use minibatches.warmup_frames=1000 or less",
    ],
    "algo=dqn env=cartpole exploration.eps_end=0.9 exploration.eps_init=0.5": [
        "exploration.eps_end=0.9",
        "exploration.eps_init=0.5",
        "use exploration.eps_end=0.5 or less",
    ],
    "buffer.storage.max_size=8 minibatches.size=4": [
        "buffer.storage.max_size=8",
        "buffer.storage.max_size=1024 or more",
    ],
    # Goals that cannot be relabelled.
    "algo=dqn env=bit_flip minibatches.n_steps=3": [
        "minibatches.n_steps=3 does not work with buffer, which relabels single steps",
        "use minibatches.n_steps=1",
    ],
    "algo=dqn env=bit_flip rnn=lstm": ["minibatches.sequence=32 does not work with buffer"],
    "algo=dqn env=bit_flip buffer.her_ratio=2": ["buffer.her_ratio=2: should be less than or equal to 1"],
    "algo=dqn env=bit_flip buffer.strategy=random": ["buffer.strategy=random: should be 'future' or 'final'"],
    "algo=crossq env=point_reach buffer=hindsight": ["buffer=hindsight does not fit algo=crossq"],
    # Parts that do not fit each other.
    "algo=ppo actor=tanh_normal env=cartpole": ["actor=tanh_normal", "env=cartpole", "use actor=stochastic"],
    "algo=ppo actor=categorical env=pendulum": ["actor=categorical", "env=pendulum", "use actor=stochastic"],
    "algo=ppo env=cartpole encoder=null": ["encoder is missing and cannot be left out", "use encoder=auto"],
    "env=cartpole env.id=Ant-v5": ["env.id=Ant-v5: env=cartpole is CartPole-v1", "use env=gym env.id=Ant-v5"],
    "env=cartpole env._target_=tests.fakes.envs.Toy": [
        "env._target_=tests.fakes.envs.Toy",
        "use env=custom env._target_=tests.fakes.envs.Toy",
    ],
    "collector=distributed": ["torch.distributed's tells nothing", "use collector=ray"],
    "collector=rpc": ["advantages cross from one into the next", "use collector=ray"],
    "+collector.num_workers=2": ["collector.num_workers=2", "collector=multi_sync and collector=multi_async"],
    "buffer.storage=3": ["buffer.storage=3: should be a group of keys"],
    "buffer.storage=null": ["buffer.storage=null: should be a group of keys"],
    "algo=dqn env=cartpole +buffer.sampler={_target_:torchrl.data.replay_buffers.PrioritizedSliceSampler}": [
        "PrioritizedSliceSampler: its priorities cannot be saved; use buffer=prioritized",
    ],
    "algo=dqn env=cartpole buffer._target_=torchrl.data.TensorDictPrioritizedReplayBuffer": [
        "buffer._target_=torchrl.data.TensorDictPrioritizedReplayBuffer: its priorities cannot be saved",
    ],
    "algo=dqn env=pendulum": ["algo=dqn", "env=pendulum", "continuous", "use algo=a2c, ", " or tqc\n"],
    "algo=ppo env=custom env._target_=tests.fakes.envs.Team": [
        "algo=ppo",
        "env._target_=tests.fakes.envs.Team has multi-agent continuous actions",
        "use algo=independent_ddpg, ippo, maddpg, mappo or masac",
    ],
    "algo=mappo env=cartpole": [
        "algo=mappo",
        "env=cartpole has discrete actions",
        "use algo=a2c, dqn, ",
    ],
    "algo=mappo env=custom env._target_=tests.fakes.envs.Team actor=tanh_normal": [
        "actor=tanh_normal",
        "algo=mappo",
        "use actor=multi_agent",
    ],
    "algo=mappo env=vmas_navigation env.scenario=balance": [
        "env.scenario=balance: env=vmas_navigation is navigation",
        "use env=vmas env.scenario=balance",
    ],
    "algo=ppo env=cartpole collector=dataset data=npz data.path=set": [
        "collector=dataset does not fit minibatches=epochs, which learns from frames of its own policy alone",
    ],
    "algo=rainbow env=cartpole minibatches=mixed minibatches.n_steps=1 data=npz data.path=set": [
        "minibatches=mixed does not fit algo=rainbow; use minibatches=replay data=null\n",
    ],
    "algo=mappo env=simple_spread env.id=mpe2/simple_tag_v3": [
        "env.id=mpe2/simple_tag_v3: env=simple_spread is mpe2/simple_spread_v3",
        "use env=simple_tag or env=pettingzoo env.id=mpe2/simple_tag_v3",
    ],
    "algo=mappo env=vmas": ["env.scenario has no value", "env.scenario=VALUE", "such as balance\n"],
    "algo=mappo env=custom env._target_=tests.fakes.envs.Team +env.num_envs=3": [
        "env.num_envs=3",
        "the run fills this in",
    ],
    "algo=ppo env=cartpole actor=dueling": ["actor=dueling does not fit algo=ppo; use actor=stochastic, "],
    "algo=iql env=pendulum": ["data.path has no value; write data.path=VALUE", "folder of a run"],
    "algo=iql env=pendulum data=null": [
        "collector needs data; add data=replay_buffer data.path=DIR, or use collector="
    ],
    "algo=iql env=pendulum data=csv data.path=x": [
        "data=csv: no such choice",
        "h5, minari, npz, replay_buffer",
    ],
    "algo=td3_bc env=cartpole data.path=x": [
        "algo=td3_bc acts in continuous action spaces",
        "use algo=bc, cql_discrete, gail or iql_discrete",
    ],
    "algo=gail env=pendulum ~data": ["data=null does not fit algo=gail; use data=npz"],
    "algo=td3_bc env=pendulum data.path=x loss.module.alpha=-1": ["loss.module.alpha=-1", "equal to 0"],
    "algo=cql env=pendulum data.path=x +loss.module.with_lagrange=true": [
        "loss.module.with_lagrange=true: hydrl.losses.offline.CQLLoss takes no with_lagrange"
    ],
    "algo=bc env=pendulum data.path=x target=soft": ["target=soft does not fit algo=bc; use target=null"],
    "algo=dqn env=cartpole actor=categorical": [
        "actor=categorical",
        "algo=dqn",
        "use actor=q_value or actor=dueling",
    ],
    "algo=dqn env=cartpole loss=c51": [
        "actor=q_value does not fit loss=c51",
        "use actor=distributional",
    ],
    "algo=dqn env=cartpole actor=distributional": [
        "actor=distributional does not fit loss=dqn",
        "use actor=q_value or actor=dueling",
    ],
    "algo=rainbow env=cartpole loss=dqn": ["loss=dqn", "algo=rainbow", "use loss=c51"],
    "algo=rainbow env=cartpole actor.v_min=10": ["actor.v_min=10 is not less than actor.v_max=1.0"],
    "algo=rainbow env=cartpole actor.atoms=1": ["actor.atoms=1", "greater than 1"],
    "algo=rainbow env=cartpole actor.noisy=0": ["actor.noisy=0", "greater than 0"],
    "algo=ppo env=cartpole layers@actor=noisy": [
        "actor.noisy=0.5: hydrl.networks.actors.stochastic takes no noisy; actor has"
    ],
    "algo=rainbow env=cartpole compile=true": ["compile=true does not work with DistributionalDQNLoss"],
    "algo=ppo env=cartpole actor=q_value": ["actor=q_value", "algo=ppo", "use actor=stochastic"],
    "algo=ppo ~critic": ["algo=ppo needs a critic; use critic=state_value"],
    "algo=ppo critic=none": ["algo=ppo needs a critic; use critic=state_value"],
    "hydra.run.dir=": ["hydra.run.dir= names no folder", "hydra.run.dir=DIR"],
    "algo=ppo,dqn": ["algo=ppo,dqn: more than one value", "add -m"],
    "-x": ["-x: there is no such option"],
    "search=ppo": ["search", "made by python scripts/search.py"],
    "-m exploration=none,gaussian": ["exploration=none: no such choice; try e_greedy"],
    "algo=ppo loss=dqn": ["loss=dqn", "algo=ppo", "use loss=clip_ppo"],
    "algo=ppo buffer=replay": ["buffer=replay", "algo=ppo", "use buffer=rollout"],
    "algo=ppo exploration=e_greedy": ["exploration=e_greedy", "algo=ppo", "use exploration=null"],
    "algo=ppo target=soft": ["target=soft", "algo=ppo", "use target=null"],
    "algo=dqn env=cartpole loss.module.delay_value=false": [
        "loss.module.double_dqn=true",
        "delay_value=true",
    ],
    "collector=ray collector.num_collectors=3 collector.num_envs=2 collector.frames_per_batch=1000": [
        "collector.frames_per_batch=1000 is not a multiple of 6",
    ],
    "collector=ray collector.address=ray://head:10001": [
        "collector.address=ray://head:10001: should be HOST:PORT"
    ],
    "eval.backend=ray eval.address=ray://head:10001": ["eval.address=ray://head:10001: should be HOST:PORT"],
    "eval.address=auto": ["eval.address=auto is of eval.backend=ray"],
    "collector=ray eval.backend=ray eval.address=auto": [
        "collector=ray, which has the cluster of both, collector.address"
    ],
    "collector=ray collector.num_cpus=-1": ["collector.num_cpus=-1: should be greater than or equal to 0"],
    "collector=ray transforms=running_norm": ["running statistics", "use collector=single"],
    "algo=dqn rnn=lstm collector=ray collector.sync=false": ["collector.sync=false", "sequences go on"],
    "algo=dqn env=cartpole ~tuned minibatches.n_steps=3 collector=multi_async": [
        "minibatches.n_steps=3",
        "from batch to batch",
        "use collector=multi_sync or minibatches.n_steps=1",
    ],
    "collector=multi_sync transforms=running_norm": ["running statistics", "use collector=single"],
    "collector=overlap ~tuned": ["running statistics", "transforms=normalized init_stats_frames=1_000"],
    "transforms.reward_scaling.scale=wide": ["transforms.reward_scaling.scale=wide", "a valid number"],
    "env=reacher transforms.reward_scaling.gamma=2": ["transforms.reward_scaling.gamma=2", "equal to 1"],
    "env=pendulum actor.init=xavier": ["actor.init=xavier", "orthogonal"],
    "env=pendulum actor.scale_init=0": ["actor.scale_init=0", "greater than 0.01"],
    "minibatches.draw=all": ["minibatches.draw=all", "should be 'epoch' or 'minibatch'"],
    "compile=yes": ["compile=yes", "true or false"],
    "compile=true loss=kl_penalty": ["compile=true", "KLPENPPOLoss", "beta", "use compile=false"],
    "actor.activation=Foo": ["actor.activation=Foo", "'Tanh', 'ReLU'"],
    "critic.activation=relu": ["critic.activation=relu", "ReLU"],
    "algo=dqn env=cartpole critic=state_value critic._target_=tests.fakes.envs.Toy": [
        "critic=tests.fakes.envs.Toy does not fit loss=dqn, which reads actor as value_network; "
        "use critic=null"
    ],
    # An RNN.
    "algo=ppo transforms.normalize.settle=0": ["transforms.normalize.settle=0", "greater than 0"],
    "algo=dqn env=cartpole rnn=gru minibatches=replay": ["minibatches=replay does not fit"],
    "algo=ddpg env=pendulum rnn=gru": [
        "rnn=gru does not work with DDPGLoss, which",
        "use rnn=null",
    ],
    "algo=ppo collector.init_random_frames=1024": [
        "init_random_frames=1024 does not work with minibatches=epochs",
        "init_random_frames=0",
    ],
    "algo=recurrent_ppo minibatches.sequence=null": ["whole sequences; use minibatches.sequence=32"],
    "algo=recurrent_ppo minibatches.sequence=48": [
        "minibatches.sequence=48",
        "minibatches.size=64 and the 256 steps",
        "use minibatches.sequence=32",
    ],
    "algo=recurrent_ppo actor.rnn.hidden_size=0": ["rnn.hidden_size=0", "greater than 0"],
    "algo=tqc env=pendulum rnn=lstm": ["rnn=lstm does not work with TQCLoss", "use rnn=null"],
    "algo=recurrent_ppo rnn.span=1": ["rnn.span=1", "greater than or equal to 2"],
    "algo=recurrent_ppo rnn.cell=rnn": ["rnn.cell=rnn: should be 'lstm' or 'gru'"],
    "algo=recurrent_ppo +actor.rnn.units=8": ["rnn.units=8", "takes no units; "],
    "algo=recurrent_ppo +critic.rnn={_target_:hydrl.networks.rnn.RecurrentLayer,cell:gru,hidden_size:8}": [
        "critic.rnn",
        "use critic.encoder=shared",
    ],
    "algo=crossq compile=true": ["compile=true does not work with critic.norm", "use compile=false"],
    "algo=recurrent_ppo compile=true": ["compile=true does not work with rnn", "use compile=false"],
    "algo=recurrent_ppo loss.value_estimator.deactivate_vmap=false": ["deactivate_vmap=true"],
    # Deleting.
    "~transforms.normalise": ["~transforms.normalise", "did you mean transforms.normalize?"],
    "~transforms.nosuch": ["~transforms.nosuch", "transforms has normalize, double_to_float"],
    "~seed": ["seed is missing"],
    "~total_frames": ["anneal_frames", "'total_frames' not found"],
    "~eval.episodes": ["eval.episodes is missing"],
    "~minibatches.size": ["minibatches cannot be built", "missing a required argument: 'size'"],
    "~collector.num_envs": ["collector.num_envs is missing"],
    # The command line itself.
    "optim.lr": ["cannot read optim.lr; write KEY=VALUE"],
    "algo = dqn": ["cannot read =", "KEY=VALUE", "without blanks"],
    "actor.num_cells[0]=3": ["actor.num_cells[0]=3", "quote what has brackets"],
    "actor.num_cells.7=3": ["actor.num_cells.7=3", "out of range"],
    "actor.num_cells=64,64": ["actor.num_cells=64,64", "write [VALUE,VALUE] for a list"],
    "seed=1,2": ["seed=1,2", "add -m to run them all"],
    "seed=range(1,3)": ["seed=range(1,3)", "add -m"],
    "total_frames=1,000,000": ["more than one value; write total_frames=1_000_000\n"],
    "optim.lr=0,001": ["more than one value; write optim.lr=0.001\n"],
    "eval=[]": ["eval=[]: it is a group of keys; set one of them, as eval.KEY=VALUE"],
    "hydra=3": ["hydra=3: there is no such choice"],
    "total_frames=${frames}": ["total_frames", "'frames' not found"],
    "total_frames=???": ["total_frames has no value", "total_frames=VALUE"],
    "--lr 3": ["--lr", "write key=value"],
    "--total-timesteps 1000": ["there is no such option; write key=value, as total_frames=1000, and see"],
    "--algo=dqn": ["--algo=dqn", "write key=value"],
    "hydra.run.dir=/proc/nope": ["/proc/nope cannot be written", "hydra.run.dir=DIR"],
}
