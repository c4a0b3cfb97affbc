"""Models of Hugging Face's transformers on the kernels of this library.

    from tkc.integrations import transformers

    applied = transformers.apply(model)     # norms, rotary embedding, gated layers, attention,
    …                                       # experts, the loss of training
    applied.undo()                          # or: with transformers.apply(model): …

What is replaced is found by what it computes, not by its name: a module's result for a few random
rows is compared with the formula of the kernel, and a module that computes something else stays.
Weights, caches and the rest of the model are untouched; `applied.replaced` says what was done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

import tkc

NAME = "tkc"  # of the implementations of attention and experts
PROBED_ROWS = 2
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
SHARED = "apply_rotary_pos_emb"  # the function of a modeling file that turns queries and keys


class Applied:
    """What `apply` did to a model. Leaving a `with` block, or `undo`, puts everything back."""

    def __init__(self, model: Any):
        self.model = model
        self.replaced: list[str] = []
        self._undo: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<tkc applied to {type(self.model).__name__}: {len(self.replaced)} replaced>"

    def __enter__(self) -> Applied:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Puts back what was replaced, the last first. Nothing happens the second time."""
        while self._undo:
            self._undo.pop()()
        self.replaced.clear()

    def forward(self, name: str, module: Any, function: Callable) -> None:
        """Replaces a module's forward."""
        before = module.__dict__.get("forward")

        def back() -> None:
            if before is None:
                del module.forward
            else:
                module.forward = before

        module.forward = function
        self.note(name, back)

    def attribute(self, name: str, owner: Any, attribute: str, value: Any) -> None:
        """Replaces an attribute."""
        before = getattr(owner, attribute)
        setattr(owner, attribute, value)
        self.note(name, lambda: setattr(owner, attribute, before))

    def note(self, name: str, back: Callable[[], None]) -> None:
        """Remembers what was replaced, and how it is put back."""
        self.replaced.append(name)
        self._undo.append(back)


def _torch() -> Any:
    return sys.modules["torch"]


def _agree(got: Any, want: Any, dtype: Any) -> bool:
    """Whether two results are the same within the rounding of a type."""
    if not hasattr(got, "shape") or got.shape != want.shape:
        return False
    allowed = TOLERANCE.get(str(dtype).removeprefix("torch."), 0.0)
    apart = (got.double() - want.double()).abs().max()
    return bool(apart <= allowed * (1 + want.double().abs().max()))


def _probed(module: Any, width: int, like: Any) -> tuple[Any, Any] | None:
    """Random rows and what a module makes of them; None where it takes something else."""
    torch = _torch()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, PROBED_ROWS, width, generator=generator)
    x = rows.to(device=like.device, dtype=like.dtype)
    try:
        with torch.no_grad():
            return x, module(x)
    except Exception:  # whatever a module says to arguments that are not its own
        return None


# ---- modules -------------------------------------------------------------------------------------
def _takes_rows_alone(module: Any) -> bool:
    needed = [p for p in signature(module.forward).parameters.values() if p.default is p.empty]
    return len([p for p in needed if p.kind is not p.VAR_KEYWORD]) == 1


def _norm(module: Any) -> Callable | None:
    """The kernel in a norm's place: RMS norm by the weight or by 1 + it, or layer norm."""
    from tkc import kernels

    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or weight.dim() != 1 or not isinstance(eps, float) or list(module.children()):
        return None
    if not _takes_rows_alone(module) or not (found := _probed(module, len(weight), weight)):
        return None
    x, result = found
    wide, bias = x.double(), getattr(module, "bias", None)

    def layer_norm(x: Any) -> Any:
        return kernels.layer_norm(x, module.weight, module.bias, eps)

    def plain(x: Any) -> Any:
        return kernels.rms_norm(x, module.weight, eps)

    def shifted(x: Any) -> Any:
        return kernels.rms_norm(x, 1.0 + module.weight.float(), eps)

    rms = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    apart = wide - wide.mean(-1, keepdim=True)
    centred = apart * (apart.square().mean(-1, keepdim=True) + eps).rsqrt()
    scale = weight.detach().double()
    if bias is not None:
        want = centred * scale + bias.detach().double()
        return layer_norm if _agree(result, want, x.dtype) else None
    if _agree(result, rms * scale, x.dtype):
        return plain
    return shifted if _agree(result, rms * (1 + scale), x.dtype) else None


