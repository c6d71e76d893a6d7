"""What TorchRL's parts for language models do, where hydrl has its own; see docs/upstream.md."""

import pytest
import torch
from tensordict import TensorDict, TensorDictBase, lazy_stack
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.objectives import llm

from hydrl.contrib.language.tasks import Countdown
from tests.contrib.test_language import CHARACTERS, alone, answered, architecture, uneven

transformers = pytest.importorskip("transformers")

from torchrl.modules.llm import TransformersWrapper  # noqa: E402
from torchrl.modules.llm.policies import Tokens  # noqa: E402

from hydrl.contrib.language.policy import LanguagePolicy  # noqa: E402
from hydrl.contrib.language.text import TextCodec, character_codec  # noqa: E402

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return character_codec(CHARACTERS)


def generated(policy: LanguagePolicy, tokenizer, count: int = 64, **sampling) -> tuple[Tensor, list, list]:
    """A prompt, and answers of TorchRL's wrapper with their log-probabilities."""
    codec = character_codec(CHARACTERS)
    wrapper = TransformersWrapper(
        policy.model,
        tokenizer=tokenizer,
        input_mode="tokens",
        generate=True,
        pad_output=False,
        generate_kwargs={"max_new_tokens": 6, "do_sample": True, **sampling},
    )
    prompt = codec.encode_prompts(["1+2="], 4)[0]
    torch.manual_seed(4)
    out = wrapper(lazy_stack([TensorDict(tokens=Tokens(prompt=prompt)) for _ in range(count)]))
    answers = out.get(("tokens", "response"), as_list=True)
    return prompt, answers, out.get(("log_probs", "response"), as_list=True)


def push(advantage: llm.MCAdvantage, query: str, rewards: list[float]) -> TensorDictBase | None:
    """Writes an episode; the rows of its group once that is complete."""
    steps = [
        TensorDict(
            query=query, next=TensorDict({"reward": torch.tensor([reward]), "done": torch.tensor([end])})
        )
        for reward, end in zip(rewards, [False] * (len(rewards) - 1) + [True], strict=True)
    ]
    return advantage.inv(lazy_stack(steps))


def test_the_wrapper_gives_first_tokens_the_log_probability_zero(codec):
    policy = uneven(codec)
    prompt, answers, log_probs = generated(policy, codec.tokenizer, 4)
    for answer, log_prob in zip(answers, log_probs, strict=True):
        assert log_prob[0] == 0
        assert alone(policy, prompt, answer)[0] < -1e-3


def test_the_wrapper_loses_sampled_padding(codec):
    """Answers that are neither ended nor cut; ours never sample it."""
    policy = uneven(codec)
    _, answers, _ = generated(policy, codec.tokenizer)
    assert any(len(answer) < 6 and codec.end not in answer for answer in answers)
    ours = answered(policy, codec, 64)["action"]
    assert ((ours == codec.end).any(-1) | (ours != codec.pad).all(-1)).all()


def test_the_wrapper_drops_ends_where_a_tokenizer_has_no_padding():
    codec = character_codec(CHARACTERS)
    policy = uneven(codec)
    codec.tokenizer.pad_token = None
    policy.model.generation_config.pad_token_id = codec.end
    _, answers, _ = generated(policy, codec.tokenizer)
    assert any(len(answer) < 6 for answer in answers)
    assert not any(codec.end in answer for answer in answers)


def test_the_wrapper_s_log_probabilities_are_those_of_temperature_one(codec):
    hot, cold = uneven(codec), uneven(codec, temperature=0.5)
    prompt, answers, log_probs = generated(hot, codec.tokenizer, 8, temperature=0.5)
    differences = []
    for answer, log_prob in zip(answers, log_probs, strict=True):
        if len(answer) == 6 and codec.pad not in answer:
            differences.append((log_prob - alone(cold, prompt, answer))[1:].abs().max())
    assert max(differences) > 0.5


def test_transformers_samples_the_fifty_likeliest_tokens_unless_asked():
    codec = character_codec("".join(map(chr, range(200, 450))))
    torch.manual_seed(0)
    policy = LanguagePolicy(architecture("llama", codec), codec, 1, 1.0)
    prompts = codec.encode_prompts([chr(200)] * 2_000, 1)
    theirs = policy.model.generate(input_ids=prompts, max_new_tokens=1, do_sample=True)[:, 1:]
    ours = policy(TensorDict({"prompt": prompts}, [2_000]))["action"]
    assert len(theirs.unique()) <= 50 < len(ours.unique())


def test_the_wrapper_does_not_train_gpt2(codec):
    policy = uneven(codec, "gpt2")
    wrapper = TransformersWrapper(
        policy.model, tokenizer=codec.tokenizer, input_mode="tokens", generate=False, pad_output=False
    )
    rows = lazy_stack([TensorDict(tokens=Tokens(full=codec.encode_prompts(["1+2="], 4)[0]))])
    with pytest.raises(AttributeError):
        wrapper(rows)
    assert policy.log_prob(answered(policy, codec)).isfinite().all()


def test_grpo_lists_divergences_that_are_absent(codec):
    policy = uneven(codec)
    loss = llm.GRPOLoss(policy)
    loss.set_keys(action="action", sample_log_prob="action_log_prob")
    rows = answered(policy, codec)
    rows["advantage"] = torch.ones(len(rows), 1, 1)
    output = loss(rows)
    assert [key for key in loss.out_keys if output.get(key) is None] != []


def test_advantages_complete_a_group_with_a_later_policy_s_answers():
    """Ours are of groups by number, within the batch."""
    advantage = llm.MCAdvantage(grpo_size=4)
    assert push(advantage, "a", [0.0]) is None
    assert push(advantage, "a", [0.0]) is None
    assert not advantage.state_dict()  # a resumed run has lost both
    assert push(advantage, "a", [1.0]) is None
    rows = push(advantage, "a", [1.0])
    assert rows["advantage"].flatten().sign().tolist() == [-1, -1, 1, 1]


