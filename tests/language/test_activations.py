"""The frozen layers run once for each sequence; scores, gradients and the trained weights stay as they were."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
)

from tasks.algorithms.ranking import bradley_terry_loss
from tasks.errors import UserError
from tasks.language import models, scoring
from tasks.language.activations import Reusing
from tasks.language.batches import Completion
from tasks.language.master_weights import MasterWeights
from tasks.language.optimisation import fit
from tasks.runtime import work
from tests.language.conftest import PAD

COMPLETIONS = [
    Completion([5, 9, 12], [4, 4, 8, 7]),
    Completion([3], [2]),
    Completion([20, 21, 22, 23, 24], [30, 31, 7]),
    Completion([], [9, 9, 9]),
]
SETTINGS = SimpleNamespace(
    learning_rate=1e-2, batch=2, epochs=3, warmup=0.0, weight_decay=0.0, max_grad_norm=1e9, max_skipped=1
)
SHAPE = {"vocab_size": 40, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 7, "num_labels": 1}
LAYERS = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 32}
WIDE = {**LAYERS, "intermediate_size": 64, "num_key_value_heads": 2, "initializer_range": 0.3}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE, **WIDE),
    # Scales its embeddings, and every second layer attends to a window only: layers must keep their place.
    "gemma2": Gemma2Config(**SHAPE, **WIDE, head_dim=8, sliding_window=2),
    "gpt2": GPT2Config(**SHAPE, n_embd=32, n_layer=4, n_head=4, n_positions=64, initializer_range=0.3),
}


def scalar_model(config):
    torch.manual_seed(3)
    return AutoModelForSequenceClassification.from_config(config).eval()


@pytest.fixture(params=CONFIGS)
def reward(request):
    model = scalar_model(CONFIGS[request.param])
    models.freeze_below(model, 2)
    return model


def test_scores_and_gradients_are_those_of_the_whole_model(reward):
    plain = scoring.scorer(reward, fill=PAD)
    reusing = Reusing(reward, COMPLETIONS, fill=PAD, size=2)
    trained = [p for p in reward.parameters() if p.requires_grad]
    for rows in ([0, 1, 2, 3], [2, 1], [3]):
        chosen = [COMPLETIONS[i] for i in rows]
        found, expected = (score(chosen) for score in (reusing, plain))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        gradients = [torch.autograd.grad(score.square().sum(), trained) for score in (found, expected)]
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_training_ends_with_the_same_weights(reward):
    """Three epochs over the four answers, with and without, from one start and in one order."""
    ends = []
    for keep in (True, False):
        model = copy.deepcopy(reward)
        master = MasterWeights(model, SETTINGS, precision=torch.float32)
        score = Reusing(model, COMPLETIONS, fill=PAD, size=4) if keep else scoring.scorer(model, fill=PAD)

        def losses(indices, score=score):
            scores = score([COMPLETIONS[i] for i in indices])
            yield bradley_terry_loss(scores[:1], scores[1:])

        generator = torch.Generator().manual_seed(5)
        fit(
            master, losses, SETTINGS, rows=4, generator=generator, report=lambda *_: None,
            checkpoints=work.Checkpoints(None),
        )  # fmt: skip
        ends.append(master.weights())
    start = reward.state_dict()
    moved = 0
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], atol=2e-4, rtol=1e-4)
        moved += not torch.equal(value, start[name])
    assert moved > 4


def test_the_frozen_layers_see_each_sequence_once(reward):
    layers = models.stack(reward)
    seen = {0: 0, 2: 0}
    reusing = Reusing(reward, COMPLETIONS[:3], fill=PAD, size=2)
    for n in seen:
        own = layers[n].self_attn if hasattr(layers[n], "self_attn") else layers[n].attn

        def count(module, args, named, n=n):
            seen[n] += len(args[0] if args else named["hidden_states"])

        own.register_forward_pre_hook(count, with_kwargs=True)
    for _ in range(3):
        reusing(COMPLETIONS)
    # The fourth sequence is new, once; the trained layers see all of them each time.
    assert seen == {0: 1, 2: 12}


def test_the_layers_are_as_they_were(reward):
    plain = scoring.scorer(reward, fill=PAD)
    before = plain(COMPLETIONS)
    reusing = Reusing(reward, COMPLETIONS, fill=PAD, size=2)
    reusing(COMPLETIONS)
    assert torch.equal(plain(COMPLETIONS), before)
    assert all("forward" not in vars(layer) and not layer._forward_pre_hooks for layer in models.stack(reward))


def test_what_is_kept_does_not_depend_on_the_order_of_training(reward):
    """A resumed run meets the sequences in another order and must have the same numbers, to the bit."""
    first, second = (Reusing(reward, COMPLETIONS, fill=PAD, size=2) for _ in range(2))
    first([COMPLETIONS[2], COMPLETIONS[0]])
    first([COMPLETIONS[1]])
    assert torch.equal(first(COMPLETIONS), second(COMPLETIONS))


def test_in_bfloat16_too():
    model = scalar_model(CONFIGS["llama"])
    models.freeze_below(model, 2)
    models.cast_parameters(model, torch.bfloat16)
    found = Reusing(model, COMPLETIONS, fill=PAD, size=4)(COMPLETIONS)
    assert torch.equal(found, scoring.scorer(model, fill=PAD)(COMPLETIONS))


def test_an_architecture_that_trains_something_below_is_refused():
    """Bloom normalises its embeddings, and that norm is no layer: its gradient would be lost without a word."""
    model = scalar_model(BloomConfig(**SHAPE, hidden_size=32, n_layer=4, n_head=4))
    models.freeze_below(model, 2)
    with pytest.raises(UserError, match="BloomForSequenceClassification does not let its frozen layers be skipped"):
        Reusing(model, COMPLETIONS, fill=PAD, size=2)
