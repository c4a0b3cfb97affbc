"""Tiny models of transformers with random weights: logits, losses and gradients with the kernels of
the library are those without, and undo puts everything back. Skipped where transformers is not
installed.
"""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tkc  # noqa: E402
from tkc.integrations.transformers import apply  # noqa: E402

SMALL = dict(
    vocab_size=67,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
    pad_token_id=0,
)
MIXED = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
# name of the model's classes: options, and how many parts are replaced at least
MODELS = {
    "Llama": ({}, 9),
    "Qwen3": ({}, 13),
    "Gemma": ({}, 9),
    "Mixtral": (MIXED, 7),
    "Qwen3Moe": (MIXED | dict(decoder_sparse_step=1, mlp_only_layers=[]), 11),
}


def made(name, **more):
    torch.manual_seed(0)
    options = SMALL | MODELS[name][0] | more
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for p in model.parameters():  # ones and zeros of norms hide what they are multiplied by
        torch.nn.init.normal_(p, std=0.3)
    return model


def outcome(model, ids):
    """Logits, the loss of training, and gradients."""
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    model.train()
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return [logits, loss.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_the_same(name):
    model, ids = made(name), torch.randint(1, 67, (2, 11), generator=torch.manual_seed(1))
    before = outcome(model, ids)
    with apply(model) as applied:
        assert len(applied.replaced) >= MODELS[name][1], applied.replaced
        assert {"loss", "attention"} <= set(applied.replaced)
        during = outcome(model, ids)
    for got, want in zip(during, before, strict=True):
        scale = want.abs().max()
        torch.testing.assert_close(got, want, rtol=2e-3, atol=float(2e-3 * scale) + 1e-6)
    for got, want in zip(outcome(model, ids), before, strict=True):
        assert torch.equal(got, want)


def checkpointed(model, ids):
    how = {"use_reentrant": False}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    return model(input_ids=ids, labels=ids).loss


STEPS = {
    "checkpoints": checkpointed,
    "a tuple": lambda model, ids: model(input_ids=ids, labels=ids, return_dict=False)[0],
    "a count": lambda model, ids: model(input_ids=ids, labels=ids, num_items_in_batch=37).loss,
    "padding": lambda model, ids: (
        model(input_ids=ids, labels=ids, attention_mask=(ids > 9).long()).loss
    ),
    "two sequences in a row": lambda model, ids: (
        model(
            input_ids=ids,
            labels=ids,
            position_ids=torch.cat((torch.arange(5), torch.arange(6)))[None].expand(2, -1),
        ).loss
    ),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("tied", [False, True])
def test_steps_of_training(step, tied):
    ids, found = torch.randint(1, 67, (2, 11), generator=torch.manual_seed(1)), []
    for use in (False, True):
        model = made("Llama", tie_word_embeddings=tied).train()
        if use:
            apply(model)
        loss = STEPS[step](model, ids)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    for got, want in zip(*found[::-1], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


def test_padding_and_generation():
    model = made("Llama").eval()
    ids = torch.randint(1, 67, (2, 7), generator=torch.manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0

    def tokens():
        return model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)

    before = tokens()
    applied = apply(model)
    assert torch.equal(tokens(), before)
    applied.undo()
    applied.undo()
    assert not applied.replaced and torch.equal(tokens(), before)


def test_what_is_no_model_is_refused():
    with pytest.raises(tkc.LaunchError, match="a model of transformers"):
        apply(torch.nn.Linear(2, 2))
