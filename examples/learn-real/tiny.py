"""Makes a tiny random transformer that speaks ChatML with tools, and fine-tunes it on conversations.

    python tiny.py make CONVERSATIONS OUT            a tokenizer and random weights
    python tiny.py tune CONVERSATIONS MODEL OUT      supervised fine-tuning

CONVERSATIONS is a file of JSON lines with `messages` and `tools`, as `floe generate` writes them. The model has the architecture of Qwen3
with two layers and 0.5 million float32 weights, so that a server samples from it on two cores, and a trainer computes the same
log-probabilities to many digits.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CONTEXT = 1024
VOCABULARY = 576
STEPS, BATCH, PEAK_RATE = 400, 16, 3e-3
# The template of Qwen3 without thinking: tools in the system turn, calls and results in tags.
TEMPLATE = (Path(__file__).parent / "chat-template.jinja").read_text()

Conversation = dict[str, Any]


def read(path: str) -> list[Conversation]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def make(conversations: list[Conversation], out: str) -> None:
    """Trains a byte-level BPE tokenizer on the conversations, and writes it with a model of random weights."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((json.dumps(one) + "\nsystem user assistant tool_response" for one in conversations), trainer)
    bpe.add_tokens([AddedToken(tag, special=False) for tag in ("<tool_call>", "</tool_call>")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE, model_max_length=CONTEXT
    )
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        # vLLM's kernels for CPUs support 32 and 64, and not 16.
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(out)


def tune(conversations: list[Conversation], model_path: str, out: str) -> None:
    """Fine-tunes the model on the assistant turns of the conversations."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    samples = [encoded(tokenizer, one) for one in conversations]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=STEPS)
    order = torch.Generator().manual_seed(0)
    for step in range(1, STEPS + 1):
        chosen = [samples[i] for i in torch.randint(len(samples), (BATCH,), generator=order).tolist()]
        length = max(len(ids) for ids, _ in chosen)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (length - len(ids)) for ids, _ in chosen])
        labels = torch.tensor([labels + [-100] * (length - len(labels)) for _, labels in chosen])
        # Padding is on the right, where causal attention does not see it.
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step} of {STEPS}: loss {loss.item():.3f}", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def encoded(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> tuple[list[int], list[int]]:
    """Ids of a conversation, and its labels: the ids of assistant turns with their ends, and -100 for everything else."""
    text = tokenizer.apply_chat_template(conversation["messages"], tools=conversation["tools"], tokenize=False)
    ids: list[int] = []
    labels: list[int] = []
    opening = "<|im_start|>assistant\n"
    before, *turns = text.split(opening)
    for context, turn in zip([before, *(turn.split("<|im_end|>", 1)[1] for turn in turns)], [*turns, None]):
        part = tokenizer.encode(context if turn is None else context + opening, add_special_tokens=False)
        ids += part
        labels += [-100] * len(part)
        if turn is not None:
            part = tokenizer.encode(turn.split("<|im_end|>", 1)[0] + "<|im_end|>", add_special_tokens=False)
            ids += part
            labels += part
    return ids, labels


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        make(read(sys.argv[2]), sys.argv[3])
    else:
        tune(read(sys.argv[2]), sys.argv[3], sys.argv[4])
