"""Language models: probabilities, advantages and losses against computations by hand, and whole runs."""

import json
import random
import socket
from functools import partial

import pytest
import torch
from tensordict import TensorDict, lazy_stack
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type, step_mdp
from torchrl.objectives import llm

import hydrl
from hydrl import envs
from hydrl.contrib.language.losses import GRPOLoss, SFTLoss
from hydrl.contrib.language.minibatches import Experts, Groups, group_advantages
from hydrl.contrib.language.prompt_env import make_prompts
from hydrl.contrib.language.tasks import Countdown, Digits, Sum, evaluate, part_of
from hydrl.errors import RunError, UserError
from hydrl.run.run_folder import metric_rows
from hydrl.training.update import make_gradients
from tests.conftest import digest, killed, logged, saved, settings
from tests.fakes.text_tasks import Broken, Endless, Lookup, Telephone

transformers = pytest.importorskip("transformers")

from hydrl.contrib.language.models import folder, tiny  # noqa: E402
from hydrl.contrib.language.policy import LanguagePolicy  # noqa: E402
from hydrl.contrib.language.text import TextCodec, character_codec, folder_codec  # noqa: E402

TASKS = "tests.fakes.text_tasks"
CHARACTERS = "0123456789=+crs"
PROMPTS = ["1+2=", "12+345=", "s312=", "7="]
SMALL = ["env=digits", "total_frames=64", "collector.frames_per_batch=32", "minibatches.size=16"]
SMALL += ["eval.every_frames=32", "eval.episodes=4", "eval.final_episodes=4", "log_every_frames=32"]
SMALL += ["compile=false"]


def architecture(kind: str, codec: TextCodec) -> torch.nn.Module:
    """A small model of random weights, with dropout configured, whose probabilities are uneven."""
    size, pad = {"vocab_size": codec.size, "initializer_range": 0.2}, {"pad_token_id": codec.pad}
    pad |= {"eos_token_id": codec.end, "bos_token_id": None}
    if kind == "gpt2":
        shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **size, **pad))
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 2, "max_position_embeddings": 32, "attention_dropout": 0.1}
    names = {"llama": ("LlamaConfig", "LlamaForCausalLM"), "qwen2": ("Qwen2Config", "Qwen2ForCausalLM")}
    config, model = (getattr(transformers, name) for name in names[kind])
    return model(config(**shape, **size, **pad))


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return character_codec(CHARACTERS)


def uneven(codec: TextCodec, kind: str = "llama", temperature: float = 1.0) -> LanguagePolicy:
    torch.manual_seed(3)
    return LanguagePolicy(architecture(kind, codec), codec, 6, temperature)


def answered(policy: LanguagePolicy, codec: TextCodec, count: int = 16) -> TensorDict:
    """Prompts of unequal length with sampled answers."""
    prompts = [PROMPTS[k % len(PROMPTS)] for k in range(count)]
    torch.manual_seed(4)
    with set_exploration_type(ExplorationType.RANDOM):
        return policy(TensorDict({"prompt": codec.encode_prompts(prompts, 8)}, [count]))