def test_advantages_blame_the_first_turns_of_a_right_conversation():
    """Unless ``trajectory_return`` is set; ours are of the whole return."""
    for trajectory_return, signs in ((None, [-1, -1, 1]), ("sum", [1, 1, 1])):
        advantage = llm.MCAdvantage(grpo_size=2, trajectory_return=trajectory_return)
        push(advantage, "a", [0.0, 0.0, 1.0])
        rows = push(advantage, "a", [0.0, 0.0, 0.0])
        assert rows["advantage"].flatten()[:3].sign().tolist() == signs


class Scorer(TensorDictModuleBase):
    """Gives tokens the same log-probabilities whatever they are."""

    def __init__(self, log_probs: Tensor) -> None:
        super().__init__()
        self.in_keys, self.out_keys, self.log_probs = ["tokens"], [("log_probs", "full")], log_probs

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict({("log_probs", "full"): self.log_probs}, tensordict.batch_size)


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([[False, True, True], [False, False, True]], (2.5 + 8) / 2),  # over tokens: (1 + 4 + 8) / 3
        (
            [[False, True, True], [False, False, False]],
            (2.5 + 0) / 2,
        ),  # no error; a row without tokens counts
    ],
)
def test_fine_tuning_averages_over_answers_and_takes_rows_without_one(masks, expected):
    """Ours averages over tokens."""
    loss = llm.SFTLoss(Scorer(torch.tensor([[-9.0, -1.0, -4.0], [-9.0, -9.0, -8.0]])), tokenizer=object())
    loss.set_keys(history=("tokens", "full"))
    entries = {("tokens", "full"): torch.zeros(2, 3, dtype=torch.long)}
    entries[("masks", "all_assistant_mask")] = torch.tensor(masks)
    entries[("masks", "all_attention_mask")] = torch.ones(2, 3, dtype=torch.bool)
    value = loss(TensorDict(entries, [2])).loss_sft.item()
    assert value == pytest.approx(expected)


def test_countdown_rewards_a_right_answer_with_nothing():
    """Its parser reads the empty answer of the system prompt. Ours reads the answer alone."""
    from torchrl.envs.llm.datasets.countdown import CountdownEnv

    codec = character_codec(CHARACTERS)
    codec.tokenizer.chat_template = TEMPLATE
    env = CountdownEnv(tokenizer=codec.tokenizer, input_mode="text", seed=0)
    start = env.reset()
    assert start["answer"] == ["target=108, numbers=50,98,54,6"]
    answer = "<think>98-50=48</think><answer>98-50+54+6</answer>"
    rewards = []
    for prompt in (start["text", "prompt"][0], ""):
        start["text"].response, start["text"].full = [answer], [prompt + answer]
        rewards.append(env.step(start.copy())["next", "reward"].item())
    assert rewards == [0, 1]
    assert Countdown().reward("50,98,54,6=108", "98-50+54+6", "") == 1


def test_chat_writes_its_own_marks_around_prompts():
    """Ours are the template's of the folder's tokenizer, and only if asked for."""
    from torchrl.envs.llm import ChatEnv

    codec = character_codec(CHARACTERS)
    codec.tokenizer.chat_template = TEMPLATE
    env = ChatEnv(batch_size=(1,), input_mode="text", tokenizer=codec.tokenizer)
    prompt = env.reset(TensorDict(query=["12"], batch_size=(1,)))["text", "prompt"][0]
    assert prompt == "<|im_start|>user\n12<|im_end|>\n<|im_start|>assistant\n"


def test_the_default_chat_template_never_teaches_the_end_of_a_turn():
    """Its assistant mask ends before the mark; ours learns the end token."""
    from torchrl.data.llm import History

    codec = character_codec("".join(sorted({*"<|im_start|>userassistant\nend", *"12hi"})))
    history = History.from_chats(
        [[{"role": "user", "content": "12"}, {"role": "assistant", "content": "hi"}]]
    )
    rows = history.apply_chat_template(
        tokenizer=codec.tokenizer,
        chat_template_name="chatml_format",
        tokenize=True,
        return_assistant_tokens_mask=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=False,
    )
    tokens, mask = rows["input_ids"][0], rows["assistant_masks"][0].bool()
    assert codec.tokenizer.decode(tokens).endswith("hi<|im_end|>\n")
    assert codec.tokenizer.decode(tokens[mask]) == "hi"


def test_the_selector_drops_right_answers_and_keeps_wrong_ones():
    from torchrl.data.llm.topk import TopKRewardSelector

    for rewards, expected in (([0, 1, 1, 1], None), ([1, 1, 1, 1], None), ([-1, -2, -3, -4], [-1, -2])):
        selector = TopKRewardSelector(total_dialog_turns=4, topk_size=2, prompt_key="query", verbose=False)
        for reward in rewards:
            ends = {"reward": torch.tensor([[float(reward)]]), "done": torch.tensor([True])}
            row = lazy_stack([TensorDict(query="a", next=TensorDict(ends))])
            out = selector.inv(row)
        assert (None if out is None else out["next", "reward"].flatten().tolist()) == expected


def test_the_verifier_of_countdown_evaluates_other_operators():
    from torchrl.envs.llm.reward.countdown import CountdownRewardParser

    for expression, prompt, target, numbers in (("3**4", "3,4=81", 81, [3, 4]), ("7//2", "7,2=3", 3, [7, 2])):
        assert CountdownRewardParser.validate_expression(expression, target, numbers)
        assert Countdown().reward(prompt, expression, "") == 0
