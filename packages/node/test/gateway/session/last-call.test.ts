import { readFileSync } from 'node:fs';
import type { ProxySession } from '@floe-rl/capture';
import { FloeError, MIB, type VirtualClock } from '@floe-rl/core';
import type { ExecResult } from '@floe-rl/sandbox';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ABANDON_GRACE_MS } from '../../../../capture/src/proxy/session/call.ts';
import { json, vllmReply } from '../../../../capture/test/engines/scripted-server.ts';
import { chatBody, Rig, type Sent, until, WatchedClock } from '../../../../capture/test/proxy/rig.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { bench, ENDED_WELL, settle, untilAborted } from '../session-bench.ts';

/**
 * The columns of the table in docs/outcomes.md: the title of each column, and the result of the agent's command for which the column gives
 * the outcomes. `null` stands for a command that never ends.
 */
const ENDINGS: readonly (readonly [column: string, result: ExecResult | null])[] = [
  ['Run succeeded', ENDED_WELL],
  ['Run failed', { ...ENDED_WELL, exitCode: 1 }],
  ['Killed by a limit', { ...ENDED_WELL, exitCode: null, signal: 'SIGKILL', killedBy: 'memory' }],
  ['Timed out', null],
];

type TableRow = { readonly label: string; readonly outcomes: readonly string[] };

/** Reads the table of docs/outcomes.md that has the title `title` in its first column. */
function tableOf(title: string): readonly TableRow[] {
  const lines = readFileSync('docs/outcomes.md', 'utf8').split('\n');
  const start = lines.findIndex((line) => line.startsWith(`| ${title} |`));
  const cells = (line = ''): string[] =>
    line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim());
  expect(cells(lines[start]).slice(1)).toEqual(ENDINGS.map(([column]) => column));
  const end = lines.findIndex((line, index) => index > start && !line.startsWith('|'));
  return lines.slice(start + 2, end).map((line) => {
    const [label = '', ...outcomes] = cells(line);
    return { label, outcomes: outcomes.map((outcome) => outcome.replaceAll('`', '')) };
  });
}

let rig: Rig;
let clock: WatchedClock;

beforeEach(async () => {
  clock = new WatchedClock();
  rig = await Rig.start(clock);
});
afterEach(() => rig.stop());

/** The requests of one agent to the real proxy, whose engine is a scripted server. */
class Agent {
  private readonly key: string;
  readonly session: ProxySession;
  private requests = 0;

  constructor(key: string, session: ProxySession) {
    this.key = key;
    this.session = session;
  }

  /** Sends a model call that differs from all earlier ones. */
  send(body: object = {}, headers: Record<string, string> = {}): Sent {
    const messages = [{ role: 'user', content: `request ${++this.requests}` }];
    return rig.chat(this.key, { messages, ...body }, headers);
  }

  async call(status: number, body: object = {}, headers: Record<string, string> = {}): Promise<void> {
    expect((await this.send(body, headers).reply).status).toBe(status);
  }

  answered(): Promise<void> {
    return this.call(200);
  }

  async failed(): Promise<void> {
    await withEngine(500, () => this.call(502));
  }

  title(status: number): Promise<void> {
    const schema = { type: 'object', properties: { title: { type: 'string' } } };
    return this.call(status, { response_format: { type: 'json_schema', json_schema: { name: 'title', schema } } });
  }

  subagent(status: number): Promise<void> {
    return this.call(status, {}, { 'x-claude-code-agent-id': 'a1' });
  }

  /** Sends requests that the proxy refuses: malformed JSON, a wrong type, an unknown model and an unknown path. */
  async refused(): Promise<void> {
    const path = `/s/${this.key}/v1/chat/completions`;
    expect((await rig.send({ path, raw: '{' }).reply).status).toBe(400);
    expect((await rig.send({ path, body: chatBody({ messages: 7 }) }).reply).status).toBe(400);
    await this.call(404, { model: 'gpt-x' });
    expect((await rig.send({ path: `/s/${this.key}/api/telemetry`, body: {} }).reply).status).toBe(404);
  }

  /** Disconnects the client of a call, and waits until the proxy aborts the call. */
  async disconnect(sent: Sent): Promise<void> {
    const noticed = clock.scheduled(ABANDON_GRACE_MS);
    sent.abort();
    await noticed;
    clock.advance(ABANDON_GRACE_MS);
    await until(() => this.session.runningCalls === 0);
  }
}

/** Runs `work` while the engine answers with an HTTP status and an error body. */
async function withEngine(status: number, work: () => Promise<void>, message = 'boom'): Promise<void> {
  const { onChat } = rig.server;
  rig.server.onChat = ({ response }) => json(response, status, { error: { message } });
  await work();
  rig.server.onChat = onChat;
}

/** Sends a model call that is retried because the pool has lost its only engine. */
async function startRetriedCall(agent: Agent): Promise<Sent> {
  rig.engines.deregister(null);
  const sent = agent.send();
  await until(() => agent.session.pendingFailure('main') !== null);
  return sent;
}

