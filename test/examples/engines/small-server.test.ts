import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { type EngineSpecInput, engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { type SimServer, startSim } from '@floe-rl/sim';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { defineEngine, type EngineDefinition, engineModule } from '#capture/engines/custom/definition';
import type { Engine } from '#capture/engines/engine';
import { createEngine } from '#capture/engines/engine-kinds';
import small from '../../../examples/engines/small-server.ts';
import { contractRequest, contractScenarios, engineContract } from '../../../packages/capture/test/engines/contract.ts';
import {
  simTokenizerFolder,
  type TokenizerFolder,
} from '../../../packages/capture/test/engines/tokenizer/sim-folder.ts';
import { repositoryRoot } from '../../../tools/repository.ts';
import { SmallServer } from './small-server.ts';

const never = (): AbortSignal => new AbortController().signal;

async function start(): Promise<{
  sim: SimServer;
  server: SmallServer;
  folder: TokenizerFolder;
  close(): Promise<void>;
}> {
  const sim = await startSim({ scaleOut: true, scenarios: contractScenarios });
  const server = new SmallServer(sim);
  await server.listen();
  const folder = simTokenizerFolder();
  const close = async (): Promise<void> => {
    await server.close();
    await sim.close();
    folder.remove();
  };
  return { sim, server, folder, close };
}

function connect(spec: EngineSpecInput, definition: EngineDefinition = small): Promise<Engine> {
  const kinds = new Map([['small', definition]]);
  return createEngine(engineSpecSchema.parse({ kind: 'small', ...spec }), { clock: systemClock, kinds });
}

engineContract('An engine module', async () => {
  const { sim, server, folder, close } = await start();
  const spec = engineSpecSchema.parse({ kind: 'small', base_url: server.url, tokenizer: folder.path });
  const engine = await connect(spec);
  const closeAll = async (): Promise<void> => {
    await engine.close();
    await close();
  };
  return { spec, engine, ledger: sim.ledger, close: closeAll };
});

describe('an engine module', () => {
  let running: Awaited<ReturnType<typeof start>>;
  let engine: Engine;
  let spec: EngineSpecInput;
  beforeAll(async () => {
    running = await start();
    spec = { base_url: running.server.url, tokenizer: running.folder.path };
    engine = await connect(spec);
  });
  beforeEach(() => {
    running.server.spoil = (reply) => reply;
    running.server.status = 200;
  });
  afterAll(async () => {
    await engine.close();
    await running.close();
  });

  it('is the code that the guide shows', () => {
    const read = (path: string): string => readFileSync(join(repositoryRoot(), path), 'utf8');
    const code = read('examples/engines/small-server.ts').replace(/^\/\/.*\n/gm, '');
    expect(read('docs/guides/add-an-engine.md')).toContain(`\`\`\`ts\n${code}\`\`\``);
    expect(code.split('\n').length).toBeLessThan(60);
  });

  it('has its replies recorded with the version that its server reports', async () => {
    running.server.version = 'step-2';
    engine.weightsMayHaveChanged();
    const policyVersion = await engine.policyVersion();
    const { versionSpans, responseIds } = await engine.generate(contractRequest('plain', { policyVersion }), never());
    expect(policyVersion).toBe('step-2');
    expect(versionSpans).toEqual([{ version: 'step-2', start: 0, end: responseIds.length }]);
  });

  it.each([
    ['a log-probability above 0', { logprobs: [1] }, 'logprobs'],
    ['too few log-probabilities', { logprobs: [] }, 'logprobs has 0 entries'],
    ['no ids', { tokens: [], logprobs: [] }, 'no token was sampled'],
    ['an id that is no integer', { tokens: [1.5] }, 'ids.0'],
    ['no ids at all', { tokens: undefined }, 'ids'],
  ])('fails a call with engine_error when its server returns %s', async (_, change, message) => {
    running.server.spoil = (reply) => ({ ...reply, ...change });
    await expect(engine.generate(contractRequest('plain'), never())).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining(message),
    });
    expect(engine.info().healthy).toBe(false);
  });

  it('is unavailable, and healthy again after the next reply, when its server answers 503', async () => {
    running.server.status = 503;
    await expect(engine.generate(contractRequest('plain'), never())).rejects.toMatchObject({
      code: 'engine_unavailable',
    });
    expect(engine.info().healthy).toBe(false);
    running.server.status = 200;
    await engine.generate(contractRequest('plain'), never());
    expect(engine.info().healthy).toBe(true);
  });

  it('gets no request with a sampling parameter that it does not support', async () => {
    const request = contractRequest('plain', { sampling: samplingSchema.parse({ top_k: 5 }) });
    await expect(engine.generate(request, never())).rejects.toMatchObject({
      code: 'unsupported',
      details: { field: 'top_k' },
    });
  });

  it('has errors of other classes, thrown while it samples, reported as engine_error', async () => {
    const broken = defineEngine({
      connect: async () => ({ model: 'm', supports: [], sample: () => Promise.reject(new TypeError('a bug')) }),
    });
    const one = await connect(spec, broken);
    await expect(one.generate(contractRequest('plain'), never())).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('a bug'),
    });
    await expect(one.pause('keep', never())).rejects.toMatchObject({ code: 'unsupported' });
    await one.close();
  });

  it('is refused at its registration without a tokenizer, with another model and with a wrong connection', async () => {
    await expect(connect({ base_url: running.server.url })).rejects.toMatchObject({ code: 'setup_failed' });
    await expect(connect({ ...spec, model: 'other' })).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('it serves small and not other'),
    });
    const wrong = { connect: async () => ({ model: 'm', supports: ['speed'] }) } as unknown as EngineDefinition;
    await expect(connect(spec, wrong)).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('supports.0'),
    });
  });

  it('is needed for its kind: a node without it names the kinds that it has', async () => {
    const unknown = engineSpecSchema.parse({ ...spec, kind: 'other' });
    await expect(createEngine(unknown, { clock: systemClock })).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('vllm, sglang'),
    });
  });

  it.each([
    ['small', {}, 'plugins.engines.small: ./a.mjs exports no engine as default'],
    ['small', { default: { connect: 1 } }, './a.mjs exports no engine'],
    ['vllm', { default: small }, 'floe itself has the kind vllm'],
  ])('named %s is refused with its file when the module is wrong', (kind, module, message) => {
    expect(() => engineModule(kind, `plugins.engines.${kind}: ./a.mjs`, module)).toThrow(
      expect.objectContaining({ code: 'setup_failed', message: expect.stringContaining(message) }),
    );
  });
});
