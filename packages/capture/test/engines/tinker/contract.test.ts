import { systemClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { type SimServer, startSim } from '@floe-rl/sim';
import { createEngine } from '../../../src/engines/engine-kinds.ts';
import { type ContractSubject, contractScenarios, engineContract } from '../contract.ts';
import { simTokenizerFolder } from '../tokenizer/sim-folder.ts';
import { type Sampled, type SampleRequest, TinkerServer } from './tinker-server.ts';

/** A reply of the simulated engine's `/inference/v1/generate`. */
type Generated = {
  choices: [{ token_ids: number[]; logprobs: { content: { logprob: number }[] }; finish_reason: string }];
};

/** Lets a simulated engine sample the reply to a request of Tinker's API. */
async function sampleBySim(sim: SimServer, request: SampleRequest): Promise<Sampled> {
  const { stop, ...params } = request.sampling_params;
  const stops = [stop ?? []].flat();
  const strings = stops.filter((entry) => typeof entry === 'string');
  const response = await fetch(`${sim.url}/inference/v1/generate`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      request_id: request.headers['x-request-id'] ?? 'probe',
      token_ids: request.prompt.chunks.flatMap(({ tokens }) => tokens),
      sampling_params: {
        ...params,
        logprobs: 0,
        // The simulated engine ends replies at its end token, whose text it does not search for.
        stop: strings.filter((text) => text !== '<|im_end|>'),
        stop_token_ids: stops.filter((entry) => typeof entry === 'number'),
      },
    }),
  });
  if (!response.ok) throw new Error(await response.text());
  const [choice] = ((await response.json()) as Generated).choices;
  return {
    tokens: choice.token_ids,
    logprobs: choice.logprobs.content.map(({ logprob }) => logprob),
    stop_reason: choice.finish_reason === 'length' ? 'length' : 'stop',
  };
}

async function subject(options: { json: boolean }): Promise<ContractSubject> {
  const sim = await startSim({ scaleOut: true, scenarios: contractScenarios });
  const server = new TinkerServer((request) => sampleBySim(sim, request));
  server.json = options.json;
  server.key = 'tml-key-of-the-engine';
  await server.listen();
  const folder = simTokenizerFolder();
  const spec = engineSpecSchema.parse({
    kind: 'tinker',
    base_url: server.baseUrl,
    api_key: server.key,
    tokenizer: folder.path,
  });
  const engine = await createEngine(spec, { clock: systemClock });
  const close = async (): Promise<void> => {
    await engine.close();
    await server.close();
    await sim.close();
    folder.remove();
  };
  return { spec, engine, ledger: sim.ledger, close };
}

engineContract('Tinker', () => subject({ json: false }));
engineContract('a Tinker server that sends results as JSON', () => subject({ json: true }));
