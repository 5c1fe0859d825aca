"""Uses a Tinker server with Tinker's own SDK, so that floe's replies can be compared with it.

    python tinker-oracle.py <url> <base model>

Reads one command as JSON from each line of its input, and writes one JSON value for each:

- {"do": "sample", "prompt", "max_tokens", "seed", "stop", "temperature"}: the tokens and log-probabilities that the SDK samples.
- {"do": "forward", "sequences": [{"prompt", "tokens"}]}: the log-probabilities of the tokens, from a forward pass of the training side.
- {"do": "step", "sequences": [{"prompt", "tokens", "logprobs"}]}: trains one step that makes the tokens likelier, and saves the weights.
  The value is the path of the saved weights.
"""

import json
import sys

import tinker
from tinker import types

RANK = 8
LEARNING_RATE = 0.02


def datum(prompt, tokens, logprobs=None):
    """One training example with the advantage 1 on each of the tokens. Its columns lack the first token of the sequence."""
    whole = [*prompt, *tokens]
    context = [0.0] * (len(prompt) - 1)

    def column(values, dtype):
        return types.TensorData(data=values, dtype=dtype, shape=[len(whole) - 1])

    return types.Datum(
        model_input=types.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": column(whole[1:], "int64"),
            "logprobs": column(context + (logprobs or [0.0] * len(tokens)), "float32"),
            "advantages": column(context + [1.0] * len(tokens), "float32"),
        },
    )


class Oracle:
    def __init__(self, url, model):
        service = tinker.ServiceClient(base_url=url, api_key="tml-oracle")
        self.sampling = service.create_sampling_client(base_model=model)
        self.training = service.create_lora_training_client(base_model=model, rank=RANK)
        self.steps = 0

    def sample(self, prompt, **params):
        future = self.sampling.sample(
            prompt=types.ModelInput.from_ints(prompt),
            num_samples=1,
            sampling_params=types.SamplingParams(**params),
        )
        [sequence] = future.result().sequences
        return {"tokens": list(sequence.tokens), "logprobs": list(sequence.logprobs)}

    def forward(self, sequences):
        data = [datum(**sequence) for sequence in sequences]
        outputs = self.training.forward(data, loss_fn="importance_sampling").result().loss_fn_outputs
        starts = [len(sequence["prompt"]) - 1 for sequence in sequences]
        return [[float(value) for value in out["logprobs"].data[start:]] for out, start in zip(outputs, starts)]

    def step(self, sequences):
        data = [datum(**sequence) for sequence in sequences]
        self.training.forward_backward(data, loss_fn="importance_sampling").result()
        self.training.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()
        self.steps += 1
        return self.training.save_weights_for_sampler(name=f"step-{self.steps}").result().path


def main():
    oracle = Oracle(*sys.argv[1:3])
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(oracle, command.pop("do"))(**command)), flush=True)


main()
