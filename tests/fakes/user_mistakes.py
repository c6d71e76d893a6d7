"""Mistakes for `test_command_line.py`: what a stranger types, and what the answer must contain."""

# Words of a command line, and parts of the answer.
MISTAKES: dict[str, list[str]] = {
    # Keys that do not exist.
    "optim.lrr=1": ["optim.lrr=1: no such key. Write optim.lr=1.\n"],
    "+optim.lrr=1": ["optim.lrr=1: torch.optim.Adam takes no lrr. Write optim.lr=1.\n"],
    "++optim.lrr=1": ["optim.lrr=1: torch.optim.Adam takes no lrr. Write optim.lr=1.\n"],
    "+eval.foo=1": ["eval.foo=1", "eval has every_frames, episodes, final_episodes"],
    "+foo=1": ["foo=1", "python train.py --cfg job prints all"],
    "+loss.module.clip_epsilonn=0.1": [
        "loss.module.clip_epsilonn=0.1: torchrl.objectives.ClipPPOLoss takes no clip_epsilonn",
        "Write loss.module.clip_epsilon=0.1.\n",
    ],
    "+loss.value_estimator.gama=0.9": [
        "loss.value_estimator.gama=0.9: no such key. Write loss.value_estimator.gamma=0.9.\n"
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
    "lr=1e-3": ["lr=1e-3: no such key. Write optim.lr=1e-3.\n"],
    "gamma=0.9": ["gamma=0.9: no such key. Write loss.value_estimator.gamma=0.9.\n"],
    "num_envs=4": ["num_envs=4: no such key. Write collector.num_envs=4.\n"],
    "optim/lr=3": ["optim/lr=3: no such key. Write optim.lr=3.\n"],
    "eval.foo.bar=3": ["eval.foo.bar=3", "eval has every_frames"],
    "seed.foo=3": ["seed.foo=3: no such key. Write seed=3.\n"],
    "optim.amsgrad=true": ["optim.amsgrad=true: no such key. Write +optim.amsgrad=true.\n"],
    "hydra.run.dirr=x": ["hydra.run.dirr=x: no such key. Write hydra.run.dir=x.\n"],
    "+loss.module.gamma=0.9": ["loss.module.gamma=0.9: no such key. Write loss.value_estimator.gamma=0.9.\n"],
    "+collector.seed=3": ["collector.seed=3: the run fills this in. Leave it out.\n"],
    "+collector.total_frames=3": [
        "collector.total_frames=3: hydrl.experience.collectors.make_collector takes no"
    ],
    "+env.num_envs=3": ["env.num_envs=3", "the run fills this in"],
    "+schedule.T_max=3 schedule=cosine": ["schedule.T_max=3: the run fills this in. Leave it out.\n"],
    "+optim.lr=1": ["+optim.lr=1: this key is there already. Write optim.lr=1.\n"],
    # Keys of other libraries.
    "learning_rate=1": ["learning_rate=1: no such key. Write optim.lr=1.\n"],
    "n_steps=5": [
        "n_steps=5: no such key",
        "Write collector.frames_per_batch=FRAMES (steps of all environments together).\n",
    ],
    "algo=dqn env=cartpole n_steps=5": [
        "n_steps=5: no such key",
        "(steps of all environments together) or minibatches.n_steps=5.\n",
    ],
    "policy=MlpPolicy": [
        "policy=MlpPolicy: no such key",
        "are the options of actor and critic; actor.num_cells=[64,64] sets the hidden layers.\n",
    ],
    "clip_range_vf=0.2": ["clip_range_vf=0.2: no such key. Write +loss.module.clip_value=0.2.\n"],
    "batch_size=64": ["batch_size=64: no such key. Write minibatches.size=64.\n"],
    "minibatches.batch_size=64": ["minibatches.batch_size=64: no such key. Write minibatches.size=64.\n"],
    "n_envs=4": ["n_envs=4: no such key. Write collector.num_envs=4.\n"],
    "collector.num_workers=2": ["collector.num_workers=2", "collector=multi_sync"],
    "total_timesteps=9": ["total_timesteps=9: no such key. Write total_frames=9.\n"],
    "algo=dqn env=cartpole exploration_fraction=0.1": [
        "exploration_fraction=0.1: no such key",
        "Write exploration.annealing_num_steps=FRAMES (that fraction of total_frames).\n",
    ],
    "algo=dqn env=cartpole end_e=0.1": ["end_e=0.1: no such key. Write exploration.eps_end=0.1.\n"],
    "policy_lr=1": ["policy_lr=1: no such key. Write optim.lr=1.\n"],
    "norm_adv=true": ["norm_adv=true: no such key. Write loss.module.normalize_advantage=true.\n"],
    "adv_norm=true": ["adv_norm=true: no such key. Write loss.module.normalize_advantage=true.\n"],
    "num_minibatches=4": [
        "num_minibatches=4: no such key. Write minibatches.size=FRAMES (frames of a minibatch).\n"
    ],
    "tau=0.1": ["tau=0.1: no such key. Leave it out: algo=ppo has no target.\n"],
    "algo=sac env=pendulum tau=0.1": ["tau=0.1: no such key. Write target.tau=0.1.\n"],
    "algo=sac env=pendulum ent_coef=0.1": [
        "ent_coef=0.1: no such key. Write +loss.module.fixed_alpha=true loss.module.alpha_init=0.1.\n"
    ],
    "algo=dqn env=cartpole learning_starts=9": [
        "learning_starts=9: no such key",
        "Write minibatches.warmup_frames=9 or collector.init_random_frames=9.\n",
    ],
    "algo=dqn env=cartpole update_epochs=4": [
        "minibatches=epochs or minibatches=groups has minibatches.epochs"
    ],
    "algo=dqn env=cartpole clip_coef=0.2": [
        "clip_coef=0.2: no such key",
        "loss=ippo or loss=mappo has loss.module.clip_epsilon, which algo=dqn does not take.\n",
    ],
    "algo=dqn env=cartpole vf_coef=0.2": [
        "vf_coef=0.2: no such key",
        "Leave it out: only loss=a2c, loss=clip_ppo, loss=impala, loss=ippo, loss=kl_penalty or",
    ],
    "anneal_lr=true": ["anneal_lr=true: no such key. Write schedule=linear.\n"],
    "ent_coef=0.1": ["ent_coef=0.1: no such key. Write loss.module.entropy_coeff=0.1.\n"],
    "environment=cartpole": ["environment=cartpole: no such key. Write env=cartpole.\n"],
    "target.tau=0.5": ["target.tau=0.5: no such key. Leave it out: algo=ppo has no target.\n"],
    "encoder=resnet": ["encoder=resnet: no such option. Try auto, cnn, impala, minatar, mlp.\n"],
    "++actor.encoder.reader=cnn": ["actor.encoder={reader: cnn}", "encoder.KEY=VALUE"],
    "encoder.nonsense=1": [
        "encoder.nonsense=1: no such entry of an observation, or no such encoder",
        "Write encoder.ENTRY=auto, mlp, cnn, impala or minatar; a single image is the entry pixels.\n",
    ],
    "critic.encoder=nature": [
        "critic.encoder=nature: should be own, shared, auto, mlp, cnn, impala or minatar"
    ],
    "algo=td3 env=pendulum critic.encoder=nature": ["should be own, auto, mlp, "],
    "encoder.reader=nature": ["encoder.reader=nature: should be 'auto', 'mlp', 'cnn', 'impala' or 'minatar'"],
    "algo=dqn env=cartpole critic.encoder=shared": [
        "critic.encoder=shared: no such key. Leave it out: algo=dqn has no critic.\n"
    ],
    "algo=ppo env=cartpole actor.encoder=shared": [
        "actor.encoder=shared: only the critic can share the actor's encoder. Use actor.encoder=own.\n"
    ],
    "algo=bc env=pendulum data.path=x eval.target_return=-100": [
        "eval.target_return=-100: is of algo=decision_transformer. Use that, or leave it out.\n"
    ],
    "algo=td3 env=pendulum critic.encoder=shared": [
        "critic.encoder=shared: is for a critic that judges states, or SAC's without an RNN",
        "Use critic.encoder=own.\n",
    ],
    "algo=sac rnn=gru env=pendulum critic.encoder=shared": [
        "critic.encoder=shared: is for a critic that judges states, or SAC's without an RNN",
        "Use critic.encoder=own.\n",
    ],
    "optim._target_=torch.optim.SGD": ["optim.eps=", "torch.optim.SGD takes no eps", "~optim.eps"],
    "actor._target_=torch.nn.Linear": ["actor._target_=torch.nn.Linear", "called as actor(env, …)"],
    # Options and values of other libraries.
    "optim=rmsprop": ["Write optim._target_=torch.optim.RMSprop ~optim.fused.\n"],
    "schedule=constant": ["Write schedule=null.\n"],
    "total_frames=1e5": ["total_frames=1e5: should be an integer. Write total_frames=100_000.\n"],
    "critic=q_value": ["critic=q_value: no such option. Try state_value.\n"],
    "target_entropy=-3": ["only loss=cql", "which algo=ppo does not take.\n"],
    "algo=sac env=pendulum target_entropy=-3": ["Write loss.module.target_entropy=-3.\n"],
    "algo=dqn env=cartpole train_frequency=4": ["Write collector.frames_per_batch=4 (frames between "],
    "algo=sac env=pendulum ent_coef=auto": ["Write loss.module.alpha_init=1.0 (the temperature is learned "],
    # Keys that an algorithm or a preset sets for another class; the folder is docs/my_project.
    "--config-dir=docs/my_project/conf algo=ppo env=cartpole actor=net": [
        "actor.init=null: my_nets.actor takes no init, which tuned=ppo/cartpole sets",
        "Add tuned=none ~actor.init ~actor.num_cells ~actor.scale ~actor.scale_init.\n",
    ],
    "--config-dir=docs/my_project/conf algo=ppo env=cartpole actor=net tuned=none": [
        "actor.init=orthogonal: my_nets.actor takes no init, which algo=ppo sets",
        "Add ~actor.init ~actor.num_cells ~actor.scale ~actor.scale_init.\n",
    ],
    "--config-dir=docs/my_project/conf algo=my_ppo env=line +env.size=3": [
        "env.size=3: my_envs.Line takes no size. env has width.\n"
    ],
    "--config-dir=docs/my_project/conf algo=dqn env=cartpole loss=flat": [
        "critic=null: does not go with loss=flat, which reads actor as actor_network and critic as",
        "Use algo=a2c, gail, impala, ppo, recurrent_ppo, reinforce or rnd.\n",
    ],
    "--config-dir=docs/my_project/conf algo=my_ppo env=line loss=dqn": [
        "loss=dqn: does not go with algo=my_ppo. Use loss=flat or loss=clip_ppo.\n"
    ],
    "--config-dir=docs/my_project env=cartpole": [
        "docs/my_project: holds no group of options, such as actor/ or env/. Name the folder that does."
    ],
    # Wrong types.
    "device=0": ["device=0", "auto, cpu, cuda or cuda:N"],
    "optim.lr=abc": ["optim.lr=abc", "a valid number"],
    "total_frames=abc": ["total_frames=abc", "an integer"],
    "total_frames=1M": ["total_frames=1M: should be an integer. Write total_frames=1_000_000.\n"],
    "target_kl=None": ["target_kl=None: should be a valid number. Write target_kl=null.\n"],
    "minibatches.sequence=None": [
        "minibatches.sequence=None: should be an integer. Write minibatches.sequence=null.\n"
    ],
    "optim.lr=None": ["optim.lr=None: should be a valid number. Write a number such as 0.5 or 1e-3.\n"],
    "total_frames=1e6": ["total_frames=1e6: should be an integer. Write total_frames=1_000_000.\n"],
    "seed=1.5": ["seed=1.5", "an integer"],
    "actor.num_cells=64": ["actor.num_cells=64: should be a list. Write actor.num_cells=[64].\n"],
    "actor.num_cells=abc": [
        "actor.num_cells=abc: should be a list of integers. Write actor.num_cells=[64,64].\n"
    ],
    "algo=qmix env=simple_spread mixer.state_cells=abc": [
        "mixer.state_cells=abc: should be a list of integers. Write mixer.state_cells=[64,64].\n"
    ],
    "actor.num_cells=64x64": ["actor.num_cells=64x64: should be a list. Write actor.num_cells=[64,64].\n"],
    "action_spaces=discrete": ["action_spaces=discrete: should be a list. Write action_spaces=[discrete].\n"],
    "actor.num_cells=[64,abc]": ["actor.num_cells=[64,abc]: should be an integer.\n"],
    "actor.num_cells.0=abc": ["actor.num_cells=[abc, ", "an integer"],
    "eval.stop_when_solved=maybe": ["eval.stop_when_solved=maybe", "true or false"],
    "eval.video=maybe": ["eval.video=maybe", "true or false"],
    "eval.reward_threshold=high": ["eval.reward_threshold=high", "a valid number"],
    "torch_threads=many": ["torch_threads=many", "an integer or 'auto'"],
    "eval=3": ["eval=3", "a group of keys"],
    "transforms.normalize=null": [
        "transforms.normalize=null: should be a group of keys. Write ~transforms.normalize.\n"
    ],
    "env._target_=null": ["env={_target_: null", "the dotted path of a class or function"],
    "+transforms.mine.low=3": ["transforms.mine={low: 3}", "should have _target_"],
    # Out of range.
    "optim.lr=-1": ["optim.lr=-1", "greater than 0"],
    "optim.lr=nan": ["optim.lr=nan", "a finite number"],
    "loss.value_estimator.gamma=2": ["loss.value_estimator.gamma=2", "less than or equal to 1"],
    "algo=impala loss.value_estimator.rho_thresh=0": ["loss.value_estimator.rho_thresh=0", "greater than 0"],
    "algo=impala loss.value_estimator.value_type=vtrac": ["value_type=vtrac", "'gae', 'magae' or 'vtrace'"],
    "algo=impala +loss.value_estimator.lmbda=0.9": [
        "loss.value_estimator.lmbda=0.9: no such key",
        "loss.value_estimator has gamma, rho_thresh, c_thresh, average_adv, differentiable,",
    ],
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
    "env=cartpol": [
        "env=cartpol: no such option",
        "Try cartpole, cartpole_masked, cartpole_continuous, acrobot, ant, atari, bit_flip, brax,",
    ],
    "env=CartPole-v1": [
        "env=CartPole-v1: no such option",
        "Use env=cartpole, env=cartpole_masked or env=gym env.id=CartPole-v1.\n",
    ],
    "env=cartpole-v1": [
        "env=cartpole-v1: no such option",
        "Use env=cartpole, env=cartpole_masked or env=gym env.id=CartPole-v1.\n",
    ],
    "env=MiniGrid-DoorKey-5x5-v0": ["no such option. Use env=minigrid env.id=MiniGrid-DoorKey-5x5-v0.\n"],
    "env=gym env.id=BabyAI-GoToLocal-v0": ["Write env=minigrid env.id=BabyAI-GoToLocal-v0.\n"],
    "env=PointMaze_UMaze-v3": ["no such option. Use env=robotics env.id=PointMaze_UMaze-v3.\n"],
    "env=ALE/Pong-v5": ["env=ALE/Pong-v5: no such option. Use env=atari env.id=ALE/Pong-v5.\n"],
    "algo=PPO": [
        "algo=PPO: no such option",
        "Try ppo, ippo, mappo, a2c, bc, cql, cql_discrete, crossq, ddpg, decision_transformer, dqn,",
    ],
    "debug=true": ["debug=true: no such option. Try fast.\n"],
    "algo=ppo.yaml": ["algo=ppo.yaml: an option has no folder and no ending here. Write algo=ppo.\n"],
    "actor=cnn": [
        "actor=cnn: no such option",
        "Image observations get a CNN; encoder=cnn, impala or minatar chooses another one. The",
    ],
    "schedule=None": [
        "schedule=None: no such option. Write schedule=null, or try cosine, linear, linear_to.\n"
    ],
    "-m exploration=null,gaussian": ["exploration=null,gaussian: a sweep cannot leave a group out"],
    "env=[cartpole,pendulum]": [
        "env=[cartpole,pendulum]: a run has one",
        "Write env=OPTION, or -m env=cartpole,pendulum to run them all.\n",
    ],
    "env=none": ["env: this key is required. Write env=VALUE.\n"],
    "+algo=dqn": ["+algo: an option is chosen already. Leave out the +, as algo=OPTION.\n"],
    "algo=pppo": [
        "algo=pppo: no such option",
        "Try ppo, ippo, mappo, a2c, bc, cql, cql_discrete, crossq, ddpg, decision_transformer, dqn,",
    ],
    "actor=tanhnormal": [
        "actor=tanhnormal: no such option",
        "Try tanh_normal, stochastic, state_independent, gaussian, categorical.\n",
    ],
    "logger=wandbb": ["logger=wandbb: no such option. Try wandb, tensorboard, trackio.\n"],
    "logger=[wandb,trackioo]": ["logger=trackioo: no such option. Try trackio, tensorboard, wandb.\n"],
    "logger=wandb logger.mode=offlin": ["logger.wandb.mode=offlin", "'auto', 'online' or 'offline'"],
    "layers@actor=transformer": [
        "layers@actor=transformer: no such option.",
        "Try batch_renorm, droq, flash_sac, layer_norm, mlp, noisy, pqn, simba, simba_v2, xqc.\n",
    ],
    "rnn=transformer": ["rnn=transformer: no such option. Try gru, lstm.\n"],
    "optim=adm": ["optim=adm: no such option. Try adam, radam, adamw, laprop.\n"],
    "exploration=nosuch": ["exploration=nosuch: no such option. Try null.\n"],
    "algo=": ["algo=", "dqn", "ppo"],
    "experiment=nosuch": ["experiment=nosuch", "dqn_intro", "quickstart"],
    "tuned=cartpole": [
        "tuned=cartpole: no such option",
        "Try bc/cartpole, pqn/cartpole, ppo/cartpole, a2c/cartpole, bc/half_cheetah, bc/hopper,",
    ],
    "algo=dqn env=cartpole tuned=ppo/pendulum": [
        "tuned=ppo/pendulum: this preset is for algo=ppo, not algo=dqn",
        "[64, 64]}: should have _target_, the dotted path of a class or function. Use critic=null.\n",
    ],
    "algo=ppo env=cartpole tuned=dqn/cartpole": [
        "tuned=dqn/cartpole: this preset is for algo=dqn, not algo=ppo",
        "transforms.reward_scaling.gamma=0.98: torchrl.envs.RewardScaling takes no gamma.",
    ],
    "hydra/launcher=nosuch": [
        "hydra/launcher=nosuch: no such option. Try basic, processes, ray_processes.\n"
    ],
    # The environment.
    "env=gym": ["env.id: no value. Write env.id=NAME, such as CartPole-v1.\n"],
    "algo=mappo env=pettingzoo": [
        "env.id: no value",
        "Write env.id=NAME, such as mpe2/simple_spread_v3.\n",
    ],
    "env=self_play env.id=null": ["env.id=null: should be a name, such as classic/tictactoe_v3.\n"],
    "env=self_play env.id=classic/tictactoe_v3 env.opponents.random_prob=2": [
        "env.opponents.random_prob=2: should be less than or equal to 1.\n"
    ],
    "env=self_play env.id=classic/tictactoe_v3 env.opponents.latest_prob=-1": ["greater than or equal to 0"],
    "env=self_play env.id=classic/tictactoe_v3 env.opponents.pool_size=0": [
        "env.opponents.pool_size=0: ",
        "than 0",
    ],
    "env=self_play env.id=classic/tictactoe_v3 env.opponents.every_frames=0": ["every_frames=0: ", "than 0"],
    # A task's own keywords, without the plus.
    "algo=mappo env=simple_spread env.N=5": [
        "env.N=5: no such key",
        "continuous_actions, group_map. For a keyword argument of the environment write +env.N=5.\n",
    ],
    "env=cartpole env.sutton_barto_reward=true": [
        "env.sutton_barto_reward=true: no such key",
        "env has id. For a keyword argument of the environment write +env.sutton_barto_reward=true.\n",
    ],
    "algo=mappo env=vmas env.scenario=balance env.scenario_kwargs.n_agents=4": [
        "no such key. Write +env.scenario_kwargs.n_agents=4.\n"
    ],
    "algo=mappo env=vmas env.scenario=balance env.n_agents=4": [
        "env.n_agents=4: no such key",
        "scenario. For a keyword argument of the environment write +env.scenario_kwargs.n_agents=4.\n",
    ],
    "env=custom": ["env._target_: no value. Write env._target_=NAME, such as my_package.MyEnv.\n"],
    "env.id=cartpole": [
        "env.id=cartpole: env=inverted_double_pendulum is InvertedDoublePendulum-v4, with its",
        "Use env=cartpole.\n",
    ],
    "env=gym env.id=null": ["error: env.id=null: should be a name, such as CartPole-v1"],
    "env=gym env.id=3": ["error: env.id=3: should be a name, such as CartPole-v1"],
    "env=custom env._target_=3": ["error: env._target_=3: should be the dotted name of a class, such as"],
    "env=gym env.id=NoSuchEnv-v0": [
        "env.id=NoSuchEnv-v0",
        "doesn't exist. For your own environment, write env.id=MODULE:NoSuchEnv-v0; MODULE registers it.\n",
    ],
    "env=gym env.id=CartPol-v1": ["env.id=CartPol-v1", "Did you mean", "CartPole"],
    "env=cartpole +env.gravityy=3": [
        "env.gravityy=3: CartPole-v1 takes no gravityy",
        "action_mask, weights, sutton_barto_reward, render_mode, max_episode_steps, disable_env_checker.\n",
    ],
    "env=gym env.id=HalfCheetah-v5 +env.wdth=2": [
        "env.wdth=2: HalfCheetah-v5 takes no wdth. Write env.width=2.\n"
    ],
    "--config-dir=docs/my_project/conf env=gym env.id=my_envs:Corridor-v0 +env.len=3": [
        "env.len=3: my_envs:Corridor-v0 takes no len. Write env.length=3.\n"
    ],
    "env=cartpole +env.sutton_barto_reward=3": ["env.sutton_barto_reward=3: should be true or false"],
    "env=gym env.id=ALE/Pong-v5": [
        "env.id=ALE/Pong-v5: cannot be created: it is a game of another option. Write env=atari "
        "env.id=ALE/Pong-v5.\n"
    ],
    "env=gym env.id=MinAtar/Breakout-v1": ["Write env=minatar env.id=MinAtar/Breakout-v1.\n"],
    "env=custom env._target_=no.such.Class": [
        "env._target_=no.such.Class: cannot be imported: No module named 'no'",
        "Put it beside the folder of --config-dir=DIR, or its folder into PYTHONPATH.\n",
    ],
    "env=custom env._target_=torchrl.envs.Pendulum": [
        "env._target_=torchrl.envs.Pendulum",
        "cannot be imported",
    ],
    "env=custom env._target_=torchrl.envs": [
        "env._target_=torchrl.envs: no class or function. Write the dotted path of one.\n"
    ],
    "env=custom env._target_=gymnasium.envs.classic_control.CartPoleEnv": [
        "env._target_=gymnasium.envs.classic_control.CartPoleEnv: this class is no EnvBase",
        "Use env=gym env.id=CartPole-v1.\n",
    ],
    "env=custom env._target_=tests.fakes.envs.Corridor": [
        "env._target_=tests.fakes.envs.Corridor",
        "use env=gym env.id=tests.fakes.envs:Corridor-v0",
    ],
    # Sizes that do not fit each other.
    "collector.frames_per_batch=1000 collector.num_envs=3": [
        "collector.frames_per_batch=1000: is not a multiple of 3, the environments",
        "Use collector.frames_per_batch=1002.\n",
    ],
    "collector=multi_sync collector.num_workers=3 collector.num_envs=4 collector.frames_per_batch=1000": [
        "collector.frames_per_batch=1000: is not a multiple of 12, the environments",
        "Use collector.frames_per_batch=1008.\n",
    ],
    "minibatches.size=5000 collector.frames_per_batch=64": [
        "minibatches.size=5000: is more than collector.frames_per_batch=64",
        "Use minibatches.size=64 or less, or collector.frames_per_batch=5000 or more.\n",
    ],
    "algo=dqn env=cartpole minibatches.size=500 buffer.storage.max_size=100": [
        "minibatches.size=500: is more than buffer.storage.max_size=100",
        "Use minibatches.size=100 or less, or buffer.storage.max_size=500 or more.\n",
    ],
    "algo=dqn env=cartpole minibatches.warmup_frames=5000 buffer.storage.max_size=1000": [
        "minibatches.warmup_frames=5000: is more than buffer.storage.max_size=1000",
        "Use minibatches.warmup_frames=1000 or less, or buffer.storage.max_size=5000 or more.\n",
    ],
    "algo=dqn env=cartpole exploration.eps_end=0.9 exploration.eps_init=0.5": [
        "exploration.eps_end=0.9: is more than exploration.eps_init=0.5",
        "Use exploration.eps_end=0.5 or less, or exploration.eps_init=0.9 or more.\n",
    ],
    "buffer.storage.max_size=8 minibatches.size=4": [
        "buffer.storage.max_size=8",
        "buffer.storage.max_size=1024 or more",
    ],
    # Goals that cannot be relabelled.
    "algo=dqn env=bit_flip minibatches.n_steps=3": [
        "minibatches.n_steps=3: does not go with buffer=hindsight, which relabels single steps",
        "Use minibatches.n_steps=1.\n",
    ],
    "algo=dqn env=bit_flip rnn=lstm": [
        "minibatches.sequence=32: does not go with buffer=hindsight, which relabels single steps",
        "Use minibatches.sequence=null.\n",
    ],
    "algo=dqn env=bit_flip buffer.her_ratio=2": ["buffer.her_ratio=2: should be less than or equal to 1"],
    "algo=dqn env=bit_flip buffer.strategy=random": ["buffer.strategy=random: should be 'future' or 'final'"],
    # Planning.
    "algo=mpc env=pendulum planner=cemm": ["planner=cemm: no such option. Try cem, mppi.\n"],
    "algo=mpc env=pendulum planner=null": [
        "planner=null: does not go with algo=mpc, which plans with a learned model",
        "Use planner=cem or planner=mppi.\n",
    ],
    "algo=ppo env=pendulum planner=cem": ["does not go with planner=cem, which plans with a learned model"],
    "algo=mpc env=pendulum planner.top_k=1": ["planner.top_k=1: should be greater than or equal to 2.\n"],
    "algo=mpc env=pendulum planner.top_k=200": [
        "planner.top_k=200: is more than planner.num_candidates=80. Use planner.top_k=80 or less",
    ],
    "algo=mpc env=pendulum planner.temperature=1": [
        "planner.temperature=1: no such key. Add planner=mppi, which has planner.temperature.\n"
    ],
    "algo=mpc env=pendulum planner=mppi planner.temperature=-1": [
        "planner.temperature=-1: should be greater than or equal to 0.\n"
    ],
    "algo=mpc env=pendulum buffer=replay": [
        "buffer=replay: does not go with algo=mpc, which plans with a learned model. Use buffer=bootstrap.\n"
    ],
    "algo=sac env=pendulum buffer=bootstrap": ["buffer=bootstrap: does not go with"],
    "algo=crossq env=point_reach buffer=hindsight": [
        "buffer=hindsight: does not go with algo=crossq, which learns off-policy without target networks.",
        "Use buffer=replay or buffer=memmap.\n",
    ],
    # Parts that do not fit each other.
    "algo=ppo actor=tanh_normal env=cartpole": [
        "actor=tanh_normal: acts in continuous action spaces, as it squashes a normal distribution into the "
        "bounds, and env=cartpole has discrete actions",
        "Use actor=stochastic.\n",
    ],
    "algo=ppo actor=categorical env=pendulum": [
        "actor=categorical: acts in discrete or multi-discrete action spaces, as it has a probability for "
        "each choice, and env=pendulum has",
        "Use actor=stochastic.\n",
    ],
    "algo=ppo env=cartpole encoder=null": ["encoder: this key is required. Write encoder=auto.\n"],
    "env=cartpole env.id=Ant-v5": [
        "env.id=Ant-v5: env=cartpole is CartPole-v1, with its hyperparameters",
        "Use env=gym env.id=Ant-v5.\n",
    ],
    "env=cartpole env._target_=tests.fakes.envs.CountingEnv": [
        "env._target_=tests.fakes.envs.CountingEnv: env=cartpole is hydrl.envs.gymnasium_env, with its",
        "Use env=custom env._target_=tests.fakes.envs.CountingEnv.\n",
    ],
    "collector=distributed": [
        "collector=distributed: no such option",
        "TorchRL's says nothing of a dead worker but a time-out; use collector=ray.\n",
    ],
    "collector=rpc": [
        "collector=rpc: no such option",
        "workers along time, so that advantages cross from one to the next; use collector=ray.\n",
    ],
    "+collector.num_workers=2": ["collector.num_workers=2", "collector=multi_sync and collector=multi_async"],
    "buffer.storage=3": ["buffer.storage=3: should be a group of keys"],
    "buffer.storage=null": ["buffer.storage=null: should be a group of keys"],
    "algo=dqn env=cartpole +buffer.sampler={_target_:torchrl.data.replay_buffers.PrioritizedSliceSampler}": [
        "buffer.sampler._target_=torchrl.data.replay_buffers.PrioritizedSliceSampler: its priorities",
        "Use buffer=prioritized.\n",
    ],
    "algo=dqn env=cartpole buffer._target_=torchrl.data.TensorDictPrioritizedReplayBuffer": [
        "buffer._target_=torchrl.data.TensorDictPrioritizedReplayBuffer: its priorities cannot be saved",
    ],
    "algo=dqn env=pendulum": [
        "algo=dqn: acts in discrete action spaces, and env=pendulum has continuous actions",
        "Use algo=a2c, crossq, ddpg, dreamer_v3, droq, flash_sac, impala, mpc, ppo, recurrent_ppo, redq,",
        "reinforce, rnd, sac, simba_v2, td3, tqc or xqc.\n",
    ],
    "algo=ppo env=custom env._target_=tests.fakes.envs.CountingTeam": [
        "algo=ppo: acts in continuous, discrete or multi-discrete action spaces, and",
        "Use algo=independent_ddpg, ippo, maddpg, mappo or masac.\n",
    ],
    "algo=mappo env=cartpole": [
        "algo=mappo: acts in multi-agent continuous, multi-agent discrete or multi-agent",
        "Use algo=a2c, dqn, dreamer_v3, impala, munchausen_dqn, ppo, pqn, prioritized_dqn, qr_dqn, r2d2,",
        "rainbow, recurrent_ppo, reinforce, rnd or sac_discrete.\n",
    ],
    "algo=mappo env=custom env._target_=tests.fakes.envs.CountingTeam actor=tanh_normal": [
        "actor=tanh_normal: does not go with algo=mappo, which learns on-policy with a stochastic policy.",
        "Use actor=multi_agent.\n",
    ],
    "algo=mappo env=vmas_navigation env.scenario=balance": [
        "env.scenario=balance: env=vmas_navigation is navigation, with its hyperparameters",
        "Use env=vmas env.scenario=balance.\n",
    ],
    "algo=ppo env=cartpole collector=dataset data=npz data.path=set": [
        "collector=dataset: does not go with minibatches=epochs, which is on-policy and learns from",
    ],
    "algo=rainbow env=cartpole minibatches=mixed minibatches.n_steps=1 data=npz data.path=set": [
        "minibatches=mixed: does not go with algo=rainbow, which is a distributional DQN with",
        "Use minibatches=replay data=null.\n",
    ],
    "algo=mappo env=simple_spread env.id=mpe2/simple_tag_v3": [
        "env.id=mpe2/simple_tag_v3: env=simple_spread is mpe2/simple_spread_v3, with its",
        "Use env=simple_tag or env=pettingzoo env.id=mpe2/simple_tag_v3.\n",
    ],
    "algo=mappo env=vmas": [
        "env.scenario: no value",
        "Write env.scenario=NAME, such as balance.\n",
    ],
    "algo=mappo env=custom env._target_=tests.fakes.envs.CountingTeam +env.num_envs=3": [
        "env.num_envs=3",
        "the run fills this in",
    ],
    "algo=ppo env=cartpole actor=dueling": [
        "actor=dueling: does not go with algo=ppo",
        "Use actor=stochastic, tanh_normal, state_independent, gaussian or categorical.\n",
    ],
    "algo=iql env=pendulum": [
        "data.path: no value",
        "the folder of a run that kept its replay buffer, or what data=minari, h5 or npz reads.\n",
    ],
    "algo=iql env=pendulum data=null": [
        "data=null: collector needs a dataset",
        "Add data=replay_buffer data.path=DIR, or use collector=single.\n",
    ],
    "algo=iql env=pendulum data=csv data.path=x": [
        "data=csv: no such option. Try h5, minari, npz, replay_buffer, solved.\n"
    ],
    "algo=td3_bc env=cartpole data.path=x": [
        "algo=td3_bc: acts in continuous action spaces, and env=cartpole has discrete actions",
        "Use algo=bc, cql_discrete, gail or iql_discrete.\n",
    ],
    "algo=gail env=pendulum ~data": [
        "data=null: does not go with algo=gail, which imitates an expert's episodes with PPO.",
        "Use data=npz, h5, minari or replay_buffer.\n",
    ],
    "algo=td3_bc env=pendulum data.path=x loss.module.alpha=-1": ["loss.module.alpha=-1", "equal to 0"],
    "algo=cql env=pendulum data.path=x +loss.module.with_lagrange=true": [
        "loss.module.with_lagrange=true: hydrl.losses.offline.CQLLoss takes no with_lagrange"
    ],
    "algo=bc env=pendulum data.path=x target=soft": [
        "target=soft: does not go with algo=bc, which learns from an offline dataset. Use target=null.\n"
    ],
    "algo=dqn env=cartpole actor=categorical": [
        "actor=categorical: does not go with algo=dqn",
        "Use actor=q_value, actor=dueling or actor=distributional.\n",
    ],
    "algo=dqn env=cartpole loss=c51": [
        "actor=q_value: does not go with loss=c51, which learns distributions of returns.",
        "Use actor=distributional.\n",
    ],
    "algo=dqn env=cartpole actor=distributional": [
        "actor=distributional: does not go with loss=dqn, which learns action values from single steps.",
        "Use actor=q_value or actor=dueling.\n",
    ],
    "algo=rainbow env=cartpole loss=dqn": [
        "loss=dqn: does not go with algo=rainbow, which is a distributional DQN with prioritized replay.",
        "Use loss=c51.\n",
    ],
    "algo=rainbow env=cartpole actor.v_min=10": ["actor.v_min=10: should be less than actor.v_max=1.0.\n"],
    "algo=rainbow env=cartpole actor.atoms=1": ["actor.atoms=1", "greater than 1"],
    "algo=rainbow env=cartpole actor.noisy=0": ["actor.noisy=0", "greater than 0"],
    "algo=ppo env=cartpole layers@actor=noisy": [
        "actor.noisy=0.5: hydrl.networks.actors.stochastic takes no noisy",
        "num_cells, activation, in_keys, encoder, rnn, norm, hidden_layers, init.\n",
    ],
    "algo=rainbow env=cartpole compile=true": [
        "compile=true: does not go with DistributionalDQNLoss, which computes its targets of single",
        "Use compile=false.\n",
    ],
    "algo=ppo env=cartpole actor=q_value": [
        "actor=q_value: does not go with algo=ppo",
        "Use actor=stochastic, tanh_normal, state_independent, gaussian or categorical.\n",
    ],
    "algo=ppo ~critic": ["critic=null: algo=ppo needs a critic. Use critic=state_value.\n"],
    "algo=ppo critic=none": ["critic=null: algo=ppo needs a critic. Use critic=state_value.\n"],
    "hydra.run.dir=": ["hydra.run.dir=: no folder is named. Write hydra.run.dir=DIR.\n"],
    "algo=ppo,dqn": ["algo=ppo,dqn: more than one value", "add -m"],
    "-x": ["-x: no such option. Write KEY=VALUE, and see --help.\n"],
    "search=ppo": ["search=ppo: no key of a run. Start python scripts/search.py search=ppo.\n"],
    "-m exploration=none,gaussian": ["exploration=none: no such option. Try null.\n"],
    "algo=ppo loss=dqn": [
        "loss=dqn: does not go with algo=ppo, which learns on-policy with a stochastic policy.",
        "Use loss=clip_ppo or loss=kl_penalty.\n",
    ],
    "algo=ppo buffer=replay": [
        "buffer=replay: does not go with algo=ppo, which learns on-policy with a stochastic policy.",
        "Use buffer=rollout.\n",
    ],
    "algo=ppo exploration=e_greedy": [
        "exploration=e_greedy: does not go with algo=ppo, which learns on-policy with a stochastic policy.",
        "Use exploration=null.\n",
    ],
    "algo=ppo target=soft": [
        "target=soft: does not go with algo=ppo, which learns on-policy with a stochastic policy.",
        "Use target=null.\n",
    ],
    "algo=dqn env=cartpole loss.module.delay_value=false": [
        "loss.module.double_dqn=true",
        "delay_value=true",
    ],
    "collector=ray collector.num_collectors=3 collector.num_envs=2 collector.frames_per_batch=1000": [
        "collector.frames_per_batch=1000: is not a multiple of 6, the environments",
        "Use collector.frames_per_batch=1002.\n",
    ],
    "collector=ray collector.address=ray://head:10001": [
        "collector.address=ray://head:10001: should be HOST:PORT"
    ],
    "eval.backend=ray eval.address=ray://head:10001": ["eval.address=ray://head:10001: should be HOST:PORT"],
    "eval.address=auto": ["eval.address=auto: is of eval.backend=ray"],
    "collector=ray eval.backend=ray eval.address=auto": [
        "collector=ray, which evaluates on its own cluster, collector.address"
    ],
    "collector=ray collector.num_cpus=-1": ["collector.num_cpus=-1: should be greater than or equal to 0"],
    "collector=ray transforms=running_norm": [
        "transforms: running statistics of observations or rewards would stay in the workers",
        "or transforms=normalized init_stats_frames=1_000, which leaves rewards as they are.\n",
    ],
    "algo=dqn rnn=lstm collector=ray collector.sync=false": ["collector.sync=false", "sequences go on"],
    "algo=dqn env=cartpole ~tuned minibatches.n_steps=3 collector=multi_async": [
        "minibatches.n_steps=3: rewards are summed from batch to batch, and with",
        "Use collector=multi_sync or minibatches.n_steps=1.\n",
    ],
    "collector=multi_sync transforms=running_norm": [
        "transforms: running statistics of observations or rewards would stay in the workers",
        "or transforms=normalized init_stats_frames=1_000, which leaves rewards as they are.\n",
    ],
    "transforms.reward_scaling.scale=wide": ["transforms.reward_scaling.scale=wide", "a valid number"],
    "env=reacher transforms.reward_scaling.gamma=2": ["transforms.reward_scaling.gamma=2", "equal to 1"],
    "env=pendulum actor.init=xavier": ["actor.init=xavier", "orthogonal"],
    "env=pendulum actor.scale_init=0": ["actor.scale_init=0", "greater than 0.01"],
    "minibatches.draw=all": ["minibatches.draw=all", "should be 'epoch' or 'minibatch'"],
    "compile=yes": ["compile=yes", "true or false"],
    "compile=true loss=kl_penalty": [
        "does not go with KLPENPPOLoss, which changes beta outside the graph. Use compile=false.\n"
    ],
    "actor.activation=Foo": ["actor.activation=Foo", "'Tanh', 'ReLU'"],
    "critic.activation=relu": ["critic.activation=relu", "ReLU"],
    "algo=dqn env=cartpole critic=state_value critic._target_=tests.fakes.envs.CountingEnv": [
        "critic=tests.fakes.envs.CountingEnv: does not go with loss=dqn, which reads actor as value_network",
        "Use critic=null.\n",
    ],
    # An RNN.
    "algo=ppo transforms.normalize.settle=0": ["transforms.normalize.settle=0", "greater than 0"],
    "algo=dqn env=cartpole rnn=gru minibatches=replay": [
        "minibatches=replay: does not go with loss=recurrent_dqn, which learns action values from sequences.",
        "Use minibatches=sequences.\n",
    ],
    "algo=ddpg env=pendulum rnn=gru": [
        "rnn=gru: does not go with DDPGLoss, which is a baseline without recurrent policies; algo=td3",
        "Use rnn=null.\n",
    ],
    "algo=ppo collector.init_random_frames=1024": [
        "init_random_frames=1024: does not go with minibatches=epochs",
        "init_random_frames=0",
    ],
    "algo=recurrent_ppo minibatches.sequence=null": ["whole sequences. Use minibatches.sequence=32"],
    "algo=recurrent_ppo minibatches.sequence=48": [
        "minibatches.sequence=48: does not divide both minibatches.size=64 and the 256 steps of each",
        "Use minibatches.sequence=32.\n",
    ],
    "algo=recurrent_ppo actor.rnn.hidden_size=0": ["rnn.hidden_size=0", "greater than 0"],
    "algo=tqc env=pendulum rnn=lstm": [
        "rnn=lstm: does not go with TQCLoss, which has many critics, each of which would need an",
        "Use rnn=null.\n",
    ],
    "algo=recurrent_ppo rnn.span=1": ["rnn.span=1", "greater than or equal to 2"],
    "algo=recurrent_ppo rnn.cell=rnn": ["rnn.cell=rnn: should be 'lstm' or 'gru'"],
    "algo=recurrent_ppo +actor.rnn.units=8": [
        "rnn.units=8: hydrl.networks.rnn.RecurrentLayer takes no units",
        "rnn has cell, hidden_size, span.\n",
    ],
    "algo=recurrent_ppo +critic.rnn={_target_:hydrl.networks.rnn.RecurrentLayer,cell:gru,hidden_size:8}": [
        "does not go with critic=state_value, which has no RNN of its own; critic.encoder=shared reads "
        "the one of the actor. Use critic.rnn=null.\n"
    ],
    "algo=recurrent_ppo compile=true": [
        "with rnn=lstm, which is reset where episodes end, outside the graph. Use compile=false.\n"
    ],
    "algo=recurrent_ppo loss.value_estimator.deactivate_vmap=false": ["deactivate_vmap=true"],
    # Deleting.
    "~transforms.normalise": ["~transforms.normalise: no such key. Write ~transforms.normalize.\n"],
    "~transforms.nosuch": ["~transforms.nosuch", "transforms has normalize, double_to_float"],
    "~seed": ["seed: this key is required. Write seed=VALUE.\n"],
    "~total_frames": [
        "anneal_frames=${total_frames}: no such key. Write ${KEY} with a dotted key, or a value.\n"
    ],
    "~eval.episodes": ["eval.episodes: this key is required. Write eval.episodes=VALUE.\n"],
    "~minibatches.size": [
        "minibatches._target_=hydrl.experience.minibatches.Epochs: the call minibatches(buffer,",
        "\n",
    ],
    "~collector.num_envs": ["collector.num_envs: this key is required. Write collector.num_envs=VALUE.\n"],
    # The command line itself.
    "optim.lr": [
        "optim.lr: this cannot be read",
        "Write KEY=VALUE, without blanks; for the shell quote a word with blanks, 'KEY=A VALUE'.\n",
    ],
    "algo = dqn": ["=: this cannot be read. Write KEY=VALUE, without blanks.\n"],
    "actor.num_cells[0]=3": ["actor.num_cells[0]=3", "quote what has brackets"],
    "actor.num_cells.7=3": ["actor.num_cells.7=3: list index out of range.\n"],
    "actor.num_cells=64,64": [
        "actor.num_cells=64,64: more than one value",
        "Write [VALUE,VALUE] for a list, or add -m to run them all.\n",
    ],
    "seed=1,2": ["seed=1,2: more than one value. Write -m seed=1,2 to run them all.\n"],
    "algo=ppo env=cartpole seed=0,1": ["seed=0,1: more than one value. Write -m seed=0,1 to run them all.\n"],
    "env=cartpole seed=1,100": ["seed=1,100: more than one value. Write -m seed=1,100 to run them all.\n"],
    "env=cartpol optim.lr=1 minibatches.epochs=3 env.wrappers.a={}": ["error: env=cartpol: no such option"],
    "export=policy.onnx": ["export=policy.onnx: no such key. export is a key of scripts/evaluate.py.\n"],
    "run=outputs/x": ["run=outputs/x: no such key. run is a key of scripts/evaluate.py; hydra.run.dir=DIR"],
    "seed=range(1,3)": ["Write -m 'seed=range(1,3)' to run them all.\n"],
    "total_frames=1,000,000": [
        "total_frames=1,000,000: more than one value. Write total_frames=1_000_000.\n"
    ],
    "optim.lr=0,001": ["optim.lr=0,001: more than one value. Write optim.lr=0.001.\n"],
    "eval=[]": ["eval=[]: this is a group of keys. Set one of them, as eval.KEY=VALUE.\n"],
    "hydra=3": ["hydra=3: no such option. --help lists the options of each group.\n"],
    "total_frames=${frames}": [
        "total_frames=${frames}: no such key. Write ${KEY} with a dotted key, or a value.\n"
    ],
    "total_frames=???": ["total_frames: no value. Write total_frames=VALUE.\n"],
    "--lr 3": ["--lr 3: no such option. Write optim.lr=3, and see --help.\n"],
    "--total-timesteps 1000": [
        "--total-timesteps 1000: no such option. Write total_frames=1000, and see --help.\n"
    ],
    "--algo=dqn": ["--algo=dqn: no such option. Write algo=dqn, and see --help.\n"],
    "hydra.run.dir=/proc/nope": ["/proc/nope cannot be written", "hydra.run.dir=DIR"],
}
