"""Checks of networks: encoders and RNNs."""

from collections.abc import Iterator, Mapping

from hydrl.config.describe import name_component
from hydrl.config.overrides import key_of, typed_words
from hydrl.config.schema import NETWORKS, WITHIN, Values, quantity
from hydrl.config.signatures import targets
from hydrl.config.suggestions import join_or
from hydrl.config.tree import find, option_target, show

# Keys of an encoder that are no observation entries.
KEYS = ("reader", "features", "channels", "scale")
VMAP_KEY = "loss.value_estimator.deactivate_vmap"
# Encoders of an observation entry.
READERS = ("auto", "mlp", "cnn", "impala", "minatar")


def encoder_mistakes(values: Values) -> Iterator[str]:
    """Mistakes in the components within networks, and in encoders."""
    for network, name in ((kind, name) for kind in NETWORKS for name in WITHIN):
        node = (values[network] or {}).get(name)
        if isinstance(node, Mapping) and "_target_" not in node:
            line = f"{network}.{name}={show(node)}: should have _target_."
            yield f"{line} Write {name}.KEY=VALUE for a key of the one there is." if name != "norm" else line
    for path, node in targets(values):
        if node["_target_"] != option_target("encoder/auto"):
            continue
        network = path.partition(".")[0]
        if node.get("reader", "auto") not in READERS and path in map(key_of, typed_words()):
            able = ["own", *["shared"] * (network != "actor" and can_share_encoder(values)), *READERS]
            yield f"{path}={node['reader']}: should be {join_or(able)}."
        for key in (
            key for key in node if key not in ("reader", "features", "channels", "scale") and key[0] != "_"
        ):
            if node[key] not in READERS:
                line = f"{path}.{key}={show(node[key])}: no such entry of an observation, or no such encoder"
                yield f"{line}. Write {path}.ENTRY={join_or(READERS)}; a single image is the entry pixels."


def unread_model(values: Values) -> Iterator[str]:
    """A language model that no actor reads."""
    if values["model"] is not None and "model" not in values["actor"]:
        actor = name_component("actor", values["actor"])
        line = f"{name_component('model', values['model'])}: {actor} reads no language model"
        yield f"{line}. Use actor=language, or model=null."


def can_share_encoder(values: Values) -> bool:
    """Whether the critic can share the actor's encoder."""
    is_state_value = values["loss"]["networks"].get("critic_network") == "critic"  # beside an actor
    reads_once = values["loss"]["module"].get("_target_") == option_target("loss/sac")
    return is_state_value or (reads_once and not quantity(values, "rnn"))


def shared_encoder_mistakes(values: Values) -> Iterator[str]:
    """Mistakes with networks that read another network's encoder or RNN."""
    if values["actor"].get("encoder") == "shared":
        yield "actor.encoder=shared: only the critic can share the actor's encoder. Use actor.encoder=own."
    for network in (kind for kind in NETWORKS if kind != "actor"):
        if (values[network] or {}).get("encoder") == "shared" and not can_share_encoder(values):
            takers = "a critic that judges states, or SAC's without an RNN"
            yield f"{network}.encoder=shared: is for {takers}. Use {network}.encoder=own."
    critic = values["critic"] or {}
    shared = critic.get("encoder") == "shared" or "memory" in (critic.get("in_keys") or [])
    if shared and quantity(values, "rnn") and find(values, VMAP_KEY) is False:
        yield f"critic.encoder=shared: reads the actor's RNN. Use {VMAP_KEY}=true, or leave it out."


def sequence_mistakes(values: Values) -> Iterator[str]:
    """Recurrent policies that learn from single steps, and sequences that a loss cannot learn from."""
    rnn, sequence = quantity(values, "rnn"), quantity(values, "sequence")
    if rnn and not sequence:
        able = "minibatches.sequence=32" if quantity(values, "epochs") else "minibatches=sequences"
        sizes = {key: rnn[key] for key in ("cell", "hidden_size") if key in rnn}
        yield f"actor.rnn={show(sizes or rnn)}: an RNN learns from whole sequences. Use {able}."
    if rnn and sequence == 1:
        yield "minibatches.sequence=1: an RNN learns nothing from single steps. Use 2 or more."
    if quantity(values, "burn_in") is None:  # no replay buffer of sequences
        return
    if not rnn:
        able = values["compatible_with"].get("minibatches", ["replay"])
        other = "minibatches=replay" if "replay" in able else "another algorithm"
        yield f"minibatches=sequences: is for an RNN. Use rnn=lstm, or {other}."
    steps, loss = find(values, "minibatches.n_steps"), values["loss"]["module"]
    if steps != 1 and "n_steps" not in loss:
        name = name_component("loss", loss)
        yield f"minibatches.n_steps={steps}: over sequences {name} bootstraps from the next step. Use 1."
    if has_async_workers(values):
        yield (
            "collector.sync=false: a batch comes from one worker or another, and sequences go on from batch "
            "to batch. Use collector=multi_sync."
        )


def has_async_workers(values: Values) -> bool:
    """Whether a batch comes from whichever of several workers is done first."""
    return find(values, "collector.sync") is False and (quantity(values, "workers") or 1) > 1
