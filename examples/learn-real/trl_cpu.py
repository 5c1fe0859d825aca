"""Lets TRL's AsyncGRPOTrainer run without a GPU: its packed attention, which is a CUDA kernel, is computed by PyTorch."""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from trl.experimental.async_grpo import async_grpo_trainer, packing


def replace_gpu_parts() -> None:
    if torch.cuda.is_available():
        return
    packing._flash_attn = lambda: _Attention
    # TRL asks CUDA for the speed of the device, for a metric.
    async_grpo_trainer.get_peak_flops_per_device = lambda *_, **__: 1.0


class _Attention:
    """The function of FlashAttention that TRL calls, one sequence after the other."""

    @staticmethod
    def flash_attn_varlen_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        *_: Any,
        softmax_scale: float | None = None,
        **__: Any,
    ) -> torch.Tensor:
        """`q` is [tokens, heads, width]; `cu_seqlens_q[i]` to `cu_seqlens_q[i + 1]` is sequence i. Attention is causal at its end."""
        queries = zip(cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:])
        keys = zip(cu_seqlens_k.tolist(), cu_seqlens_k.tolist()[1:])
        outputs = []
        for (q_start, q_end), (k_start, k_end) in zip(queries, keys):
            length, context = q_end - q_start, k_end - k_start
            output = scaled_dot_product_attention(
                q[q_start:q_end].transpose(0, 1),
                k[k_start:k_end].transpose(0, 1).repeat_interleave(q.shape[1] // k.shape[1], 0),
                v[k_start:k_end].transpose(0, 1).repeat_interleave(q.shape[1] // v.shape[1], 0),
                attn_mask=torch.ones(length, context, dtype=torch.bool).tril(context - length),
                scale=softmax_scale,
            )
            outputs.append(output.transpose(0, 1))
        return torch.cat(outputs)
