import { systemClock, VirtualClock } from '@floe-rl/core';
import { engineSpecSchema, type LogprobsMode, samplingSchema } from '@floe-rl/core/schema';
import { type SimConfigInput, type SimServer, startSim } from '@floe-rl/sim';
import { afterEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateReply } from '../../src/engines/engine.ts';
import { createEngine } from '../../src/engines/engine-kinds.ts';
import { createSglangEngine } from '../../src/engines/sglang/engine.ts';
import { contractRequest, contractScenarios, promptOf } from './contract.ts';
import { type Handler, json, likelyTokens, likelyTokensReply, ScriptedServer, vllmReply } from './scripted-server.ts';
import { SglangScript } from './sglang/scripted-sglang.ts';

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const never = (): AbortSignal => new AbortController().signal;
const sampling = samplingSchema.parse({ temperature: 0.4, top_p: 0.95 });

type Face = { name: string; kind: 'vllm' | 'sglang'; settings: SimConfigInput; ids?: boolean; forceNative?: boolean };

const FACES: Face[] = [
  { name: 'vLLM, by messages', kind: 'vllm', settings: {} },
  { name: 'vLLM, by token ids', kind: 'vllm', settings: { scaleOut: true }, ids: true },
  { name: 'a strict vLLM', kind: 'vllm', settings: { strict: true } },
  { name: 'SGLang of age meta_info', kind: 'sglang', settings: { face: 'sglang', sglangAge: 'meta_info' } },
  { name: 'SGLang of age token_ids', kind: 'sglang', settings: { face: 'sglang', sglangAge: 'token_ids' } },
  { name: 'SGLang of age sglext', kind: 'sglang', settings: { face: 'sglang', sglangAge: 'sglext' } },
  { name: 'SGLang of age stream_ids', kind: 'sglang', settings: { face: 'sglang' } },
  { name: 'SGLang, by /generate', kind: 'sglang', settings: { face: 'sglang' }, ids: true, forceNative: true },
];

type Connected = { sim: SimServer; engine: Engine };

async function connect(face: Face, server: LogprobsMode, configured: LogprobsMode): Promise<Connected> {
  const sim = await startSim({ scenarios: contractScenarios, logprobsMode: `${server}_logprobs`, ...face.settings });
  closing.push(() => sim.close());
  return { sim, engine: await engineOf(face, sim.url, configured) };
}

async function engineOf(face: Face, base_url: string, configured: LogprobsMode): Promise<Engine> {
  const spec = engineSpecSchema.parse({ kind: face.kind, base_url, logprobs_mode: configured });
  const deps = { clock: systemClock };
  const { forceNative } = face;
  const engine = await (forceNative ? createSglangEngine(spec, deps, { forceNative }) : createEngine(spec, deps));
  closing.push(() => engine.close());
  return engine;
}

/** Samples a reply with random thinking at a temperature at which the two modes differ. */
async function replyOf({ engine }: Connected, { ids }: Face): Promise<{ id: string; reply: GenerateReply }> {
  const request = contractRequest('thinking', { sampling });
  const id = request.completionId;
  if (ids !== true) return { id, reply: await engine.generate(request, never()) };
  const prompt = promptOf(await engine.render({ ...request, generationPrompt: true }, never()));
  return { id, reply: await engine.generate({ ...request, prompt }, never()) };
}

const MODES: readonly LogprobsMode[] = ['raw', 'processed'];
const cases = FACES.flatMap((face) =>
  MODES.flatMap((server) =>
    MODES.map((configured) => {
      const title = `${server} where ${face.name} returns ${server} ones and is configured as ${configured}`;
      return { title, face, server, configured };
    }),
  ),
);

