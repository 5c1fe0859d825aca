import { systemClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema, taskEngineSchema } from '@floe-rl/core/schema';
import { type ScenarioInput, type SimServer, startSim } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  type ConversationTurn,
  DIALECT_CLIENTS,
  type DialectClient,
  type ParsedReply,
} from '../../../../../test/golden/dialect-clients.ts';
import type { EnginePools } from '../../../src/engines/pool/engine-pools.ts';
import { createEnginePools } from '../../../src/engines/pool/managed-engine-pools.ts';
import { createProxy, type ModelProxy } from '../../../src/proxy/http/proxy.ts';
import { buildGraph } from '../../../src/tokens/graph.ts';
import { HandJournal } from '../rig.ts';

const CALLS = 3;
const SCENARIO: ScenarioInput = {
  name: 'looking',
  rules: [
    {
      when: { assistant_turns: { max: CALLS - 1 } },
      spelling: 'letters',
      reply: [
        { think: { text: 'Where is it?', noise: 7 } },
        { text: 'I look: naïve 🚲.\n' },
        { call: { tool: 'sh', arguments: { command: 'ls  -l\n', quick: true } } },
        { call: { tool: 'sh', arguments: { command: 'pwd' } } },
      ],
    },
    { reply: [{ think: { noise: 5 } }, { text: 'Found it.' }] },
  ],
};

let sim: SimServer;
let engines: EnginePools;
let proxy: ModelProxy;
beforeAll(async () => {
  sim = await startSim({ scaleOut: true, templateMode: 'strip_thinking', scenarios: [SCENARIO] });
  engines = await createEnginePools([engineSpecSchema.parse({ base_url: sim.url })], { clock: systemClock });
  proxy = createProxy({ engines, journal: new HandJournal(), clock: systemClock });
  await proxy.listen({ host: '127.0.0.1', port: 0 });
});
afterAll(async () => {
  await proxy.close();
  await engines.close();
  await sim.close();
});

/** The changes that harnesses make to an assistant turn before they return it, keyed by a name for the test title. */
const DISTORTIONS: Record<string, (parsed: ParsedReply) => ParsedReply> = {
  nothing: (parsed) => parsed,
  'dropped thinking': (parsed) => ({ ...parsed, reasoning: '' }),
  'arguments serialized again': ({ calls, ...parsed }) => ({
    ...parsed,
    calls: calls.map((call) => ({
      ...call,
      arguments: JSON.stringify(Object.fromEntries(Object.entries(JSON.parse(call.arguments)).reverse()), null, 2),
    })),
  }),
  'trimmed text': (parsed) => ({ ...parsed, text: parsed.text.trim(), reasoning: parsed.reasoning.trim() }),
  'ids of its own': ({ calls, ...parsed }) => ({
    ...parsed,
    calls: calls.map((call, index) => ({ ...call, id: `own_${index}` })),
  }),
};

let sessions = 0;

async function run(
  client: DialectClient,
  stream: boolean,
  distort: (parsed: ParsedReply) => ParsedReply,
  last: 'tools' | 'user',
) {
  const key = `key-${++sessions}-0123456789012345678901234567890`;
  const session = await proxy.open({
    sessionId: `ses_${sessions}`,
    attempt: 0,
    sampleIndex: sessions,
    key,
    socketPath: null,
    modelName: 'policy',
    sampling: samplingSchema.parse({}),
    engine: taskEngineSchema.parse({ mode: 'tokens', thinking_retention: last === 'user' ? 'all' : 'template' }),
  });
  const turns: ConversationTurn[] = [{ role: 'user', text: 'Where is it?' }];
  for (let call = 0; call <= CALLS + (last === 'user' ? 1 : 0); call++) {
    const { path, body } = client.write({ system: 'Be brief.', turns, tools: ['sh'], stream });
    const reply = await fetch(`${proxy.origin}/s/${key}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    expect(reply.status).toBe(200);
    const parsed = distort(client.read(await reply.text(), stream));
    turns.push({ role: 'assistant', parsed });
    if (parsed.calls.length === 0) turns.push({ role: 'user', text: 'Are you sure?' });
    else
      turns.push({ role: 'results', results: parsed.calls.map((each) => ({ call: each, text: 'here <|im_end|>' })) });
  }
  await session.close();
  return session.completions();
}

describe.each(
  DIALECT_CLIENTS.flatMap((client) => [true, false].map((stream) => ({ client, name: client.dialect, stream }))),
)('in tokens mode, $name with stream $stream', ({ client, stream }) => {
  it.each(Object.keys(DISTORTIONS))('keeps every prompt exact after this change by the harness: %s', async (name) => {
    for (const last of ['tools', 'user'] as const) {
      const completions = await run(client, stream, DISTORTIONS[name] as (parsed: ParsedReply) => ParsedReply, last);
      const links = buildGraph(completions).nodes.map(({ link }) => link);
      expect(links).toEqual(['root', ...Array<string>(completions.length - 1).fill('exact')]);
      const [, ...later] = completions;
      expect(later.map(({ capture }) => capture.spliced_onto)).toEqual(
        completions.slice(0, -1).map(({ completionId }) => completionId),
      );
    }
  });

  it('renders a turn with rewritten arguments instead of continuing it', async () => {
    const repaired = DISTORTIONS['arguments serialized again'] as (parsed: ParsedReply) => ParsedReply;
    const completions = await run(
      client,
      stream,
      (parsed) =>
        repaired({ ...parsed, calls: parsed.calls.map((call) => ({ ...call, arguments: '{"command":"rm"}' })) }),
      'tools',
    );
    expect(completions.map(({ capture }) => capture.rendered_because)).toEqual([
      'first',
      'rewritten',
      'rewritten',
      'rewritten',
    ]);
  });
});
