"""Decode loops without an engine: the leanest that we can write in plain torch, and the one that everybody writes.

`Bare` is what no engine over plain torch can be expected to beat. Whatever a serving engine must do is left out: rows
stand at the same position, none joins or leaves, nothing is masked per row, no log-probs are kept. What is in it was
found by measuring (docs/develop/performance.md):

- one weight for query, key and value, and one for gate and up; the scale of attention and the weights of the query's
  and key's norms are part of the rotation's table;
- keys and values are exactly as long as the step's window and grow by blocks: `bmm` copies what is not contiguous. The
  query heads that share a key head are rows of one small matrix: nothing is repeated;
- fp32 linear layers by oneDNN, whose kernels use AVX-512 also where the processor is not Intel's; MKL's do not;
- ids are drawn by inverting the distribution function: `multinomial` draws a random number for every id there is;
- prompts are fed some rows at a time, so that what is in between stays in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel, Qwen3ForCausalLM

Draw = Literal["greedy", "sampled"]
BLOCK = 16
"""Positions by which keys and values grow."""
PREFILL_IDS = 2048
"""Ids of a piece of the prefill."""


def draw_ids(logits: Tensor, draw: Draw) -> Tensor:
    """One id per row: (B, V) → (B,)."""
    if draw == "greedy":
        return logits.float().argmax(-1)
    total = logits.float().softmax(-1).cumsum(-1)
    return torch.searchsorted(total, torch.rand(len(total), 1) * total[:, -1:]).squeeze(1)


def linear(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """x (N, I) → (N, O) for `weight` (O, I)."""
    if weight.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return lambda x: F.linear(x, weight)
    packed, run = torch.ops.mkldnn._reorder_linear_weight(weight, 256), torch.ops.mkldnn._linear_pointwise
    return lambda x: run(x, packed, None, "none", [], "")


class Layer:
    """One layer's weights, keys and values, each (B · KV, length, D)."""

    def __init__(self, layer: torch.nn.Module, dtype: torch.dtype, turn: Callable[[Tensor], Tensor]) -> None:
        def joined(*modules: torch.nn.Module) -> Tensor:
            return torch.cat([module.weight.detach() for module in modules]).to(dtype)

        attention, mlp = layer.self_attn, layer.mlp
        self.norm, self.mlp_norm = joined(layer.input_layernorm), joined(layer.post_attention_layernorm)
        self.qkv = linear(joined(attention.q_proj, attention.k_proj, attention.v_proj))
        self.out, self.down = linear(joined(attention.o_proj)), linear(joined(mlp.down_proj))
        self.gate_up = linear(joined(mlp.gate_proj, mlp.up_proj))
        q, k = attention.q_norm.weight.detach().float(), attention.k_norm.weight.detach().float()
        heads = attention.config.num_attention_heads, attention.config.num_key_value_heads
        weights = torch.cat([(q * attention.scaling).expand(heads[0], -1), k.expand(heads[1], -1)])
        self.cosines, self.sines = (table.to(dtype).contiguous() for table in turn(weights))
        self.keys = self.values = torch.empty(0)


