"""The tiny model in numpy: the forward pass of Qwen3 in float64, with an output layer that can be trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float64]


class NumpyModel:
    """A causal language model whose `head`, the matrix from hidden states to logits, is what a step changes. H is the size of a hidden state."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.head: Array = self.weights.pop("lm_head.weight")  # [vocabulary, H]

    def hidden(self, ids: list[int]) -> Array:
        """Returns the hidden state after each token, which the head turns into the logits of the next: [T, H]."""
        state = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            state = state + self._attention(f"{prefix}.self_attn", self._norm(state, f"{prefix}.input_layernorm"))
            state = state + self._mlp(f"{prefix}.mlp", self._norm(state, f"{prefix}.post_attention_layernorm"))
        return self._norm(state, "model.norm")

    def _linear(self, state: Array, name: str) -> Array:
        return state @ self.weights[f"{name}.weight"].T

    def _norm(self, state: Array, name: str) -> Array:
        scale = np.sqrt(np.mean(state**2, axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        return state / scale * self.weights[f"{name}.weight"]

    def _mlp(self, name: str, state: Array) -> Array:
        gate = self._linear(state, f"{name}.gate_proj")
        return self._linear(gate / (1 + np.exp(-gate)) * self._linear(state, f"{name}.up_proj"), f"{name}.down_proj")

    def _attention(self, name: str, state: Array) -> Array:
        length, size = len(state), self.config["head_dim"]
        heads, shared = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        query = self._rotated(self._norm(self._linear(state, f"{name}.q_proj").reshape(length, heads, size), f"{name}.q_norm"))
        key = self._rotated(self._norm(self._linear(state, f"{name}.k_proj").reshape(length, shared, size), f"{name}.k_norm"))
        value = self._linear(state, f"{name}.v_proj").reshape(length, shared, size)
        key, value = (np.repeat(one, heads // shared, axis=1) for one in (key, value))
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return self._linear(np.einsum("hqk,khd->qhd", shares, value).reshape(length, heads * size), f"{name}.o_proj")

    def _rotated(self, state: Array) -> Array:
        """Applies rotary position embeddings to [T, heads, size]."""
        half = state.shape[-1] // 2
        theta = (self.config.get("rope_parameters") or self.config)["rope_theta"]
        angles = np.arange(len(state))[:, None] / theta ** (np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = state[..., :half], state[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