def alone(policy: LanguagePolicy, prompt: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of one answer's tokens, with neither padding nor other rows."""
    prompt, answer = prompt[prompt != policy.pad], answer[answer != policy.pad]
    with torch.no_grad():
        logits = (
            policy.model(input_ids=torch.cat([prompt, answer])[None]).logits[0].float() / policy.temperature
        )
    logits[:, policy.pad] = -torch.inf
    return logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, answer[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_acting_and_learning_agree_on_probabilities(kind, temperature, codec, tmp_path):
    """In a folder's model with dropout and left padding, the first token included."""
    torch.manual_seed(3)
    architecture(kind, codec).save_pretrained(tmp_path)
    codec.tokenizer.save_pretrained(tmp_path)
    policy = LanguagePolicy(
        folder(folder_codec(str(tmp_path)), 14, path=str(tmp_path)), codec, 6, temperature
    )
    rows = answered(policy, codec, 32)
    policy.train()  # as the loop does before each batch
    learned = policy.log_prob(rows)
    assert len({int((row != codec.pad).sum()) for row in rows["action"]}) > 1
    assert (learned - rows["action_log_prob"]).abs().max() < 1e-4
    for prompt, answer, log_prob in zip(rows["prompt"], rows["action"], learned, strict=True):
        expected = alone(policy, prompt, answer)
        assert (log_prob[: len(expected)] - expected).abs().max() < 1e-4
        assert (log_prob[len(expected) :] == 0).all()


def test_every_token_but_the_padding_is_sampled_as_often_as_its_probability_says():
    """transformers would sample the 50 likeliest, by a temperature that log-probabilities ignore."""
    codec = character_codec("".join(map(chr, range(0x4E00, 0x4E00 + 77))))
    torch.manual_seed(0)
    policy = LanguagePolicy(tiny(codec, 4, hidden=8, layers=1, heads=1), codec, 1, 0.5)
    policy.model.lm_head.weight.data.mul_(20)
    prompt = codec.encode_prompts(["一"], 1).expand(4_000, -1)
    with set_exploration_type(ExplorationType.RANDOM):
        rows = policy(TensorDict({"prompt": prompt}, [4_000]))
    drawn = rows["action"].flatten().bincount(minlength=codec.size)
    chances = policy.get_dist(rows[:1])._original_logits.detach().softmax(-1).flatten()
    assert drawn[codec.pad] == 0
    assert chances[codec.pad] == 0
    assert (drawn > 0).sum() > 50
    assert (drawn / 4_000 - chances).abs().max() < 0.02


def test_the_end_of_an_answer_is_sampled_kept_and_learned_where_a_folder_pads_with_it(codec):
    plain = character_codec(CHARACTERS).tokenizer
    plain.pad_token = plain.eos_token
    own = TextCodec(plain)
    assert own.pad != own.end
    rows = answered(policy := uneven(own), own, 64)
    ended = (rows["action"] == own.end).any(-1)
    assert 0 < ended.sum() < 64
    assert (ended | (rows["action"] != own.pad).all(-1)).all()
    encoded = own.encode_answers(["12"], 6)
    assert own.decode(encoded) == ["12"]
    assert encoded[0, 2] == own.end
    gradients = SFTLoss(policy)(TensorDict({"prompt": rows["prompt"][:1], "action": encoded}, [1]))[
        "loss_sft"
    ]
    expected = alone(policy, rows["prompt"][0], encoded[0])
    assert len(expected) == 3
    assert gradients.item() == pytest.approx(-expected.mean().item(), abs=1e-5)


def test_a_folder_s_own_generation_configuration_is_not_applied(codec, tmp_path):
    """It may penalise repetition, of which log-probabilities know nothing."""
    torch.manual_seed(3)
    model = architecture("llama", codec)
    model.generation_config = transformers.GenerationConfig(repetition_penalty=1.9, top_k=2, do_sample=True)
    model.save_pretrained(tmp_path)
    codec.tokenizer.save_pretrained(tmp_path)
    policy = LanguagePolicy(folder(folder_codec(str(tmp_path)), 14, path=str(tmp_path)), codec, 6, 1.0)
    rows = answered(policy, codec, 64)
    assert (policy.log_prob(rows) - rows["action_log_prob"]).abs().max() < 1e-4


@pytest.fixture(scope="module")
def judged(codec) -> tuple[LanguagePolicy, TensorDict]:
    """Answers with advantages, whose acting and reference policies are others."""
    policy = uneven(codec)
    rows = answered(policy, codec)
    mask = rows["action"] != codec.pad
    rows["action_log_prob"] = (rows["action_log_prob"] + 0.3 * torch.randn(mask.shape)).where(mask, 0.0)
    rows["reference_log_prob"] = (rows["action_log_prob"] + 0.3 * torch.randn(mask.shape)).where(mask, 0.0)
    rows["advantage"] = torch.randn(len(rows), 1, 1)
    return policy, rows


def by_hand(
    policy: LanguagePolicy, rows: TensorDict, low: float = 0.2, high: float = 0.28
) -> dict[str, list]:
    """Terms of each answer's tokens, from the model alone."""
    terms: dict[str, list] = {name: [] for name in ("gain", "ratio", "clipped", "entropy", "k1", "k2", "k3")}
    for row in rows:
        prompt, answer = row["prompt"], row["action"]
        log_prob = alone(policy, prompt, answer)
        count = len(log_prob)
        ratio = (log_prob - row["action_log_prob"][:count]).exp()
        difference = row["reference_log_prob"][:count] - log_prob
        tokens = torch.cat([prompt[prompt != policy.pad], answer[:count]])
        logits = policy.model(input_ids=tokens[None]).logits[0, -count - 1 : -1].detach()
        logits[:, policy.pad] = -torch.inf
        chances = logits.softmax(-1)
        terms["ratio"].append(ratio)
        terms["gain"].append(
            torch.minimum(ratio * row["advantage"][0], ratio.clamp(1 - low, 1 + high) * row["advantage"][0])
        )
        terms["clipped"].append(((ratio < 1 - low) | (ratio > 1 + high)).float())
        terms["entropy"].append(-(chances * chances.clamp_min(1e-30).log()).sum(-1))
        terms["k1"].append(-ratio.log())
        terms["k2"].append(difference.square() / 2)
        terms["k3"].append(difference.exp() - 1 - difference)
    return terms


def test_grpo_averages_over_the_tokens_of_answers(judged):
    """TorchRL's divergence, clip fraction, entropy and approximate KL are means over padding, too."""
    policy, rows = judged
    terms = {name: torch.cat(values).mean().item() for name, values in by_hand(policy, rows).items()}
    ours = GRPOLoss(policy, kl_to_ref_coeff=1.0, entropy_coeff=1.0)(rows.copy())
    theirs = llm.GRPOLoss(policy, kl_to_ref_coeff=1.0, entropy_coeff=1.0, clip_epsilon=(0.2, 0.28))
    theirs.set_keys(action="action", sample_log_prob="action_log_prob", ref_log_probs="reference_log_prob")
    theirs = theirs(rows.copy())
    names = {"entropy": "entropy", "clip_fraction": "clipped", "kl_approx": "k1", "kl_to_ref": "k3"}
    for output, name in names.items():
        assert ours[output].item() == pytest.approx(terms[name], abs=1e-4), output
        assert theirs.get(output).item() != pytest.approx(terms[name], rel=0.05), output
    assert ours["loss_objective"].item() == pytest.approx(-terms["gain"], abs=1e-5)
    assert ours["loss_entropy"].item() == pytest.approx(-terms["entropy"], abs=1e-4)
    squared = GRPOLoss(policy, kl_to_ref_coeff=0.5, kl="k2")(rows.copy())
    assert squared["loss_kl_to_ref"].item() == pytest.approx(0.5 * terms["k2"], abs=1e-4)


def test_grpo_averages_per_token_answer_length_or_sequence(judged):
    policy, rows = judged
    gains, ratios = by_hand(policy, rows)["gain"], by_hand(policy, rows)["ratio"]
    sequences = []
    for ratio, advantage in zip(ratios, rows["advantage"].flatten(), strict=True):
        mean = ratio.log().mean().exp()
        sequences.append(torch.minimum(mean * advantage, mean.clamp(0.8, 1.28) * advantage))
    expected = {
        "token": torch.cat(gains).mean(),
        "answer": torch.stack([gain.mean() for gain in gains]).mean(),
        "length": torch.cat(gains).sum() / rows["action"].numel(),
        "sequence": torch.stack(sequences).mean(),
    }
    assert len({round(value.item(), 4) for value in expected.values()}) == 4
    for per, value in expected.items():
        loss = GRPOLoss(policy, per=per)(rows.copy())["loss_objective"]
        assert loss.item() == pytest.approx(-value.item(), abs=1e-5), per


@pytest.mark.parametrize(("kl", "is_true"), [("k2", True), ("k3", False)])
def test_only_k2_has_the_gradient_of_the_divergence(kl, is_true):
    """In expectation over the policy's own tokens; k3 has the gradient of the reverse divergence."""
    torch.manual_seed(0)
    logits, reference = torch.randn(8, requires_grad=True), torch.randn(8).log_softmax(-1)
    log_prob = logits.log_softmax(-1)
    chances = log_prob.detach().exp()
    difference = reference - log_prob
    estimate = difference.square() / 2 if kl == "k2" else difference.exp() - 1 - difference
    true, reverse = (log_prob.exp() * -difference).sum(), (reference.exp() * difference).sum()
    of = [
        torch.autograd.grad(value, logits, retain_graph=True)[0]
        for value in ((chances * estimate).sum(), true, reverse)
    ]
    cosines = torch.nn.functional.cosine_similarity(of[0], torch.stack(of[1:]))
    assert cosines[0 if is_true else 1].item() == pytest.approx(1, abs=1e-4)
    assert cosines[1 if is_true else 0].item() < 0.9


def test_fine_tuning_averages_over_tokens_and_not_over_answers(judged):
    policy, rows = judged
    log_probs = [alone(policy, row["prompt"], row["action"]) for row in rows]
    loss = SFTLoss(policy)(rows)["loss_sft"].item()
    assert loss == pytest.approx(-torch.cat(log_probs).mean().item(), abs=1e-4)
    assert loss != pytest.approx(-torch.stack([row.mean() for row in log_probs]).mean().item(), abs=1e-3)


def test_advantages_are_of_a_group_by_its_number():
    reward = torch.tensor([1.0, 0, 0, 0, 2, 1, 2, 1])
    group = torch.tensor([7, 7, 7, 7, 3, 3, 3, 3])[torch.tensor(order := [0, 4, 1, 5, 2, 6, 3, 7])]
    advantage, differs = group_advantages(reward[order], group, 4, "deviation")
    rows = reward.reshape(2, 4)
    expected = ((rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-4)).flatten()
    assert torch.allclose(advantage, expected[order], atol=1e-5)
    assert differs.all()
    plain, _ = group_advantages(reward[order], group, 4, "none")
    assert torch.allclose(plain, (rows - rows.mean(1, keepdim=True)).flatten()[order], atol=1e-6)
    with pytest.raises(
        UserError, match=r"^minibatches.group_size=4: .* 3 answers. Let collector.num_envs be"
    ):
        group_advantages(reward[:7], torch.tensor([7, 7, 7, 7, 3, 3, 3]), 4, "none")


@pytest.mark.parametrize("reward", [100.3, 0.1])
def test_equal_rewards_have_no_advantage(reward):
    """TorchRL's are the mean's rounding error, divided by 1e-6."""
    advantage, differs = group_advantages(torch.full((8,), reward), torch.zeros(8), 8, "deviation")
    assert (advantage == 0).all()
    assert not differs.any()
    theirs = llm.MCAdvantage(grpo_size=8)
    ends = {"reward": torch.tensor([reward]), "done": torch.tensor([True])}
    out = [theirs.inv(lazy_stack([TensorDict(query="a", next=TensorDict(ends))])) for _ in range(8)][-1]
    assert out["advantage"].abs().min() > 1e-3


def test_prompts_of_the_three_parts_are_disjoint_and_sums_know_their_order():
    task, rng = Sum(2), random.Random(0)
    counts = dict.fromkeys(["training", "evaluation", "final"], 0)
    for _ in range(4_000):
        prompt, _ = task.draw(rng)
        first, second = prompt.rstrip("=").split("+")
        counts[part := part_of(task, prompt, 0.2)] += 1
        assert part_of(task, f"{second}+{first}=", 0.2) == part
    assert 0.07 < counts["evaluation"] / 4_000 < 0.13
    assert 0.07 < counts["final"] / 4_000 < 0.13
    drawn = {}
    for part in counts:
        env = make_prompts(task, prompt_tokens=6, answer_tokens=4, num_envs=64, held_out=0.2, part=part)
        env.set_seed(0)
        env.reset()
        drawn[part] = {task.identity(prompt) for prompt, _ in env.prompts}
    assert not drawn["training"] & drawn["evaluation"]
    assert not drawn["evaluation"] & drawn["final"]


def test_evaluations_ask_held_out_prompts_once():
    make = settings("algo=grpo", "env=digits").build("env")
    assert make.keywords["group_size"] == 8
    env = envs.find_family(make).for_evaluation(make)(num_envs=16)
    env.reset()
    assert env.part == "evaluation"
    assert all(part_of(Digits(), prompt, 0.1) == "evaluation" for prompt, _ in env.prompts)
    assert len({prompt for prompt, _ in env.prompts}) > 8


@pytest.mark.parametrize("num_envs", [1, 8])
def test_an_environment_of_prompts_keeps_to_its_specs_and_rewards_by_the_text(num_envs):
    env = make_prompts(Sum(2), prompt_tokens=6, answer_tokens=4, num_envs=num_envs, group_size=4)
    check_env_specs(env)
    env.set_seed(1)
    now = env.reset()
    assert now.batch_size == (() if num_envs == 1 else (8,))
    solutions = [solution for _, solution in env.prompts]
    if num_envs > 1:
        assert len({prompt for prompt, _ in env.prompts[:4]}) == 1
        assert now["group"][0] == now["group"][3] != now["group"][4]
        solutions[1] = "0000"[: len(solutions[1])]
    answers = env.codec.encode_answers(solutions, 4)
    now["action"] = answers.reshape(*now.batch_size, 4)
    after = env.step(now)["next"]
    assert after["reward"].flatten().tolist() == [1.0, 0, 1, 1, 1, 1, 1, 1][:num_envs]
    assert after["episode_info", "success"].flatten().tolist() == after["reward"].flatten().tolist()
    assert (after["episode_info", "tokens"] == 4).all()
    assert not after["episode_info", "truncated"].any()
    assert after["done"].all()


@pytest.mark.parametrize(("kind", "reason"), [("raises", "ZeroDivisionError"), ("names", "expected right")])
def test_a_verifier_that_fails_is_shown_with_prompt_and_answer(kind, reason):
    env = make_prompts(Broken(kind), prompt_tokens=3, answer_tokens=2)
    now = env.reset()
    now["action"] = env.codec.encode_answers(["7"], 2)[0]
    with pytest.raises(RunError, match=f"Broken.reward .*{reason}") as caught:
        env.step(now)
    assert f"'7' to {env.prompts[0][0]!r}" in str(caught.value)


REFUSED = {
    "env.prompt_tokens=3": "env.prompt_tokens=3: 's.*=' has 6 tokens. Use env.prompt_tokens=6 or more",
    "env.task.action=copy env.task.length=1": "env.held_out=0.1: Digits drew 10,000 prompts and none for",
    f"env=prompts env.task._target_={TASKS}.Strange": "env.task: '.*' has a character that the",
    "env.task.length=0": "env.task.length=0: should be greater than 0",
    "model=folder model.path=/nowhere": "model.path=/nowhere: no such folder",
    "model.heads=5": "model.hidden=64: is no even multiple of model.heads=5. Use model.hidden=70",
    "minibatches.group_size=1": "minibatches.group_size=1: should be greater than or equal to 2",
    "precision=bf16": "precision=bf16: does not go with actor=language, which has a precision of its own",
    "model=null": "model=null: does not go with actor=language, which needs a language model. Use model=tiny",
}


@pytest.mark.parametrize("words", REFUSED)
def test_mistakes_are_refused_in_a_line(words, run):
    with pytest.raises(UserError, match=f"^{REFUSED[words]}"):
        run("algo=grpo", *SMALL, *words.split())


def test_other_algorithms_and_models_are_refused():
    with pytest.raises(UserError, match=r"^model=tiny: actor=stochastic reads no .* Use actor=language, or"):
        settings("algo=ppo", "env=pendulum", "model=tiny")
    with pytest.raises(UserError, match=r"^data=null: does not go with algo=sft, .* Use data=solved"):
        settings("algo=sft", "env=digits", "data=null")


def test_a_file_of_solved_prompts_is_learned_from_and_checked(run, tmp_path):
    file = tmp_path / "solved.jsonl"
    file.write_text('{"prompt": "s3142=", "answer": "1234"}\n{"prompt": "s11=", "answer": "11"}\n')
    folder = run("algo=sft", *SMALL, f"data.path={file}")
    assert saved(folder, "loss").keys() == saved(run("algo=sft", *SMALL, folder="own"), "loss").keys()
    file.write_text('{"prompt": "s3142="}\n')
    with pytest.raises(UserError, match="line 1 is no JSON object with prompt and answer"):
        run("algo=sft", *SMALL, f"data.path={file}", folder="damaged")


@pytest.fixture
def offline(monkeypatch):
    """The network is forbidden."""

    def refuse(*_):
        raise AssertionError("reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("algo", ["sft", "grpo", "expert_iteration"])
def test_runs_log_what_language_models_need_and_reach_no_network(algo, run, offline):
    folder = run(f"algo={algo}", *SMALL, *["minibatches.right=0"] * (algo == "expert_iteration"))
    rows = logged(folder)
    assert {"eval/success", "eval/tokens", "eval/truncated"} <= rows[-1].keys()
    if algo == "grpo":
        for row in rows:
            assert float(row["train/first_log_ratio_max"]) < 1e-4
            assert float(row["train/equal_groups"]) >= 0.5
        assert float(rows[0]["train/kl_to_reference"]) == pytest.approx(0, abs=1e-6)
    if algo != "sft":
        assert all(row["time/tokens_per_second"] > 0 for row in metric_rows(folder / "metrics.csv"))
    assert json.loads((folder / "summary.json").read_text())["updates"] > 0
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [sample["frames"] for sample in samples] == [32] * 4 + [64] * 4
    assert [sample["prompt"] for sample in samples[:4]] == [sample["prompt"] for sample in samples[4:]]
    assert all(part_of(Digits(), sample["prompt"], 0.1) == "evaluation" for sample in samples)
    assert {type(sample["answer"]) for sample in samples} == {str}
    page = (folder / "run.html").read_text()
    assert all(f"<code>{sample['prompt']}" in page for sample in samples[-4:])


PROBE = [
    "env=digits",
    "env.task.action=copy",
    "env.task.length=1",
    "env.prompt_tokens=3",
    "env.answer_tokens=1",
]
PROBE += ["env.held_out=0", "model.hidden=32", "model.heads=2", "optim.lr=2e-3", "eval.every_frames=100_000"]
PROBE += [
    "eval.final_episodes=100",
    "compile=false",
    "collector.frames_per_batch=128",
    "minibatches.size=128",
]


def test_copying_a_digit_is_learned_from_nothing(run):
    folder = run("algo=grpo", *PROBE, "total_frames=12_800", "minibatches.reference=false", "seed=3")
    assert json.loads((folder / "summary.json").read_text())["eval/return_mean"] > 0.9


@pytest.mark.parametrize(("weight", "moves"), [(10.0, False), (0.0, True)])
def test_a_divergence_of_much_weight_holds_the_policy_at_its_reference(weight, moves, run):
    words = ["total_frames=2_560", f"loss.module.kl_to_ref_coeff={weight}", "log_every_frames=128"]
    last = logged(run("algo=grpo", *PROBE, *words))[-1]
    assert (float(last["train/kl_to_reference"]) > 0.02) == moves


def test_a_constant_reward_moves_no_weight(run, capsys):
    task = [
        "env=prompts",
        f"env.task._target_={TASKS}.Constant",
        "env.verifier_timeout=null",
        "env.prompt_tokens=3",
        "env.answer_tokens=3",
    ]
    folder = run("algo=grpo", *SMALL[1:], *task, "checkpoint_every_frames=32", "keep_checkpoints=9")
    shown = " ".join(capsys.readouterr().err.split())
    assert "in 100% of groups all answers have the same reward, which teaches nothing" in shown
    weights = [saved(folder, "actor", frames) for frames in ("32", "64")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_groups_without_difference_and_truncated_answers_are_left_out_on_request(codec):
    policy = uneven(codec)
    rows = answered(policy, codec, 8)
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers import SamplerWithoutReplacement

    rows["action"][::3, -1] = codec.end
    rows["group"] = torch.arange(4).repeat_interleave(2)[:, None]
    truncated = (rows["action"] != codec.end).all(-1, keepdim=True)
    reward = torch.tensor([1.0, 0, 1, 1, 0, 1, 0, 0])[:, None]
    rows["next"] = TensorDict(
        {"reward": reward, "episode_info": TensorDict({"truncated": truncated.float()}, [8])}, [8]
    )

    def learned(**options):
        buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement())
        make = partial(Groups, buffer, GRPOLoss(policy), group_size=2, epochs=1, size=8)
        taken = [
            step.update({"log_ratio_max": torch.zeros(len(step))})
            for step in make(**options)(rows.copy()[:, None])
        ]
        return sum(map(len, taken))

    assert learned() == 8
    assert learned(drop=True) == 4
    assert 0 < truncated.sum() < 8
    assert learned(truncated="mask") == 8 - truncated.sum()


def test_experts_keep_what_is_right_however_the_others_are(codec):
    """TorchRL's selector keeps what is above the median: nothing of [0, 1, 1, 1], two of all wrong."""
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    rows = answered(policy := uneven(codec), codec, 4)
    for rewards, count in (([0, 1, 1, 1], 3), ([1, 1, 1, 1], 4), ([-1, -2, -3, -4], 0)):
        rows["next"] = TensorDict({"reward": torch.tensor(rewards).float()[:, None]}, [4])
        buffer = ReplayBuffer(storage=LazyTensorStorage(16))
        steps = [*Experts(buffer, SFTLoss(policy), group_size=4, updates=2, size=1)(rows[:, None])]
        assert len(buffer) == count
        assert len(steps) == 2 * (count > 0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A short run, and the folder that its policy was exported to."""
    from train import train

    run, target = tmp_path_factory.mktemp("exported") / "run", tmp_path_factory.mktemp("exported") / "model"
    train(settings("algo=sft", *SMALL, run_dir=run))
    hydrl.load(run).export(target)
    return run, target


def test_a_policy_answers_text_with_text_and_becomes_a_folder_that_transformers_loads(exported):
    run, target = exported
    policy = hydrl.load(run)
    answer = policy.predict("s3142=")
    assert isinstance(answer, str)
    assert policy.predict(["s3142=", "s0000="])[0] == answer
    assert len({*policy.predict(["s3142="] * 16, deterministic=False)}) > 8
    with pytest.raises(UserError, match="has 7 tokens"):
        policy.predict("s31425=")
    with pytest.raises(UserError, match=r"^export=.*: a language model is exported to a new folder"):
        policy.export(target)
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    model = transformers.AutoModelForCausalLM.from_pretrained(target)
    tokens = tokenizer(["s3142="], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, policy.actor.model(tokens).logits)


def test_a_folder_s_model_starts_as_it_is_and_its_adapters_alone_are_trained(exported, run):
    """Their checkpoints have no other weights, and the reference is the model without them."""
    pytest.importorskip("peft")
    _, target = exported
    words = ["algo=grpo", *SMALL, "model=folder", f"model.path={target}", "model.lora.r=2", "optim.lr=1e-2"]
    words += ["env=digits", f"env.task._target_={TASKS}.Lengths", "checkpoint_every_frames=32"]
    folder_run = run(
        *words, "~env.task.action", "~env.task.length", "eval.reward_threshold=null", "env.prompt_tokens=3"
    )
    weights = saved(folder_run, "actor")
    adapters = [name for name in weights if "lora_" in name]
    assert {*weights} == {*adapters, "folder_digest", "adapter_scale"}
    assert any(weights[name].abs().max() > 0 for name in adapters if "lora_B" in name)
    rows = logged(folder_run)
    assert float(rows[0]["train/kl_to_reference"]) == pytest.approx(0, abs=1e-6)
    assert float(rows[-1]["train/kl_to_reference"]) > 0
    policy = hydrl.load(folder_run, trust=True)
    merged = folder_run.parent / "merged"
    policy.export(merged)
    tokens = policy.example_env.base_env.encode(["123"])
    with torch.no_grad():
        own = policy.actor.model(tokens).logits
        assert (
            transformers.AutoModelForCausalLM.from_pretrained(merged)(tokens).logits - own
        ).abs().max() < 1e-5
        with policy.actor.model.disable_adapter():
            assert (policy.actor.model(tokens).logits - own).abs().max() > 1e-4
    with (target / "tokenizer_config.json").open("a") as file:
        file.write("\n")
    with pytest.raises(UserError, match=r"^model.path: weights or tokenizer of the folder have changed"):
        hydrl.load(folder_run, trust=True)


def test_a_verifier_that_never_ends_is_killed_and_started_again():
    """A signal alone would not stop it: the power is computed in C."""
    make = partial(make_prompts, Endless(), prompt_tokens=2, answer_tokens=9, num_envs=3, held_out=0)
    env = make(verifier_timeout=1.0)
    now = env.reset()
    now["action"] = env.codec.encode_answers(["1", "9**9**9", "1"], 9)
    after = env.step(now)["next"]
    assert after["reward"].flatten().tolist() == [1, 0, 1]
    assert after["episode_info", "timeout"].flatten().tolist() == [0, 1, 0]
    now = env.reset()
    now["action"] = env.codec.encode_answers(["1", "9*", "1"], 9)
    with pytest.raises(RunError, match=r"SyntaxError.* of the answer '9\*'"):
        env.step(now)
    process = env.source.worker.process
    env.close()
    assert process.poll() is not None


@pytest.mark.parametrize(
    ("answer", "reward"),
    {
        "3+5*2": 1, "(3+5)*2": 0, "2*5+3": 1, "3+10": 0, "13": 0, "3*5-2": 1, "9**9**9": 0, "3+5*2+": 0,
        "": 0, "(3+5*2": 0, "3+5*2)": 0, "5*2+3+0": 0, "3//5*2": 0,
    }.items(),
)  # fmt: skip
def test_countdown_takes_expressions_of_the_numbers_alone(answer, reward):
    assert Countdown().reward("3,5,2=13", answer, "3+5*2") == reward


def test_countdown_draws_what_can_be_solved():
    task, rng = Countdown(4), random.Random(0)
    for _ in range(200):
        prompt, solution = task.draw(rng)
        assert task.reward(prompt, solution, solution) == 1
    assert Countdown(operators="+").reward("3,5=15", "3*5", "") == 0
    assert evaluate("(2+3)*4-1*2") == 18
    assert evaluate("(" * 150) is None


def test_final_evaluations_have_prompts_of_their_own():
    chosen = settings("algo=grpo", *SMALL)
    make = partial(envs.make_env, chosen.build("env"), chosen.transform_builders)
    env = make(num_envs=32, policy=(actor := chosen.build("actor")(make())))
    asked = {}
    for is_final in (False, True):
        env.set_seed(0)
        envs.find_family(chosen.build("env")).evaluate(env, actor, max_steps=5, is_final=is_final)
        asked[is_final] = {part_of(Digits(), prompt, 0.1) for prompt, _ in env.base_env.prompts}
    assert asked == {False: {"evaluation"}, True: {"final"}}


def test_cispo_learns_from_clipped_tokens(judged):
    """The gradient is the clipped ratio times that of the log-probability; TorchRL's is 0 where it clips."""
    policy, rows = judged
    weight = policy.model.lm_head.weight
    loss = GRPOLoss(policy, objective="cispo", clip_low=0.1, clip_high=0.1)(rows.copy())["loss_objective"]
    log_prob = policy.log_prob(rows)
    mask = rows["action"] != policy.pad
    ratio = (log_prob - rows["action_log_prob"]).detach().exp().clamp(0.9, 1.1)
    expected = -(ratio * rows["advantage"][:, 0] * log_prob)[mask].mean()
    gradients = [torch.autograd.grad(value, weight, retain_graph=True)[0] for value in (loss, expected)]
    assert torch.allclose(*gradients, atol=1e-6)
    theirs = llm.CISPOLoss(policy, clip_epsilon=(0.1, 0.1), entropy_bonus=False)
    theirs.set_keys(action="action", sample_log_prob="action_log_prob")
    gradient = torch.autograd.grad(theirs(rows.copy()).loss_objective.sum(), weight)[0]
    assert not torch.allclose(gradient, gradients[1], atol=1e-4)


def test_recomputed_log_probabilities_replace_those_of_the_policy_that_acted(run):
    rows = logged(run("algo=grpo", *SMALL, "minibatches.log_prob=recomputed", "actor.temperature=0.5"))
    for row in rows:
        assert float(row["train/acting_log_ratio_max"]) < 1e-4
        assert float(row["train/first_log_ratio_max"]) < 1e-4


def talk(env, answers):
    """Gives answers of one turn after the other; returns the steps."""
    steps, now = [], env.reset()
    for turn in answers:
        now["action"] = env.codec.encode_answers(turn, env.action_spec.shape[-1])
        steps.append(env.step(now))
        now = step_mdp(steps[-1])
    return steps


def test_a_task_that_replies_makes_a_conversation():
    """All before an answer is the next observation, the mark that ends the earlier one included."""
    env = make_prompts(Telephone(), prompt_tokens=11, answer_tokens=3, turns=3, num_envs=4, held_out=0)
    check_env_specs(env)
    env.set_seed(0)
    steps = talk(env, [["1", "?", "?", "??"], ["", "1", "?", "?"], ["1", "", "1", "1"]])
    prompts, end = [prompt for prompt, _ in env.prompts], env.codec.end
    first = [token for token in steps[1]["prompt"][1].tolist() if token != env.codec.pad]
    assert first == [*env.codec.read_prompts([prompts[1] + "?"])[0], end, *env.codec.read_prompts(["no"])[0]]
    assert (steps[1]["prompt"][0] == env.codec.pad).all()  # its conversation has ended
    assert torch.stack([step["next", "reward"] for step in steps], 1).squeeze(-1).tolist() == [
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
        [0, 0, 0],  # the conversation would not fit in `prompt_tokens`, and ends with a wrong answer
    ]
    assert [step["next", "done"].all().item() for step in steps] == [False, False, True]
    info = steps[-1]["next", "episode_info"]
    assert info["turns"].flatten().tolist() == [1, 2, 3, 2]
    assert info["tokens"].flatten().tolist() == [2, 4, 6, 5]
    assert info["truncated"].flatten().tolist() == [0, 0, 0, 1]
    assert info["success"].flatten().tolist() == [1, 1, 1, 0]


def test_advantages_are_of_the_return_of_a_conversation_and_its_answers_alone_are_learned():
    """TorchRL compares each turn's reward alone: the right conversation's first turn would be punished."""
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers import SamplerWithoutReplacement

    env = make_prompts(
        Telephone(), prompt_tokens=12, answer_tokens=3, turns=3, num_envs=4, group_size=2, held_out=0
    )
    policy = LanguagePolicy(tiny(env.codec, 15, hidden=16, layers=1, heads=1), env.codec, 3, 1.0)
    policy.turns = 3
    steps = talk(env, [["1", "2", "?", "?"], ["", "", "1", "2"], ["", "", "", ""]])
    batch = torch.stack(steps, 1)
    batch["action_log_prob"] = torch.zeros(4, 3, 3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(12), sampler=SamplerWithoutReplacement())
    groups = Groups(buffer, GRPOLoss(policy), group_size=2, epochs=1, size=12, scale="none", reference=False)
    minibatches = groups(batch)
    learned = next(minibatches)
    texts = {(len(row["prompt"][row["prompt"] != policy.pad]), policy_text(env, row)) for row in learned}
    assert texts == {(3, "1"), (3, "2"), (3, "?"), (7, "1"), (7, "2")}
    assert len(learned) == 6
    advantages = {(policy_text(env, row), row["advantage"].item()) for row in learned}
    assert advantages == {("1", 0.5), ("2", -0.5), ("?", 0.5), ("?", -0.5)}
    ended = learned["action"] == env.codec.end
    loss = GRPOLoss(policy)(learned)
    assert ended.any(-1).all()  # the mark that ends a turn is learned
    assert loss["loss_objective"].isfinite()
    with pytest.raises(
        UserError, match=r"^collector.frames_per_batch=8: .* Use collector.frames_per_batch=12 "
    ):
        next(groups(batch[:, :2]))
    theirs = llm.MCAdvantage(grpo_size=2)
    rows = []
    for prompt, rewards in (("a", [0.0, 1.0]), ("a", [0.0, 0.0])):
        ends = {"reward": torch.tensor(rewards)[:, None], "done": torch.tensor([[False], [True]])}
        rows.append(TensorDict({"query": [prompt] * 2, "next": TensorDict(ends, [2])}, [2]))
    given = [theirs.inv(lazy_stack([*row.unbind(0)])) for row in rows][-1]
    assert given["advantage"].flatten()[0] < 0  # of the first turn, which was right


def policy_text(env, row):
    return env.codec.decode(row["action"][None])[0]


def test_experts_keep_all_answers_of_a_right_conversation():
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    env = make_prompts(Telephone(), prompt_tokens=12, answer_tokens=3, turns=2, num_envs=2, held_out=0)
    policy = LanguagePolicy(tiny(env.codec, 15, hidden=16, layers=1, heads=1), env.codec, 3, 1.0)
    policy.turns = 2
    batch = torch.stack(talk(env, [["?", "?"], ["1", "2"]]), 1)
    buffer = ReplayBuffer(storage=LazyTensorStorage(16))
    [*Experts(buffer, SFTLoss(policy), group_size=2, updates=1, size=1)(batch)]
    assert [policy_text(env, row) for row in buffer[:]] == ["?", "1"]


TURNS = ["env=prompts", "env.turns=2", "env.held_out=0", "env.verifier_timeout=null", "compile=false"]
TURNS += ["env.prompt_tokens=8", "env.answer_tokens=2", f"env.task._target_={TASKS}.Lookup"]


def test_asking_a_tool_is_learned_from_nothing(run):
    """The answer is known to the tool alone, so that asking pays although only the last turn is rewarded."""
    words = [
        *TURNS,
        "env.answer_tokens=1",
        "model.hidden=32",
        "model.heads=2",
        "optim.lr=2e-3",
        "eval.every_frames=100_000",
    ]
    words += ["collector.num_envs=128", "collector.frames_per_batch=256", "minibatches.reference=false"]
    folder = run("algo=grpo", *words, "total_frames=12_800", "eval.final_episodes=100", "seed=3")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["eval/return_mean"] > 0.9
    assert summary["eval/turns"] == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("algo", ["sft", "expert_iteration"])
def test_conversations_are_imitated(algo, run):
    words = [*TURNS, "total_frames=64", "collector.frames_per_batch=32", "minibatches.size=16"]
    words += ["eval.every_frames=32", "eval.episodes=4", "eval.final_episodes=4", "log_every_frames=32"]
    words += ["collector.num_envs=16", "minibatches.right=0"] if algo == "expert_iteration" else []
    folder = run(f"algo={algo}", *words)
    assert json.loads((folder / "summary.json").read_text())["updates"] > 0
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 8


def test_solved_conversations_have_a_row_for_each_answer():
    chosen = settings("algo=sft", *TURNS, "data.examples=8")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    rows = chosen.build("data")(env, chosen.build("actor")(env))[:]
    codec = env.base_env.codec
    answers = codec.decode(rows["action"])
    assert answers[::2] == ["?"] * 8
    texts = [codec.tokenizer.decode(row[row != codec.pad]) for row in rows["prompt"]]
    for asked, answered_by, answer in zip(texts[::2], texts[1::2], answers[1::2], strict=True):
        assert answered_by == f"{asked}?<eos>{Lookup.secret(asked)}"
        assert answer == Lookup.secret(asked)


def test_turns_and_tasks_that_do_not_go_together_are_refused():
    with pytest.raises(UserError, match=r"^env.turns=2: Digits never replies. Use env.turns=1."):
        make_prompts(Digits(), prompt_tokens=6, answer_tokens=5, turns=2)
    with pytest.raises(
        UserError, match=r"^env.turns=1: Telephone replies to answers. Use env.turns=2 or more."
    ):
        make_prompts(Telephone(), prompt_tokens=6, answer_tokens=5)
    with pytest.raises(UserError, match=r"^env.chat_template=true: model=tiny has no chat template."):
        make_prompts(Digits(), prompt_tokens=6, answer_tokens=5, chat_template=True)


TEMPLATE = (
    "{% for message in messages %}{{ '<' + message.role[0] + '>' + message.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def test_chat_templates_are_the_folder_s_and_added_on_request_alone(tmp_path):
    """TorchRL's writes ChatML around prompts although the tokenizer has a template of its own."""
    codec = character_codec("0123456789?no<>ua")
    codec.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=r"^env.chat_template=true: the folder's tokenizer has no chat template"
    ):
        folder_codec_of(tmp_path, codec, has_chat=True)
    codec.tokenizer.chat_template = TEMPLATE
    plain, chat = (folder_codec_of(tmp_path, codec, has_chat=has_chat) for has_chat in (False, True))
    assert plain.tokenizer.decode(plain.read_prompts(["12"])[0]) == "12"
    context = chat.read_prompts(["12"])[0]
    assert chat.tokenizer.decode(context) == "<u>12<eos><a>"
    answer = chat.tokenizer("7", add_special_tokens=False)["input_ids"]
    for written in ([*answer, chat.end], answer):  # one that ended, and one that was cut
        continued = chat.continue_conversation(context, written, "no")
        mark = "<eos>" * (chat.end in written)
        assert chat.tokenizer.decode(continued) == f"<u>12<eos><a>7{mark or '<eos>'}<u>no<eos><a>"
    messages = [("user", "12"), ("assistant", "7"), ("user", "no")]
    assert chat.tokenizer.decode(continued) == chat.render_chat(messages)


def folder_codec_of(path, codec, *, has_chat):
    from safetensors.torch import save_file

    codec.tokenizer.save_pretrained(path)
    (path / "config.json").write_text("{}")
    save_file({"weight": torch.zeros(1)}, path / "model.safetensors")
    return folder_codec(str(path), has_chat=has_chat)


def train_adapters(run, target, *words, folder="adapted"):
    """A run of adapters on an exported model, which learns to write long answers."""
    adapters = [
        "algo=grpo",
        *SMALL,
        "model=folder",
        f"model.path={target}",
        "model.lora.r=2",
        "model.lora.alpha=6",
    ]
    adapters += ["optim.lr=1e-2", f"env.task._target_={TASKS}.Lengths", "env.prompt_tokens=3"]
    adapters += ["checkpoint_every_frames=32", "eval.reward_threshold=null", "keep_checkpoints=9"]
    return run(*adapters, "~env.task.action", "~env.task.length", *words, folder=folder)


def test_a_run_of_adapters_is_resumed_exactly(exported, run, tmp_path):
    pytest.importorskip("peft")
    whole = train_adapters(run, exported[1])
    assert killed(whole, tmp_path / "halves") == 32
    torch.rand(7)
    halves = train_adapters(run, exported[1], "resume=auto", folder="halves")
    for component in ("actor", "loss", "optimizer", "minibatches"):
        assert digest(saved(halves, component)) == digest(saved(whole, component)), component
    assert logged(halves) == logged(whole)


@pytest.mark.parametrize("lora", [2, None])
def test_a_warm_start_from_adapters_merges_them(lora, exported, run):
    """With adapters of its own the run keeps all weights, and its reference is the policy as it began."""
    pytest.importorskip("peft")
    target = exported[1]
    first = train_adapters(run, target)
    words = [
        f"init_from.run={first}",
        "init_from.checkpoint=last",
        "optim.lr=1e-2",
        f"model.lora.r={lora or 'null'}",
    ]
    words += [] if lora else ["model.lora.alpha=null"]
    second = train_adapters(run, target, *words, folder="second")
    assert float(logged(second)[0]["train/kl_to_reference"]) == pytest.approx(0, abs=1e-6)
    policies = {
        name: hydrl.load(name, checkpoint=which, trust=True)
        for name, which in ((first, "last"), (second, "32"))
    }
    tokens = policies[first].example_env.base_env.encode(["123"])
    with torch.no_grad():
        ended = policies[first].actor.model(tokens).logits
        if lora:
            with policies[second].actor.model.disable_adapter():
                began = policies[second].actor.model(tokens).logits
            assert (began - ended).abs().max() < 1e-5
        # After one update it is near, unlike the folder's own model.
        near = (policies[second].actor.model(tokens).logits - ended).abs().max()
    assert near > 0
    assert ("lora" in " ".join(saved(second, "actor"))) == bool(lora)
    if lora:
        assert "model.base_model.model.lm_head.weight" in saved(second, "actor")
        with pytest.raises(UserError, match=r"^init_from: its adapters are of another folder"):
            run("algo=grpo", *SMALL, f"init_from.run={first}", folder="tiny")


def test_weights_that_are_no_safetensors_need_trust(codec, tmp_path):
    model = architecture("llama", codec)
    model.config.save_pretrained(tmp_path)
    codec.tokenizer.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no weights as \*.safetensors in it. .* or add trust=true"):
        folder(codec, 14, path=str(tmp_path))
    loaded = folder(folder_codec(str(tmp_path)), 14, path=str(tmp_path), trust=True)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    words = ["algo=grpo", *SMALL, "model=folder", f"model.path={tmp_path}"]
    assert settings(*words).networks["actor"]["model"]["trust"] is False
    assert settings(*words, "trust=true").networks["actor"]["model"]["trust"] is True


@pytest.mark.parametrize("per", ["token", "answer", "length", "sequence", "sft"])
def test_accumulated_gradients_are_those_of_the_whole_minibatch(per, judged):
    """Parts of equal rows have unequal numbers of tokens, over which a mean of means would be another one."""
    policy, rows = judged
    weight = policy.model.lm_head.weight
    found, ratios = [], []
    for accumulate in (1, 3):
        minibatch = rows.copy()
        if per == "sft":
            loss = SFTLoss(policy, accumulate=accumulate)
        else:
            coefficients = {"entropy_coeff": 0.1, "kl_to_ref_coeff": 0.5}
            loss = GRPOLoss(policy, per=per, accumulate=accumulate, **coefficients)
        losses = make_gradients(loss, [weight], None)(minibatch, ())
        found.append((weight.grad.clone(), losses))
        ratios.append(minibatch.get("log_ratio_max", torch.zeros(1)))
    (whole, whole_losses), (parts, losses) = found
    assert torch.allclose(whole, parts, atol=1e-6)
    assert losses["grad_norm"].item() == pytest.approx(whole_losses["grad_norm"].item(), rel=1e-4)
    objective = "loss_sft" if per == "sft" else "loss_objective"
    assert losses[objective].item() == pytest.approx(whole_losses[objective].item(), abs=1e-5)
    if per != "sft":
        assert torch.allclose(*ratios)
        assert ratios[0].max() > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("log_prob", ["acting", "recomputed"])
def test_a_gpu_trains_in_half_precision(log_prob, exported, run):
    words = ["model=folder", f"model.path={exported[1]}", "model.dtype=bfloat16", "device=cuda"]
    rows = logged(run("algo=grpo", *SMALL, *words, f"minibatches.log_prob={log_prob}"))
    assert float(rows[-1]["train/first_log_ratio_max"]) < (1e-2 if log_prob == "recomputed" else 1)


def test_conversations_are_resumed_exactly(run, tmp_path):
    words = ["algo=grpo", *TURNS, "total_frames=64", "collector.frames_per_batch=32", "collector.num_envs=16"]
    words += ["minibatches.size=16", "eval.every_frames=32", "eval.episodes=4", "eval.final_episodes=4"]
    words += ["log_every_frames=32", "checkpoint_every_frames=32"]
    whole = run(*words)
    assert killed(whole, tmp_path / "halves") == 32
    torch.rand(7)
    halves = run(*words, "resume=auto", folder="halves")
    for component in ("actor", "loss", "optimizer", "minibatches"):
        assert digest(saved(halves, component)) == digest(saved(whole, component)), component
    assert logged(halves) == logged(whole)