class Bare:
    """Qwen3 by hand, for `length` positions and one batch at a time. With the weights of `model` in `dtype`."""

    def __init__(self, model: Qwen3ForCausalLM, dtype: torch.dtype, length: int) -> None:
        config = model.config
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.dim, self.eps, self.dtype = config.head_dim, config.rms_norm_eps, dtype
        half = self.dim // 2
        rates = config.rope_parameters["rope_theta"] ** -(torch.arange(half) / half)
        angles = torch.arange(length)[:, None] * rates

        def turn(weights: Tensor) -> tuple[Tensor, Tensor]:
            """x · w · cos and roll(x) · roll(w) · sin: (length, heads, D) each."""
            cosines, sines = torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)
            return cosines[:, None] * weights, sines[:, None] * weights.roll(half, -1)

        self.layers = [Layer(layer, dtype, turn) for layer in model.model.layers]
        self.embedding = model.model.embed_tokens.weight.detach().to(dtype)
        self.norm = model.model.norm.weight.detach().to(dtype)
        self.head = linear(model.lm_head.weight.detach().to(dtype))

    @torch.inference_mode()
    def run(self, prompts: Tensor, count: int, draw: Draw) -> Tensor:
        """prompts: (B, T) → ids (B, count)."""
        ids = [draw_ids(self.prefill(prompts), draw)]
        while len(ids) < count:
            ids.append(draw_ids(self.step(ids[-1]), draw))
        return torch.stack(ids, 1)

    def prefill(self, prompts: Tensor) -> Tensor:
        """Start anew with prompts (B, T); return the last logits (B, V)."""
        batch, self.position = prompts.shape
        room = -(-self.position // BLOCK) * BLOCK
        for layer in self.layers:
            layer.keys = torch.zeros(batch * self.groups, room, self.dim, dtype=self.dtype)
            layer.values = torch.zeros_like(layer.keys)
        rows = max(1, PREFILL_IDS // self.position)
        return torch.cat([self._feed(prompts[at : at + rows], at) for at in range(0, batch, rows)])

    def _feed(self, prompts: Tensor, first: int) -> Tensor:
        """Prompts of the rows first…"""
        rows, length = prompts.shape
        share = self.heads // self.groups
        later = torch.full((length, length), -torch.inf, dtype=self.dtype).triu(1)
        here = slice(first * self.groups, (first + rows) * self.groups)
        hidden = F.embedding(prompts.reshape(-1), self.embedding)
        for layer in self.layers:
            heads = layer.qkv(self._normed(hidden, layer.norm)).view(rows, length, -1, self.dim)
            turned = self._turned(heads, layer.cosines[:length], layer.sines[:length])
            keys = turned[:, :, self.heads :].transpose(1, 2).reshape(-1, length, self.dim)
            values = heads[:, :, self.heads + self.groups :].transpose(1, 2).reshape(-1, length, self.dim)
            layer.keys[here, :length], layer.values[here, :length] = keys, values
            queries = turned[:, :, : self.heads].transpose(1, 2).reshape(-1, share * length, self.dim)
            scores = torch.bmm(queries, keys.transpose(1, 2)).view(-1, share, length, length).add_(later)
            seen = torch.bmm(scores.softmax(-1).view(-1, share * length, length), values)
            seen = seen.view(rows, self.heads, length, self.dim).transpose(1, 2)
            hidden = self._rest(layer, hidden, seen.reshape(rows * length, -1))
        return self.head(self._normed(hidden.view(rows, length, -1)[:, -1], self.norm))

    def step(self, ids: Tensor) -> Tensor:
        """Feed one id to every row: (B,) → logits (B, V)."""
        batch, at = len(ids), self.position
        hidden = F.embedding(ids, self.embedding)
        for layer in self.layers:
            if at == layer.keys.shape[1]:
                layer.keys, layer.values = (F.pad(t, (0, 0, 0, BLOCK)) for t in (layer.keys, layer.values))
            heads = layer.qkv(self._normed(hidden, layer.norm)).view(batch, -1, self.dim)
            turned = self._turned(heads, layer.cosines[at], layer.sines[at])
            layer.keys.view(batch, self.groups, -1, self.dim)[:, :, at] = turned[:, self.heads :]
            layer.values.view(batch, self.groups, -1, self.dim)[:, :, at] = heads[:, self.heads + self.groups :]
            queries = turned[:, : self.heads].reshape(batch * self.groups, -1, self.dim)
            scores = torch.bmm(queries, layer.keys.transpose(1, 2))
            scores[:, :, at + 1 :] = -torch.inf
            seen = torch.bmm(scores.softmax(-1), layer.values)
            hidden = self._rest(layer, hidden, seen.view(batch, -1))
        self.position += 1
        return self.head(self._normed(hidden, self.norm))

    def _rest(self, layer: Layer, hidden: Tensor, seen: Tensor) -> Tensor:
        """From what attention saw, (N, heads · D), to the layer's end."""
        hidden.add_(layer.out(seen))
        gate, up = layer.gate_up(self._normed(hidden, layer.mlp_norm)).chunk(2, -1)
        return hidden.add_(layer.down(F.silu(gate).mul_(up)))

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self.eps)

    def _turned(self, heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Normed and rotated query and key heads, (…, heads + groups, D)."""
        x = self._normed(heads[..., : self.heads + self.groups, :], None)
        return torch.addcmul(x * cosines, x.roll(self.dim // 2, -1), sines)


@torch.inference_mode()
def naive(model: PreTrainedModel, prompts: Tensor, count: int) -> Tensor:
    """Greedy ids (B, count) by transformers' forward over its dynamic cache: what "bare torch decode" usually means."""
    cache, ids = DynamicCache(config=model.config), [prompts]
    while len(ids) <= count:
        logits = model(input_ids=ids[-1], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        ids.append(logits[:, -1].float().argmax(-1)[:, None])
    return torch.cat(ids[1:], 1)
