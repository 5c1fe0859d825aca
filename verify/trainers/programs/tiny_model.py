"""Writes a tiny random language model with a tokenizer, and the logprobs that it gives to token sequences.

    tiny_model.py MODEL_FOLDER VOCABULARY SEQUENCES LOGPROBS

SEQUENCES has a line {"ids": [...]} for each sequence. LOGPROBS gets a line for each: the natural logarithm of the probability of each token
after those before it, 0 for the first.
"""

import json
import sys
from pathlib import Path

import torch
from exported import batches
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

# Tokens of one forward pass.
BATCH_TOKENS = 16_384
CONTEXT = 1024
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(folder: Path, vocabulary: int) -> PreTrainedTokenizerFast:
    """Writes a byte-level BPE tokenizer whose vocabulary is not larger than the model's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["system user assistant tool call result of some tokens"], trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
        model_max_length=CONTEXT,
    )
    wrapped.save_pretrained(folder)
    return wrapped


def write_model(folder: Path, vocabulary: int, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        # With the usual 0.02 all tokens are about equally likely, and a wrong token would hardly change a logprob.
        initializer_range=0.3,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config).float().eval()
    model.save_pretrained(folder)
    return model


def logprobs(model: Qwen3ForCausalLM, sequences: list[list[int]]) -> list[list[float]]:
    """Returns the logprobs of all tokens. Sequences of similar lengths are padded on the right, which a causal model does not see."""
    order = sorted(range(len(sequences)), key=lambda at: len(sequences[at]))
    longest = max(map(len, sequences))
    result: list[list[float]] = [[] for _ in sequences]
    for batch in batches(len(order), max(1, BATCH_TOKENS // longest)):
        chosen = [order[at] for at in batch]
        width = max(len(sequences[at]) for at in chosen)
        ids = torch.tensor([sequences[at] + [0] * (width - len(sequences[at])) for at in chosen])
        with torch.no_grad():
            scores = torch.log_softmax(model(ids).logits[:, :-1].float(), -1)
        values = scores.gather(-1, ids[:, 1:, None])[:, :, 0].tolist()
        for at, row in zip(chosen, values):
            result[at] = [0.0, *row[: len(sequences[at]) - 1]]
    return result


def main() -> None:
    folder, vocabulary, source, target = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    model = write_model(folder, vocabulary, write_tokenizer(folder, vocabulary))
    with open(source, encoding="utf8") as file:
        sequences = [json.loads(line)["ids"] for line in file]
    with open(target, "w", encoding="utf8") as file:
        for row in logprobs(model, sequences):
            file.write(f"{json.dumps(row)}\n")


main()