describe('the log-probabilities of an engine', () => {
  it.each(cases.map(({ title, ...each }) => [title, each] as const))(
    'are %s',
    async (_, { face, server, configured }) => {
      const connected = await connect(face, server, configured);
      const { logprobs_mode, capabilities } = connected.engine.info();
      expect(logprobs_mode).toBe(server);
      const notes = capabilities.notes.filter((note) => note.includes('logprobs_mode'));
      expect(notes).toEqual(
        server === configured ? [] : [`logprobs_mode: configured ${configured}, measured ${server}`],
      );
      const { id, reply } = await replyOf(connected, face);
      const entry = connected.sim.ledger.entries({ requestId: id }).at(-1);
      expect(entry?.raw_logprobs).not.toEqual(entry?.processed_logprobs);
      expect(reply.logprobsMode).toBe(server);
      expect([...reply.responseLogprobs]).toEqual([...Float32Array.from(entry?.[`${server}_logprobs`] ?? [])]);
    },
  );

  it('are measured after the first reply where the server was paused when it was connected', async () => {
    const [face] = FACES as [Face];
    const { sim, engine } = await connect(face, 'raw', 'processed');
    await engine.pause('keep', never());
    const joined = await engineOf(face, sim.url, 'processed');
    expect(joined.info()).toMatchObject({
      logprobs_mode: 'processed',
      capabilities: { notes: expect.arrayContaining([expect.stringMatching(/processed is believed.*it is paused/)]) },
    });
    await joined.resume(never());
    const { reply } = await replyOf({ sim, engine: joined }, face);
    expect(reply.logprobsMode).toBe('raw');
    const { logprobs_mode, capabilities } = joined.info();
    expect(logprobs_mode).toBe('raw');
    expect(capabilities.notes).toContain('logprobs_mode: configured processed, measured raw');
    expect(capabilities.notes.join()).not.toContain('believed');
  });
});

type Scripted = { server: ScriptedServer; connect: (configured: LogprobsMode) => Promise<Engine> };

/** Starts a scripted server of one kind. `answer` makes its replies to the measurement. */
async function scripted(kind: 'vllm' | 'sglang', answer: Handler): Promise<Scripted> {
  const server =
    kind === 'vllm'
      ? new ScriptedServer((received) => json(received.response, 200, vllmReply(received)))
      : new SglangScript().http;
  server.onLogprobsProbe = answer;
  await server.listen();
  closing.push(() => server.close());
  const connectAs = async (logprobs_mode: LogprobsMode): Promise<Engine> => {
    const spec = engineSpecSchema.parse({ kind, base_url: server.baseUrl, logprobs_mode });
    const engine = await createEngine(spec, { clock: new VirtualClock() });
    closing.push(() => engine.close());
    return engine;
  };
  return { server, connect: connectAs };
}

const FLAT = [-1.2, -1.3, -1.4, -1.5, -1.6].map((logprob, id) => ({ token: `token_id:${id}`, logprob }));

describe.each(['vllm', 'sglang'] as const)('measuring the log-probabilities of a scripted %s server', (kind) => {
  it('samples one token in each of two calls that differ only in the temperature', async () => {
    const { server, connect: connectAs } = await scripted(kind, likelyTokens('raw'));
    await connectAs('raw');
    const bodies = server.logprobsProbes.map(({ body }) => body);
    expect(bodies.map(({ temperature }) => temperature)).toEqual([1, 0.5]);
    const [one, other] = bodies.map(({ temperature: _, ...rest }) => rest);
    expect(one).toEqual(other);
    const top_k = kind === 'vllm' ? 0 : -1;
    expect(one).toMatchObject({ max_tokens: 1, top_p: 1, top_k, min_p: 0, repetition_penalty: 1, top_logprobs: 5 });
    expect(one).not.toHaveProperty('rid');
    expect(server.logprobsProbes.map(({ headers }) => headers['x-session-id'])).toEqual([undefined, undefined]);
  });

  it.each<[string, Handler, RegExp]>([
    ['refuses top_logprobs', ({ response }) => json(response, 400, { error: { message: 'at most 0' } }), /at most 0/],
    ['fails', ({ response }) => json(response, 500, { error: { message: 'out of order' } }), /out of order/],
    ['returns no log-probabilities', ({ response }) => json(response, 200, { choices: [{}] }), /neither mode/],
    ['returns only the sampled token', ({ response }) => json(response, 200, likelyTokensReply([])), /neither mode/],
    ['returns equally likely tokens', ({ response }) => json(response, 200, likelyTokensReply(FLAT)), /neither mode/],
    ['returns no JSON', ({ response }) => void response.writeHead(200).end('<html>'), /cannot be recorded/],
    ['returns an error with status 200', ({ response }) => json(response, 200, { error: { message: 'x' } }), /inside/],
  ])('uses the configured mode, and notes it, where the server %s', async (_, answer, reason) => {
    const { connect: connectAs } = await scripted(kind, answer);
    for (const configured of MODES) {
      const { logprobs_mode, capabilities } = (await connectAs(configured)).info();
      expect(logprobs_mode).toBe(configured);
      const notes = capabilities.notes.filter((note) => note.includes('logprobs_mode'));
      expect(notes).toEqual([expect.stringMatching(`configured logprobs_mode ${configured} is believed`)]);
      expect(notes[0]).toMatch(reason);
    }
  });
});