def _gate_of(activation: Callable) -> Callable | None:
    """The gated kernel with this activation."""
    from tkc import kernels

    torch = _torch()
    x = torch.linspace(-4, 4, 33)
    try:
        with torch.no_grad():
            result = activation(x)
    except Exception:  # an activation that takes something else
        return None
    F = torch.nn.functional
    if torch.allclose(result, F.silu(x), atol=1e-6):
        return kernels.swiglu
    if torch.allclose(result, F.gelu(x), atol=1e-6):
        return kernels.geglu
    if torch.allclose(result, F.gelu(x, approximate="tanh"), atol=1e-6):
        return lambda gate, up: kernels.geglu(gate, up, "tanh")
    return None


def _gated_layer(module: Any) -> Callable | None:
    """Between three linear layers, what a gated layer does."""
    names = "gate_proj", "up_proj", "down_proj", "act_fn"
    parts: list[Any] = [getattr(module, name, None) for name in names]
    if None in parts or not hasattr(parts[0], "weight") or not (gate := _gate_of(parts[3])):
        return None
    weight = parts[0].weight
    if weight.dim() != 2 or not (found := _probed(module, weight.shape[1], weight)):
        return None

    def forward(x: Any) -> Any:
        return module.down_proj(gate(module.gate_proj(x), module.up_proj(x)))

    x, result = found
    with _torch().no_grad():
        first, up = parts[0](x), parts[1](x)
        want = parts[2](parts[3](first) * up)
    return forward if _agree(result, want, x.dtype) else None


# ---- functions -----------------------------------------------------------------------------------
def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Any, Any]:
    """Attention without a mask of its own, as transformers calls it; else torch's."""
    from tkc import kernels

    extras = ("position_bias", "s_aux", "cu_seq_lens_q")
    if attention_mask is not None or dropout or any(others.get(n) is not None for n in extras):
        plain = import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward
        given = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **others}
        if softcap is not None:
            given["softcap"] = softcap
        return plain(module, query, key, value, attention_mask, **given)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    out: Any = kernels.attention(
        query,
        key,
        value,
        causal=bool(causal) and query.shape[2] > 1,
        scale=scaling,
        softcap=softcap or 0.0,
    )
    return out.transpose(1, 2).contiguous(), None


def _experts(module: Any, hidden_states: Any, index: Any, weights: Any) -> Any:
    """A layer of experts, as transformers calls it; another kind of layer by its own forward."""
    from tkc import kernels

    plain = module.has_gate and module.is_concatenated
    # Versions of transformers without that norm have no attribute that says so.
    is_normed = getattr(module, "has_post_expert_norm", False)
    odd = module.has_bias or module.is_transposed or is_normed
    if not plain or odd or _gate_of(module.act_fn) is not kernels.swiglu:
        return type(module).forward.__wrapped__(module, hidden_states, index, weights)
    given = module.gate_up_proj, module.down_proj, weights, index.int()
    return kernels.mixture_of_experts(hidden_states, *given)


def _rotary(original: Callable) -> Callable:
    """Turns queries and keys as the original does, a launch each."""
    from tkc import kernels

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        batch, heads, positions, width = x.shape
        rows = x.transpose(1, 2).reshape(1, batch * positions, heads, width)
        out = kernels.rotary(rows, cos, sin)
        return out.reshape(batch, positions, heads, width).transpose(1, 2)

    def apply_rotary_pos_emb(
        q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1, **others: Any
    ) -> tuple[Any, Any]:
        if others or unsqueeze_dim != 1 or q.dim() != 4 or cos.dim() != 3:
            return original(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim, **others)
        shape, half = (q.shape[0], q.shape[2], cos.shape[-1]), cos.shape[-1] // 2
        c, s = (t.expand(shape)[..., :half].reshape(shape[0] * shape[1], half) for t in (cos, sin))
        return turned(q, c, s), turned(k, c, s)

    return apply_rotary_pos_emb


def _is_rotary(original: Callable, ours: Callable) -> bool:
    """Whether both turn random queries and keys alike."""
    torch = _torch()
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 3, 16, generator=generator) for _ in range(2))
    angles = torch.randn(1, 3, 8, generator=generator).repeat(1, 1, 2)
    try:
        pairs = zip(
            original(q, k, angles.cos(), angles.sin()),
            ours(q, k, angles.cos(), angles.sin()),
            strict=True,
        )
        return all(_agree(a, b, a.dtype) for a, b in pairs)
    except Exception:  # a function of another signature
        return False


