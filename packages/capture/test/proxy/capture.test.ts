import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type SimServer, startSim } from '@floe-rl/sim';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type Capture, type CaptureSession, startCapture } from '../../src/proxy/capture.ts';

type Message = { readonly role: string; readonly content: string };

let sim: SimServer;
let dir: string;
let capture: Capture | null = null;

beforeEach(async () => {
  sim = await startSim();
  dir = mkdtempSync(join(tmpdir(), 'floe-capture-'));
});
afterEach(async () => {
  await capture?.close();
  capture = null;
  await sim.close();
  rmSync(dir, { recursive: true });
});

async function start(): Promise<Capture> {
  capture = await startCapture({ engines: [{ base_url: sim.url }], journalDir: join(dir, 'journal') });
  return capture;
}

async function ask({ baseUrl }: CaptureSession, messages: readonly Message[]): Promise<Response> {
  const headers = { 'content-type': 'application/json' };
  return fetch(`${baseUrl}/chat/completions`, {
    ...{ method: 'POST', headers },
    body: JSON.stringify({ model: 'policy', messages }),
  });
}

describe('a capture without server and node', () => {
  it('makes one trace of a conversation, with the tokens that the engine sampled', async () => {
    const session = await (await start()).openSession({ sampling: { max_tokens: 20 } });
    // The calls that examined the engine at its registration.
    const { length: probes } = sim.ledger.entries();
    const first: Message = { role: 'user', content: 'What is 6 times 7?' };
    const reply = await ask(session, [first]);
    const { choices } = (await reply.json()) as { choices: { message: Message }[] };
    const answer = choices[0]?.message as Message;
    await ask(session, [first, answer, { role: 'user', content: 'Are you sure?' }]).then((each) => each.text());

    const traces = session.traces();
    expect(traces).toHaveLength(1);
    const [trace] = traces;
    const response = [...(trace?.ids ?? [])].slice(trace?.promptLength);
    const trained = response.filter((_, index) => trace?.lossMask[index] === 1);
    expect(trained).toEqual(
      sim.ledger
        .entries()
        .slice(probes)
        .flatMap(({ response_ids }) => [...response_ids]),
    );
    expect(trained.length).toBeGreaterThan(0);
  });

  it('refuses the requests of a closed session', async () => {
    const session = await (await start()).openSession();
    await session.close();
    const reply = await ask(session, [{ role: 'user', content: 'hi' }]);
    expect(reply.status).toBe(410);
  });

  it('rejects options without an engine, and an engine that does not answer', async () => {
    const journalDir = join(dir, 'journal');
    await expect(startCapture({ engines: [], journalDir })).rejects.toMatchObject({ code: 'schema_violation' });
    const engines = [{ base_url: 'http://127.0.0.1:1' }];
    await expect(startCapture({ engines, journalDir })).rejects.toMatchObject({
      code: expect.stringMatching(/engine/),
    });
  });
});
