// Runs a simulated engine as a separate process and records when it sent the first ids of each streamed reply. Argument: the time of a token in
// ms.
import { subscribe } from 'node:diagnostics_channel';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { systemClock } from '@floe-rl/core';
import { type ScenarioInput, startSim } from '@floe-rl/sim';
import { serveBench } from '../child.ts';
import { REPLIES } from './replies.ts';

const [, , tokenDelayMs = '0'] = process.argv;
const DERENDER = '/v1/chat/completions/derender';

const scenarios = Object.entries(REPLIES).map(([name, { reply }]) => ({
  name,
  match: { contains: name },
  rules: [{ reply }],
})) as unknown as ScenarioInput[];
const sim = await startSim({
  scaleOut: true,
  scenarios,
  tokenDelayMs: Number(tokenDelayMs),
});

/** Unix time in ms at which the first chunk with ids of each streamed reply was sent, by the id of its session. */
const firstIdsMs = new Map<string, number>();
let parses = 0;
let parsedBytes = 0;

/** Records the first write of a streamed reply that contains ids. */
function watch(request: IncomingMessage, response: ServerResponse): void {
  const session = String(request.headers['x-session-id'] ?? '');
  const { write } = response;
  response.write = function (this: ServerResponse, ...args: unknown[]): boolean {
    const hasIds = /"token_ids":\[\d/.test(String(args[0]));
    if (hasIds && !firstIdsMs.has(session)) firstIdsMs.set(session, systemClock.nowMs());
    return Reflect.apply(write, this, args);
  } as typeof response.write;
}

subscribe('http.server.request.start', (message) => {
  const { request, response } = message as { request: IncomingMessage; response: ServerResponse };
  if (request.url === DERENDER) {
    parses++;
    parsedBytes += Number(request.headers['content-length'] ?? 0);
  } else if (request.method === 'POST') {
    watch(request, response);
  }
});

serveBench(
  { url: sim.url },
  {
    /** Returns what was recorded since the last call. */
    take() {
      const taken = { firstIdsMs: Object.fromEntries(firstIdsMs), parses, parsedBytes };
      firstIdsMs.clear();
      parses = 0;
      parsedBytes = 0;
      return taken;
    },
  },
  () => sim.close(),
);