# ---- the loss ------------------------------------------------------------------------------------
def _with_loss(model: Any) -> Callable | None:
    """The model's forward with the loss of its last layer computed in parts, without logits."""
    from tkc import kernels

    head, base = model.get_output_embeddings(), getattr(model, model.base_model_prefix, None)
    if head is None or base is None or base is model or getattr(head, "bias", None) is not None:
        return None
    original, outputs = model.forward, import_module("transformers.modeling_outputs")
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None) or 0.0

    def loss_of(hidden: Any, labels: Any, count: Any) -> Any:
        torch = _torch()
        target = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        rows = hidden.reshape(-1, hidden.shape[-1]).to(head.weight.dtype)
        options = {"softcap": float(cap), "mean": count is None}
        with_grad = torch.is_grad_enabled()
        loss = kernels.linear_cross_entropy(
            rows, head.weight, target, with_grad=with_grad, **options
        )[0][0]
        return loss if count is None else loss / count

    def forward(*args: Any, labels: Any = None, **given: Any) -> Any:
        routed = getattr(model.config, "output_router_logits", False)
        special = {"logits_to_keep", "output_router_logits", "shift_labels"} & {
            name for name, value in given.items() if value is not None
        }
        kind = given.get("return_dict")  # False: a tuple
        named = getattr(model.config, "return_dict", True) if kind is None else kind
        if labels is None or routed or special or not named or not model.training:
            return original(*args, labels=labels, **given)
        count = given.pop("num_items_in_batch", None)
        found = base(*args, **given)
        loss = loss_of(found.last_hidden_state, labels, count)
        kept = outputs.CausalLMOutputWithPast.__dataclass_fields__
        rest = {name: value for name, value in found.items() if name in kept}
        return outputs.CausalLMOutputWithPast(**{**rest, "loss": loss, "logits": None})

    return forward if _same_loss(model, base, loss_of) else None


def _same_loss(model: Any, base: Any, loss_of: Callable) -> bool:
    """Whether a few tokens' loss is the model's own."""
    torch = _torch()
    device = next(model.parameters()).device
    ids = torch.arange(1, 5, device=device)[None] % model.config.get_text_config().vocab_size
    try:
        with torch.no_grad():
            want = model(input_ids=ids, labels=ids).loss
            got = loss_of(base(input_ids=ids).last_hidden_state, ids, None)
        return _agree(got.reshape(()), want.reshape(()), model.dtype)
    except Exception:  # a model of other arguments, or another loss
        return False


# --------------------------------------------------------------------------------------------------
def apply(
    model: Any,
    norms: bool = True,
    rotary: bool = True,
    layers: bool = True,
    attention: bool = True,
    experts: bool = True,
    loss: bool = True,
) -> Applied:
    """Puts this library's kernels into a model of transformers, in place.

    norms: RMS and layer norms. rotary: the embedding of positions. layers: the gates of gated
    layers. attention: attention without a mask of its own (others stay torch's). experts: layers of
    experts with SiLU. loss: in training, the loss without logits (which are then None). Gives what
    was done; `undo` reverses it. Raises LaunchError where the model is none of transformers.
    """
    if not hasattr(model, "config") or not hasattr(model, "named_modules"):
        raise tkc.LaunchError(
            f"apply takes a model of transformers, got {type(model).__name__}; pass a"
            " PreTrainedModel"
        )
    applied = Applied(model)
    if loss and hasattr(model, "base_model_prefix") and (found := _with_loss(model)):
        applied.forward("loss", model, found)
    for name, module in model.named_modules():
        replacement = norms and _norm(module) or layers and _gated_layer(module)
        if replacement:
            applied.forward(name, module, replacement)
    if rotary:
        _replace_rotary(applied)
    if attention:
        _choose_attention(applied)
    if experts:
        _choose_experts(applied)
    return applied


def _replace_rotary(applied: Applied) -> None:
    files = {type(m).__module__ for m in applied.model.modules()}
    for file in sorted(files):
        module = sys.modules.get(file)
        original = getattr(module, SHARED, None)
        if original is not None and _is_rotary(original, ours := _rotary(original)):
            applied.attribute(f"{file}.{SHARED}", module, SHARED, ours)


def _choose_attention(applied: Applied) -> None:
    model = applied.model
    if not hasattr(model, "set_attn_implementation") or not model._can_set_attn_implementation():
        return
    masks, modeling = import_module("transformers.masking_utils"), "transformers.modeling_utils"
    masks.ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, masks.sdpa_mask)
    import_module(modeling).ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    applied.note("attention", lambda: model.set_attn_implementation(before))


def _choose_experts(applied: Applied) -> None:
    registered = False
    for name, module in applied.model.named_modules():
        config = getattr(module, "config", None)
        if not hasattr(module, "is_concatenated") or config is None:
            continue
        if not registered:
            moe = import_module("transformers.integrations.moe")
            moe.ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)
            registered = True
        if config._experts_implementation != NAME:
            applied.attribute(name, config, "_experts_implementation", NAME)
