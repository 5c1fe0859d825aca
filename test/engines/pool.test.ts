import { describe, expect, test } from 'vitest';
import { FloeError } from '../../src/core/errors.ts';
import { VirtualClock } from '../../src/core/virtual-clock.ts';
import type { Engine, GenerateReply, GenerateRequest } from '../../src/engines/engine.ts';
import { createEnginePool, poolOf } from '../../src/engines/pool.ts';
import { UNKNOWN_TEMPLATE } from '../../src/engines/template-probe.ts';
import { engineSpecSchema, samplingSchema } from '../../src/schema/index.ts';
import { json, ScriptedServer } from './scripted-server.ts';

const request: GenerateRequest = {
  completionId: 'cpl_1',
  sessionId: 'ses_1',
  pool: 'default',
  prompt: null,
  begun: null,
  cacheSalt: null,
  messageTexts: [],
  tools: [],
  toolsText: '[]',
  toolChoice: null,
  parallelToolCalls: null,
  responseFormat: null,
  sampling: samplingSchema.parse({}),
  maxTokens: null,
  stop: [],
  seed: null,
};

const reply = { responseIds: Int32Array.of(1) } as GenerateReply;
const unavailable = (details = {}) => new FloeError('engine_unavailable', 'gone', details);

/** An engine that does what the test says and counts its calls. */
class ToyEngine implements Engine {
  calls = 0;
  closed = 0;
  inflight = 0;
  readonly id: string;
  onCall: () => Promise<GenerateReply>;

  constructor(id: string, onCall: () => Promise<GenerateReply> = async () => reply) {
    this.id = id;
    this.onCall = onCall;
  }

  info() {
    return {
      engine_id: this.id,
      kind: 'vllm' as const,
      base_url: 'http://x',
      pool: 'default',
      server_version: null,
      max_concurrency: null,
      capabilities: {
        token_ids: true,
        token_input: 'none' as const,
        version_spans: false,
        pause: false,
        abort: false,
        cache_salt: false,
        notes: [],
        template: UNKNOWN_TEMPLATE,
      },
      model: `model-${this.id}`,
      max_model_len: 100,
      logprobs_mode: 'processed' as const,
      policy_version: null,
      healthy: true,
      streaming: true,
      inflight: this.inflight,
    };
  }

  async generate(_request: GenerateRequest): Promise<GenerateReply> {
    this.calls++;
    this.inflight++;
    try {
      return await this.onCall();
    } finally {
      this.inflight--;
    }
  }

  render(): Promise<Int32Array> {
    return Promise.resolve(Int32Array.of(1));
  }

  detokenize(): Promise<string> {
    return Promise.resolve('');
  }

  async pause(): Promise<void> {}

  async resume(): Promise<void> {}

  setPolicyVersion(): void {}

  metrics(): Promise<string | null> {
    return Promise.resolve(null);
  }

  async countTokens(): Promise<number> {
    return (await this.generate(request)).responseIds.length;
  }

  async close(): Promise<void> {
    this.closed++;
  }
}

const never = () => new AbortController().signal;

/** Lets a virtual minute and a half pass in small steps while `work` is under way. */
async function through<T>(clock: VirtualClock, work: Promise<T>): Promise<T> {
  let done = false;
  const end = (): void => {
    done = true;
  };
  work.then(end, end);
  while (!done) {
    clock.advance(50);
    await new Promise((resolve) => setImmediate(resolve));
  }
  return work;
}

