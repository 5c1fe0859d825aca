import type { TaskRequestInput } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { oneCall, startTestStack, type TestStack } from '../../../test/integration/stack.ts';
import { createLogger } from '../src/log.ts';
import { attributesOf, type CollectedSpan, Collector } from './collector.ts';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const SUBMITTER = 'b7ad6b7169203331';
const VARIABLE = 'OTEL_EXPORTER_OTLP_ENDPOINT';

const shell = (custom_shell: string, rest: Partial<TaskRequestInput> = {}): TaskRequestInput => ({
  instruction: 'Say something.',
  agent: { harness: 'shell', custom_shell },
  evaluator: { strategy: 'session_completed' },
  max_attempts: 1,
  ...rest,
});

describe('a traced session', () => {
  let stack: TestStack;
  let collector: Collector;
  const logged: string[] = [];
  beforeAll(async () => {
    collector = await Collector.start();
    const before = process.env[VARIABLE];
    process.env[VARIABLE] = collector.url;
    try {
      stack = await startTestStack({ log: createLogger('floe', 'debug', { write: (line) => logged.push(line) }) });
    } finally {
      if (before === undefined) delete process.env[VARIABLE];
      else process.env[VARIABLE] = before;
    }
  });
  afterAll(async () => {
    await stack.close();
    await collector.stop();
  });

  it('forms one trace from the submitter to its model calls', async () => {
    const traceparent = `00-${TRACE}-${SUBMITTER}-01`;
    const [result] = await stack.run(shell(oneCall('hello'), { traceparent, policy_version: 'v7' }));
    const all = await collector.until((spans) => spans.some(({ name }) => name === 'session_attempt'));
    const spans = all.filter(({ traceId }) => traceId === TRACE);
    const byId = new Map(spans.map((span) => [span.spanId, span]));
    const pathOf = (span: CollectedSpan): string => {
      const above = byId.get(span.parentSpanId ?? '');
      return above === undefined ? `${span.parentSpanId}/${span.name}` : `${pathOf(above)}/${span.name}`;
    };
    const top = `${SUBMITTER}/session_attempt`;
    expect(spans.map(pathOf).sort()).toEqual(
      [
        top,
        `${top}/init`,
        `${top}/ready`,
        `${top}/running`,
        `${top}/running/model_call`,
        `${top}/postrun_queue`,
        `${top}/postrun`,
        `${top}/postrun/eval`,
        `${top}/postrun/build`,
        `${top}/postrun/build`,
        `${top}/deliver`,
      ].sort(),
    );
    const named = (name: string) => attributesOf(spans.find((span) => span.name === name) ?? { attributes: [] });
    expect(named('session_attempt')).toMatchObject({
      task_id: result?.task_id,
      session_id: result?.session_id,
      attempt: 1,
      epoch: 1,
      node_id: 'test',
      harness: 'shell',
      policy_version: 'v7',
      outcome: 'completed',
    });
    expect(named('model_call')).toMatchObject({
      session_id: result?.session_id,
      dialect: 'openai_chat',
      call_kind: 'main',
      finish_reason: 'stop',
    });
    for (const span of spans) {
      expect(BigInt(span.endTimeUnixNano) >= BigInt(span.startTimeUnixNano), span.name).toBe(true);
      const above = byId.get(span.parentSpanId ?? '');
      if (above !== undefined) expect(BigInt(span.startTimeUnixNano) >= BigInt(above.startTimeUnixNano)).toBe(true);
    }
  });

  it('records no span when the submitter does not sample its trace, and forms a new trace when the submitter has none', async () => {
    const unsampled = 'e'.repeat(32);
    await stack.run(shell(oneCall('hello'), { traceparent: `00-${unsampled}-${SUBMITTER}-00` }));
    const [result] = await stack.run(shell(oneCall('hello')));
    const attempts = await collector.until((spans) =>
      spans.some((span) => span.name === 'session_attempt' && attributesOf(span).session_id === result?.session_id),
    );
    expect(attempts.filter(({ traceId }) => traceId === unsampled)).toEqual([]);
  });

  it('is counted in the metrics of its node', async () => {
    await stack.run(shell('sleep 600', { budgets: { agent: 0.3 } }));
    const read = async () => (await fetch(`${stack.node.controlUrl}/metrics`)).text();
    await expect
      .poll(read, { timeout: 90_000, interval: 20 })
      .toMatch(/floe_sessions_total\{outcome="agent_timeout"\} 1/);
    const text = await read();
    const value = (line: RegExp): number => Number(new RegExp(`^${line.source} (\\S+)$`, 'm').exec(text)?.at(-1));
    expect(value(/floe_llm_requests_total\{dialect="openai_chat",engine="[^"]+",code="ok"\}/)).toBe(3);
    const seconds = value(/floe_llm_seconds_sum\{dialect="openai_chat",engine="[^"]+"\}/);
    const added = value(/floe_llm_added_seconds_sum\{dialect="openai_chat"\}/);
    expect(added).toBeGreaterThan(0);
    expect(seconds).toBeGreaterThanOrEqual(added);
    expect(value(/floe_journal_sync_seconds_count/)).toBe(3);
    expect(value(/floe_journal_bytes/)).toBeGreaterThan(0);
    expect(value(/floe_sandbox_start_seconds_count\{runtime="local"\}/)).toBe(4);
    expect(value(/floe_sandbox_kills_total\{runtime="local",reason="deadline"\}/)).toBe(1);
    expect(value(/floe_traces_per_session_count/)).toBe(4);
    expect(value(/floe_traces_per_session_sum/)).toBe(3);
    expect(value(/floe_staleness_versions_sum/)).toBe(3);
    for (const stage of ['queued', 'ready', 'postrun'])
      expect(value(new RegExp(`floe_queue_wait_seconds_count\\{stage="${stage}"\\}`)), stage).toBe(4);
  });

  it('writes no field twice into a line of the log of its node or server', async () => {
    await stack.run(shell(oneCall('hello')));
    await stack.run(shell('sleep 600', { budgets: { agent: 0.3 } }));
    const messages = logged.map((line) => JSON.parse(line).msg);
    expect(messages).toEqual(expect.arrayContaining(['node registered', 'session moved']));
    // JSON.parse keeps only one of two fields with the same name. A line with such fields therefore differs after it has been parsed and
    // serialized.
    expect(logged.filter((line) => `${JSON.stringify(JSON.parse(line))}\n` !== line)).toEqual([]);
  });
});
