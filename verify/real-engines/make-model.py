"""Writes a tiny language model that real inference servers load: as GGUF for llama.cpp, as a Hugging Face folder for vLLM and SGLang, and as
another one for SkyRL, which has the Llama architecture but not Qwen2. Without biases the two compute the same.

    python make-model.py <tokenizer.json> <chat-template.jinja> <out folder>

Two layers of the Qwen2 architecture, 3 million random weights. Only the output matrix is not random: it is set so that a token is
mostly followed by the next one of a few short replies (thinking, a tool call, text with characters that take several tokens), and
once in a while by any token at all. So the servers' parsers and stop rules have something to work on, while every token is sampled.
The layers add a little noise, so that log-probabilities depend on the whole prompt.
"""

import json
import os
import struct
import sys

import gguf
import numpy

WIDTH, HEADS, KV_HEADS, INNER, LAYERS, CONTEXT = 256, 4, 2, 512, 2, 4096
HEAD = WIDTH // HEADS
# The logit of a scripted successor; e^13 against 6,000 others leaves about one percent to chance.
CERTAINTY = 13.0
# How much attention and feed-forward layers add to the last token's own embedding.
LAYER_NOISE = 0.01
ROPE_BASE, EPSILON = 10000.0, 1e-6

# No token may occur twice in a script, since only the last token decides what comes next.
SCRIPTS = [
    ["\n", "<think>", "I look at the files first", "</think>", "<tool_call>"],
    ["\n", "<tool_call>", '{"name":"list_files","arguments":{"path":"/tmp"}}', "</tool_call>", "<|im_end|>"],
    ["</think>", "Done: 🙂 漢字", "<|im_end|>"],
    ["\n", "Done: "],
]


def scripted(tokenizer):
    """Pairs (token, a token that follows it)."""
    vocab, added = tokenizer["model"]["vocab"], {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ranks = {tuple(merge): rank for rank, merge in enumerate(tokenizer["model"]["merges"])}
    for script in SCRIPTS:
        ids = [id for text in script for id in ([added[text]] if text in added else encode(text, vocab, ranks))]
        yield from zip(ids, ids[1:])


def encode(text, vocab, ranks):
    """Byte-pair encoding, word by word where a space begins one."""
    ids = []
    for word in text.replace(" ", "\0 ").split("\0"):
        parts = [byte_names()[byte] for byte in word.encode()]
        while len(parts) > 1:
            rank, at = min((ranks.get((a, b), len(ranks)), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
            if rank == len(ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [vocab[part] for part in parts]
    return ids


def byte_names():
    """The printable character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, next_free = {byte: chr(byte) for byte in plain}, 256
    for byte in range(256):
        if byte not in names:
            names[byte], next_free = chr(next_free), next_free + 1
    return names


def tensors(tokenizer, size):
    """Name in the Hugging Face folder, name in GGUF, float32 values."""
    random = numpy.random.default_rng(7)

    def normal(*shape, scale=1.0):
        return (random.standard_normal(shape) * scale).astype(numpy.float32)

    embedding = normal(size, WIDTH)
    pairs = list(dict.fromkeys(scripted(tokenizer)))
    known = {token for token, _ in pairs}
    # Tokens outside the scripts are alike, so that one successor serves them all: a reply that strays finds its end.
    stray = normal(WIDTH)
    for token in range(size):
        if token not in known:
            embedding[token] = 0.9 * stray + 0.44 * embedding[token]
    end = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == "<|im_end|>")
    output = normal(size, WIDTH, scale=0.02 / WIDTH**0.5)
    for token, follower in pairs:
        output[follower] += CERTAINTY * embedding[token] / WIDTH
    output[end] += 0.7 * CERTAINTY * stray / WIDTH

    yield "model.embed_tokens.weight", "token_embd.weight", embedding
    yield "lm_head.weight", "output.weight", output
    yield "model.norm.weight", "output_norm.weight", numpy.ones(WIDTH, numpy.float32)
    scale = WIDTH**-0.5
    for layer in range(LAYERS):
        hf, gg = f"model.layers.{layer}.", f"blk.{layer}."
        yield hf + "input_layernorm.weight", gg + "attn_norm.weight", numpy.ones(WIDTH, numpy.float32)
        yield hf + "post_attention_layernorm.weight", gg + "ffn_norm.weight", numpy.ones(WIDTH, numpy.float32)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            yield f"{hf}self_attn.{name}_proj.weight", f"{gg}attn_{name}.weight", normal(heads * HEAD, WIDTH, scale=scale)
            yield f"{hf}self_attn.{name}_proj.bias", f"{gg}attn_{name}.bias", numpy.zeros(heads * HEAD, numpy.float32)
        yield hf + "self_attn.o_proj.weight", gg + "attn_output.weight", normal(WIDTH, WIDTH, scale=LAYER_NOISE)
        yield hf + "mlp.gate_proj.weight", gg + "ffn_gate.weight", normal(INNER, WIDTH, scale=scale)
        yield hf + "mlp.up_proj.weight", gg + "ffn_up.weight", normal(INNER, WIDTH, scale=scale)
        yield hf + "mlp.down_proj.weight", gg + "ffn_down.weight", normal(WIDTH, INNER, scale=LAYER_NOISE)


def write_gguf(path, tokenizer, template, named):
    names = {id: text for text, id in tokenizer["model"]["vocab"].items()}
    kinds = {id: gguf.TokenType.NORMAL for id in names}
    for token in tokenizer["added_tokens"]:
        names[token["id"]] = token["content"]
        kinds[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    ids = {text: id for id, text in names.items()}
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([names[id] for id in range(len(names))])
    writer.add_token_types([int(kinds[id]) for id in range(len(names))])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    for _, name, values in named:
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder(path, tokenizer, template, named, architecture):
    class_name, model_type = architecture
    os.makedirs(path, exist_ok=True)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, _, values in named:
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    with open(f"{path}/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, values in named:
            file.write(values.tobytes())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    end, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    config = {
        "architectures": [class_name],
        "model_type": model_type,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_BASE,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": len(tokenizer["model"]["vocab"]) + len(ids),
        "eos_token_id": end,
        "pad_token_id": pad,
    }
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": end, "pad_token_id": pad},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": template,
        },
    }
    for name, value in files.items():
        with open(f"{path}/{name}", "w", encoding="utf8") as file:
            json.dump(value, file, ensure_ascii=False)
    with open(f"{path}/chat_template.jinja", "w", encoding="utf8") as file:
        file.write(template)


def main():
    tokenizer_path, template_path, out = sys.argv[1:4]
    with open(tokenizer_path, encoding="utf8") as file:
        tokenizer = json.load(file)
    with open(template_path, encoding="utf8") as file:
        template = file.read()
    os.makedirs(out, exist_ok=True)
    size = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    named = list(tensors(tokenizer, size))
    write_gguf(f"{out}/tiny.gguf", tokenizer, template, named)
    write_folder(f"{out}/tiny", tokenizer, template, named, ("Qwen2ForCausalLM", "qwen2"))
    without_biases = [tensor for tensor in named if not tensor[0].endswith(".bias")]
    write_folder(f"{out}/tiny-llama", tokenizer, template, without_biases, ("LlamaForCausalLM", "llama"))


main()