describe('the pool', () => {
  test('never tries a call again whose beginning its listener has heard', async () => {
    const heard: string[] = [];
    const listener = { started: () => {}, delta: (delta: { kind: string }) => void heard.push(delta.kind) };
    const broken = new ToyEngine('a');
    const other = new ToyEngine('b');
    broken.generate = async (asked) => {
      asked.listener?.started(4);
      asked.listener?.delta({ kind: 'text', text: 'Hel' });
      throw unavailable();
    };
    other.inflight = 1;
    const pool = poolOf([broken, other], { clock: new VirtualClock() });
    await expect(pool.generate({ ...request, listener }, never())).rejects.toMatchObject({ code: 'engine_error' });
    expect(heard).toEqual(['text']);
    expect(other.calls).toBe(0);
    broken.generate = async (asked) => {
      asked.listener?.started(4);
      throw unavailable();
    };
    await expect(pool.generate({ ...request, listener }, never())).resolves.toMatchObject({ engineId: 'b' });
  });

  test('sends a call to the engine with the fewest in flight and names it', async () => {
    const [busy, idle] = [new ToyEngine('a'), new ToyEngine('b')];
    busy.inflight = 2;
    idle.inflight = 1;
    const answer = await poolOf([busy, idle], { clock: new VirtualClock() }).generate(request, never());
    expect(answer).toMatchObject({ reply, engineId: 'b', model: 'model-b' });
  });

  test('keeps a session on one engine among equals', async () => {
    const engines = ['a', 'b', 'c'].map((id) => new ToyEngine(id));
    const pool = poolOf(engines, { clock: new VirtualClock() });
    for (let i = 0; i < 5; i++) await pool.generate(request, never());
    expect(engines.map(({ calls }) => calls).sort()).toEqual([0, 0, 5]);
  });

  test('tries a call to which no reply began elsewhere at once', async () => {
    const [gone, there] = [new ToyEngine('a', () => Promise.reject(unavailable())), new ToyEngine('b')];
    there.inflight = 10;
    const clock = new VirtualClock();
    await expect(poolOf([gone, there], { clock }).generate(request, never())).resolves.toMatchObject({ engineId: 'b' });
    expect(clock.monotonicMs()).toBe(0);
  });

  test('waits for an engine that comes back, as long as it asked for', async () => {
    const clock = new VirtualClock();
    const engine = new ToyEngine('a', async () => {
      if (clock.monotonicMs() < 3_000) throw unavailable({ retry_after_ms: 2_000 });
      return reply;
    });
    await expect(through(clock, poolOf([engine], { clock }).generate(request, never()))).resolves.toMatchObject({
      reply,
    });
    expect(engine.calls).toBe(3);
  });

  test('gives up after a minute with the reason', async () => {
    const clock = new VirtualClock();
    const engine = new ToyEngine('a', () => Promise.reject(unavailable()));
    await expect(through(clock, poolOf([engine], { clock }).generate(request, never()))).rejects.toMatchObject({
      code: 'engine_unavailable',
    });
    expect(clock.monotonicMs()).toBeLessThanOrEqual(61_000);
    expect(clock.monotonicMs()).toBeGreaterThan(50_000);
  });

  test.each(['engine_error', 'engine_rejected'] as const)('does not repeat a call that ended with %s', async (code) => {
    const engine = new ToyEngine('a', () => Promise.reject(new FloeError(code, 'no')));
    await expect(poolOf([engine], { clock: new VirtualClock() }).generate(request, never())).rejects.toMatchObject({
      code,
    });
    expect(engine.calls).toBe(1);
  });

  test('does not send a request that costs engines their connections to more than three', async () => {
    const clock = new VirtualClock();
    const engines = ['a', 'b', 'c', 'd'].map(
      (id) => new ToyEngine(id, () => Promise.reject(unavailable({ connection_lost: true }))),
    );
    await expect(through(clock, poolOf(engines, { clock }).generate(request, never()))).rejects.toMatchObject({
      code: 'engine_unavailable',
    });
    expect(engines.reduce((sum, { calls }) => sum + calls, 0)).toBe(3);
  });

  test('passes an engine over after failures in a row, and tries it again later', async () => {
    const clock = new VirtualClock();
    const [bad, good] = [
      new ToyEngine('a', () => Promise.reject(new FloeError('engine_error', 'no'))),
      new ToyEngine('b'),
    ];
    good.inflight = 5;
    const pool = poolOf([bad, good], { clock });
    for (let i = 0; i < 3; i++)
      await expect(pool.generate(request, never())).rejects.toMatchObject({ code: 'engine_error' });
    expect(pool.info().map(({ healthy }) => healthy)).toEqual([false, true]);
    await expect(pool.generate(request, never())).resolves.toMatchObject({ engineId: 'b' });
    clock.advance(5_000);
    bad.onCall = async () => reply;
    await expect(pool.generate(request, never())).resolves.toMatchObject({ engineId: 'a' });
    expect(pool.info().map(({ healthy }) => healthy)).toEqual([true, true]);
  });

  test('ends its waiting with the reason of the signal', async () => {
    const controller = new AbortController();
    const clock = new VirtualClock();
    const engine = new ToyEngine('a', async () => {
      queueMicrotask(() => controller.abort(new Error('enough')));
      throw unavailable();
    });
    await expect(poolOf([engine], { clock }).generate(request, controller.signal)).rejects.toThrow('enough');
  });

  test('without engines has none to offer', async () => {
    const pool = poolOf([], { clock: new VirtualClock() });
    await expect(pool.generate(request, never())).rejects.toMatchObject({ code: 'engine_unavailable' });
    await expect(pool.countTokens(request, never())).rejects.toMatchObject({ code: 'engine_unavailable' });
    expect(pool.maxModelLen('default')).toBeNull();
  });

  test('is not opened in part: one engine that is not there closes the others', async () => {
    const server = new ScriptedServer(({ response }) => json(response, 200, {}));
    await server.listen();
    const specs = [server.baseUrl, 'http://127.0.0.1:1'].map((base_url) => engineSpecSchema.parse({ base_url }));
    await expect(createEnginePool(specs, { clock: new VirtualClock() })).rejects.toMatchObject({
      code: 'engine_unavailable',
    });
    await server.close();
  });
});