describe.each<[string, Handler]>([
  ['is not available', ({ response }) => json(response, 503, { error: { message: 'starting' } })],
  ['closes the connection', ({ response }) => void response.destroy()],
  [
    'breaks off its reply',
    ({ response }) => {
      response.writeHead(200, { 'content-length': 1000 });
      response.write('{"choices":', () => response.destroy());
    },
  ],
])('a server that %s when it is to be measured', (_, answer) => {
  it('is used with the configured mode and measured after its next reply when it is a vLLM server', async () => {
    const { server, connect: connectAs } = await scripted('vllm', answer);
    const engine = await connectAs('processed');
    expect(engine.info().capabilities.notes.join()).toMatch(/configured logprobs_mode processed is believed/);
    server.onLogprobsProbe = likelyTokens('raw');
    expect((await engine.generate(contractRequest('plain'), never())).logprobsMode).toBe('raw');
  });

  it('is refused when it is an SGLang server, as for each of its other probe calls', async () => {
    const { connect: connectAs } = await scripted('sglang', answer);
    await expect(connectAs('raw')).rejects.toMatchObject({ code: expect.stringMatching(/engine_(unavailable|error)/) });
  });
});

/** Connects to a server that does not answer a probe call within its time limit. */
async function connectToBusy(kind: 'vllm' | 'sglang'): Promise<Engine> {
  const clock = new VirtualClock();
  const { server } = await scripted(kind, () => void clock.advance(60_000));
  const engine = await createEngine(engineSpecSchema.parse({ kind, base_url: server.baseUrl }), { clock });
  closing.push(() => engine.close());
  return engine;
}

describe('an engine that is too busy to be measured', () => {
  it('is used with the configured mode when it is a vLLM server', async () => {
    const { logprobs_mode, capabilities } = (await connectToBusy('vllm')).info();
    expect(logprobs_mode).toBe('processed');
    expect(capabilities.notes.join()).toMatch(/processed is believed.*did not sample a token within 30 s/);
  });

  it('is refused when it is an SGLang server, as for each of its other probe calls', async () => {
    await expect(connectToBusy('sglang')).rejects.toMatchObject({
      code: 'engine_unavailable',
      message: expect.stringMatching(/did not answer within/),
    });
  });
});

describe('a vLLM server that failed when it was to be measured', () => {
  it('is measured again after each reply, at most three times', async () => {
    const failing: Handler = ({ response }) => json(response, 500, { error: { message: 'busy' } });
    const { server, connect: connectAs } = await scripted('vllm', failing);
    const engine = await connectAs('processed');
    for (let count = 2; count <= 6; count++) {
      expect((await engine.generate(contractRequest('plain'), never())).logprobsMode).toBe('processed');
      expect(server.logprobsProbes.length).toBe(Math.min(count, 4));
    }
  });

  it('is measured once for replies that arrive at the same time', async () => {
    const { server, connect: connectAs } = await scripted('vllm', ({ response }) => json(response, 500, {}));
    const engine = await connectAs('processed');
    server.onLogprobsProbe = likelyTokens('raw');
    const requests = ['plain', 'words', 'plain'].map((about) => engine.generate(contractRequest(about), never()));
    expect((await Promise.all(requests)).map(({ logprobsMode }) => logprobsMode)).toEqual(['raw', 'raw', 'raw']);
    expect(server.logprobsProbes.length).toBe(3);
  });

  it('keeps the configured mode for a reply after which it cannot be reached', async () => {
    const { server, connect: connectAs } = await scripted('vllm', ({ response }) => json(response, 500, {}));
    const engine = await connectAs('processed');
    server.onLogprobsProbe = ({ response }) => void response.destroy();
    expect((await engine.generate(contractRequest('plain'), never())).logprobsMode).toBe('processed');
    server.onLogprobsProbe = likelyTokens('raw');
    expect((await engine.generate(contractRequest('plain'), never())).logprobsMode).toBe('raw');
  });
});
