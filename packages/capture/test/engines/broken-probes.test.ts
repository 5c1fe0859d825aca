import { createServer, request, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { FloeError, systemClock } from '@floe-rl/core';
import { type EngineInfo, type EngineSpec, engineSpecSchema } from '@floe-rl/core/schema';
import { type SimConfigInput, type SimServer, startSim } from '@floe-rl/sim';
import { afterEach, describe, expect, it } from 'vitest';
import { createEngine } from '../../src/engines/engine-kinds.ts';
import { hasAnswered } from '../../src/engines/engine-server.ts';

type Breaking = 'in its body' | 'before its head';

/** A proxy in front of an engine server. It forwards every request and truncates the reply to one of them. */
class Breaker {
  readonly server: Server;
  seen = 0;
  /** Number, counted from 1, of the request whose reply is truncated; with 0 no reply is truncated. */
  breaks = 0;
  how: Breaking = 'in its body';

  constructor(target: string) {
    this.server = createServer((incoming, outgoing) => {
      const broken = ++this.seen === this.breaks;
      const { method, url, headers } = incoming;
      const onward = request(new URL(url ?? '/', target), { method, headers }, (reply) => {
        const chunks: Buffer[] = [];
        reply.on('data', (chunk: Buffer) => chunks.push(chunk));
        reply.on('end', () => {
          const body = Buffer.concat(chunks);
          if (broken && this.how === 'before its head') {
            outgoing.destroy();
            return;
          }
          outgoing.writeHead(reply.statusCode ?? 500, {
            'content-type': 'application/json',
            'content-length': body.length + (broken ? 1 : 0),
          });
          if (broken) outgoing.write(body, () => outgoing.destroy());
          else outgoing.end(body);
        });
      });
      incoming.pipe(onward);
    });
  }

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.server.listen(0, '127.0.0.1', resolve));
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  close(): void {
    this.server.closeAllConnections();
    this.server.close();
  }
}

let sim: SimServer;
let breaker: Breaker;
afterEach(async () => {
  breaker.close();
  await sim.close();
});

/**
 * Connects an engine and returns its properties; `null` when connecting failed. The policy version is left out, because it is read at every
 * call and not when the engine is probed. Notes about the measurement of log-probabilities are left out, because a vLLM server is connected
 * without this measurement when it fails.
 */
async function probedInfo(spec: EngineSpec): Promise<EngineInfo | null> {
  breaker.seen = 0;
  try {
    const engine = await createEngine(spec, { clock: systemClock });
    const info = engine.info();
    await engine.close();
    return {
      ...info,
      policy_version: null,
      capabilities: {
        ...info.capabilities,
        notes: info.capabilities.notes.filter((note) => !note.includes('logprobs_mode')),
      },
    };
  } catch (error) {
    if (FloeError.is(error) && !hasAnswered(error)) return null;
    throw error;
  }
}

const faces: [string, EngineSpec['kind'], SimConfigInput][] = [
  ['vLLM', 'vllm', { scaleOut: true }],
  ['a strict vLLM', 'vllm', { scaleOut: true, strict: true }],
  ['SGLang', 'sglang', { face: 'sglang', sglangAge: 'token_ids' }],
];

describe.each(faces)('probing %s', (_, kind, config) => {
  it.each<Breaking>(['in its body', 'before its head'])(
    'finds the same properties, or fails, when a reply is truncated %s',
    async (how) => {
      sim = await startSim(config);
      breaker = new Breaker(sim.url);
      breaker.how = how;
      const spec = engineSpecSchema.parse({ kind, base_url: await breaker.listen() });
      breaker.breaks = 0;
      const whole = await probedInfo(spec);
      expect(whole).not.toBeNull();
      const count = breaker.seen;
      expect(count).toBeGreaterThan(5);
      let failures = 0;
      for (breaker.breaks = 1; breaker.breaks <= count; breaker.breaks++) {
        const actual = await probedInfo(spec);
        if (actual === null) failures++;
        else expect(actual, `request ${breaker.breaks} of ${count}`).toEqual(whole);
      }
      expect(failures).toBeGreaterThan(count / 2);
    },
  );
});