/** For each row of the table in docs/outcomes.md: a function that makes the agent's model calls that the row describes. */
const SCRIPTS: Readonly<Record<string, (agent: Agent) => Promise<unknown>>> = {
  'answered, also when cut off at the token limit': async (agent) => {
    await agent.answered();
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received, { finish: 'length' }));
    await agent.answered();
  },
  'failed for any reason, and a later one was answered': async (agent) => {
    await agent.failed();
    await agent.answered();
  },
  'no engine could be reached, or the pool has none': async (agent) => {
    await agent.answered();
    const sent = await startRetriedCall(agent);
    while (agent.session.runningCalls > 0) {
      clock.advance(1_000);
      await settle();
    }
    expect((await sent.reply).status).toBe(503);
  },
  'the engine failed, or returned a reply that cannot be recorded': async (agent) => {
    await agent.answered();
    await agent.failed();
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received, { responseIds: [] }));
    await agent.call(502);
  },
  'the engine broke off the reply': async (agent) => {
    await agent.answered();
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received, { finish: 'abort' }));
    await agent.call(502);
  },
  'paused engines rejected it': async (agent) => {
    await agent.answered();
    await rig.engines.pause({ mode: 'keep', whilePaused: 'reject' });
    await agent.call(429);
  },
  'still retried on engines that fail, when the run ended': async (agent) => {
    await agent.answered();
    await startRetriedCall(agent);
  },
  'its client disconnected while it was retried on engines that fail': async (agent) => {
    await agent.answered();
    await agent.disconnect(await startRetriedCall(agent));
  },
  'the reply could not be written to disk': async (agent) => {
    await agent.answered();
    rig.journal.hold = true;
    const { reply } = agent.send();
    await rig.journal.waiting();
    rig.journal.held[0]?.fail(new FloeError('store_unavailable', 'no space left'));
    expect((await reply).status).toBe(503);
  },
  'a defect of floe': async (agent) => {
    await agent.answered();
    rig.journal.hold = true;
    const { reply } = agent.send();
    await rig.journal.waiting();
    rig.journal.held[0]?.fail(new TypeError('x is undefined'));
    expect((await reply).status).toBe(500);
  },
  'longer than the context window': async (agent) => {
    await agent.answered();
    await withEngine(400, () => agent.call(400), "This model's maximum context length is 10 tokens.");
  },
  'refused at `agent.max_turns`': async (agent) => {
    await agent.answered();
    await agent.answered();
    await agent.answered();
    await agent.call(400);
  },
  'refused at `agent.max_recorded_mb`': async (agent) => {
    await agent.answered();
    await agent.call(400, { messages: [{ role: 'user', content: 'a'.repeat(MIB) }] });
  },
  'the first one was refused at `agent.max_recorded_mb`': async (agent) => {
    await agent.call(400, { messages: [{ role: 'user', content: 'a'.repeat(MIB) }] });
  },
  'rejected by the engine for another reason': async (agent) => {
    await agent.answered();
    await withEngine(400, () => agent.call(400));
  },
  'its client disconnected, and no engine had failed': async (agent) => {
    await agent.answered();
    rig.server.onChat = () => {};
    const sent = agent.send();
    await rig.server.arrived(2);
    await agent.disconnect(sent);
  },
  'answered; a later request was malformed, for an unknown model or path': async (agent) => {
    await agent.answered();
    await agent.refused();
  },
  'the engine failed; a later request was malformed, for an unknown model or path': async (agent) => {
    await agent.answered();
    await agent.failed();
    await agent.refused();
  },
  'answered; a call for a title failed later': async (agent) => {
    await agent.answered();
    await withEngine(500, () => agent.title(502));
  },
  'the engine failed; a call for a title was answered later': async (agent) => {
    await agent.answered();
    await agent.failed();
    await agent.title(200);
  },
  "answered; a sub-agent's call failed later because of the engine": async (agent) => {
    await agent.answered();
    await withEngine(500, () => agent.subagent(502));
  },
  'there was none, and no request': async () => {},
  'there was none; requests were refused': (agent) => agent.refused(),
  'the first one failed because of the engine': (agent) => agent.failed(),
};

/** Runs a session whose agent makes the calls of `script` and then ends with `result`. Resolves with the session's summary. */
async function sessionEndingWith(script: (agent: Agent) => Promise<unknown>, result: ExecResult | null) {
  let agent: Agent | null = null;
  let scriptError: unknown = null;
  let timers: VirtualClock | null = null;
  const {
    attempt,
    deps,
    clock: sessionClock,
  } = bench({
    task: {
      agent: { harness: 'shell', custom_shell: 'true', max_turns: 3, max_recorded_mb: 1, call_rules: 'claude_code' },
      budgets: { agent: 10 },
      evaluator: { strategy: 'fake' },
    },
    openSession: async (spec) => {
      const session = await rig.proxy.open(spec);
      agent = new Agent(spec.key, session);
      return session;
    },
    exec: async (signal) => {
      try {
        if (agent !== null) await script(agent);
      } catch (error) {
        scriptError = error;
      }
      if (result !== null) return result;
      timers?.advance(10_000);
      return untilAborted(signal);
    },
  });
  timers = sessionClock;
  const ended = await runSession(attempt, deps);
  // The session runner treats an error of the test's script as a failure of the sandbox. Here the error is rethrown, so that the test
  // fails.
  if (scriptError !== null) throw scriptError;
  return ended?.summary;
}

describe('the outcome of a run, by its last model call', () => {
  const rows = tableOf('Last model call of the main agent');

  it('is tested for every row of the table in docs/outcomes.md', () => {
    expect(rows.map(({ label }) => label)).toEqual(Object.keys(SCRIPTS));
  });

  const cases = rows.flatMap(({ label, outcomes }) =>
    ENDINGS.map(([ending, result], column) => ({ label, ending, result, outcome: outcomes[column] })),
  );
  it.each(cases)('is $outcome: $label / $ending', async ({ label, result, outcome }) => {
    const summary = await sessionEndingWith(SCRIPTS[label] ?? (async () => {}), result);
    expect(summary?.outcome).toBe(outcome);
    // For a failure of the infrastructure, the reward must be `null` and never 0.
    const isGraded = !['engine_error', 'infra_error', 'no_completions'].includes(outcome ?? '');
    expect(summary?.reward).toBe(isGraded ? 0 : null);
  });
});
