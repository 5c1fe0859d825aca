import { expect } from 'vitest';
import { systemClock } from '../../src/core/clock.ts';
import type { EnginePools } from '../../src/engines/pool/engine-pools.ts';
import { createEnginePools } from '../../src/engines/pool/managed-engine-pools.ts';
import { createProxy, type ModelProxy } from '../../src/proxy/http/proxy.ts';
import type { ProxySession, ProxySessionSpec } from '../../src/proxy/session/session.ts';
import {
  type Audit,
  engineSpecSchema,
  type SessionResult,
  samplingSchema,
  type Trajectory,
  taskEngineSchema,
  trajectorySchema,
} from '../../src/schema/index.ts';
import {
  checkAgainstLedger,
  type LedgerEntry,
  type LedgerReport,
  type SimOptions,
  type SimServer,
  startSim,
} from '../../src/sim/index.ts';
import { proveSameText } from '../../src/tokens/drift-proof.ts';
import type { GraphOptions } from '../../src/tokens/graph.ts';
import { buildTrajectory } from '../../src/tokens/trajectory.ts';
import { HandJournal, WatchedClock } from '../proxy/rig.ts';
import type { ChatRequest, ConversationTurn, DialectClient, ParsedReply } from './dialect-clients.ts';
import type { Mode } from './modes.ts';

/**
 * How long a model call continues when its client has disconnected. No other timer of the proxy has this delay, so that the tests can
 * recognise it.
 */
const GRACE_MS = 61_000;

export type Answer = { readonly status: number; readonly body: string };

/** A proxy with a simulated engine, against whose ledger all results are checked. */
export class Golden {
  readonly sim: SimServer;
  readonly journal = new HandJournal();
  private readonly clock = new WatchedClock();
  readonly engines: EnginePools;
  private readonly proxy: ModelProxy;
  private sessions = 0;

  private constructor(sim: SimServer, engines: EnginePools) {
    this.sim = sim;
    this.engines = engines;
    this.proxy = createProxy({ engines, journal: this.journal, clock: this.clock, abandonGraceMs: GRACE_MS });
  }

  static async start({ kind, sim: settings }: Mode, options: SimOptions): Promise<Golden> {
    const sim = await startSim({ ...settings, ...options });
    const engines = await createEnginePools([engineSpecSchema.parse({ kind, base_url: sim.url })], {
      clock: systemClock,
    });
    const golden = new Golden(sim, engines);
    await golden.proxy.listen({ host: '127.0.0.1', port: 0 });
    return golden;
  }

  async open(client: DialectClient, stream: boolean, over: Partial<ProxySessionSpec> = {}): Promise<GoldenSession> {
    const number = ++this.sessions;
    const key = `key-${number}-0123456789012345678901234567890`;
    const session = await this.proxy.open({
      sessionId: `ses_${client.dialect}_${number}`,
      attempt: 0,
      sampleIndex: number,
      key,
      socketPath: null,
      modelName: 'policy',
      sampling: samplingSchema.parse({}),
      engine: taskEngineSchema.parse({}),
      ...over,
    });
    return new GoldenSession(this, client, stream, session, `${this.proxy.origin}/s/${key}`);
  }

  /** Resolves when the proxy has noticed that no client waits for a reply any longer. */
  clientGone(): Promise<void> {
    return this.clock.scheduled(GRACE_MS);
  }

  /** Returns the number of tokens that the engine has sampled so far, including those of unfinished replies. */
  async sampledTokens(): Promise<number> {
    const text = await (await fetch(`${this.sim.url}/metrics`)).text();
    const samples = text.matchAll(/^\w+:generation_tokens_total(?:\{[^}]*\})? (\d+)/gm);
    return [...samples].reduce((sum, sample) => sum + Number(sample[1]), 0);
  }

  async close(): Promise<void> {
    await this.proxy.close();
    await this.engines.close();
    await this.sim.close();
  }
}

export type Judged = {
  readonly trajectory: Trajectory;
  readonly audit: Audit;
  readonly report: LedgerReport;
};

/** A session of one agent that speaks one dialect. When it ends, all sampled tokens are compared with the engine's ledger. */
export class GoldenSession {
  readonly session: ProxySession;
  private readonly golden: Golden;
  private readonly client: DialectClient;
  private readonly stream: boolean;
  private readonly base: string;

  constructor(golden: Golden, client: DialectClient, stream: boolean, session: ProxySession, base: string) {
    this.golden = golden;
    this.client = client;
    this.stream = stream;
    this.session = session;
    this.base = base;
  }

  async post(
    ask: Omit<ChatRequest, 'stream'>,
    headers: Record<string, string> = {},
    signal?: AbortSignal,
  ): Promise<Answer> {
    const { path, body } = this.client.write({ ...ask, stream: this.stream });
    const reply = await fetch(this.base + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
      ...(signal === undefined ? {} : { signal }),
    });
    return { status: reply.status, body: await reply.text() };
  }

  /** Sends a request and parses the reply. */
  async say(ask: Omit<ChatRequest, 'stream'>, headers: Record<string, string> = {}): Promise<ParsedReply> {
    const answer = await this.post(ask, headers);
    expect(answer, answer.body).toMatchObject({ status: 200 });
    return this.read(answer);
  }

  read({ body }: Answer): ParsedReply {
    return this.client.read(body, this.stream);
  }

  ledger(): LedgerEntry[] {
    return this.golden.sim.ledger.entries().filter((entry) => entry.session_id === this.session.sessionId);
  }

  /** Returns the options with which a gateway builds the graph: the close ids of the template, and the proofs of equal text. */
  async graphOptions(): Promise<GraphOptions> {
    const { engines } = this.golden;
    const closeIds = engines.modeOf('default', 'chat').template.close_ids;
    const names = { completionId: 'cpl_proof', sessionId: this.session.sessionId, pool: 'default' };
    const decode = (ids: Int32Array) => engines.detokenize(ids, names, AbortSignal.timeout(60_000));
    return { closeIds, sameText: await proveSameText(this.session.completions(), closeIds, decode) };
  }

  /** Ends the session, and checks that the traces equal the engine's ledger and that the audit's sums hold, whatever the agent did. */
  async judge(config: Record<string, unknown> = {}): Promise<Judged> {
    await this.session.close();
    const { json, audit } = buildTrajectory({
      spec: { strategy: 'prefix_merging', config },
      completions: this.session.completions(),
      status: 'COMPLETED',
      reward: 1,
      error: null,
      metadata: {},
      graphOptions: await this.graphOptions(),
    });
    const trajectory = trajectorySchema.parse(JSON.parse(json.toString()));
    const result = { session_id: this.session.sessionId, trajectory } as SessionResult;
    const report = checkAgainstLedger([result], this.ledger(), 'processed');
    expect(report.mismatches).toEqual([]);
    const excluded = Object.values(audit.tokens.excluded).reduce((sum, count) => sum + count, 0);
    expect(audit.tokens.trained + excluded).toBe(audit.tokens.sampled);
    const entries = this.ledger();
    const sampled = entries.reduce((sum, entry) => sum + entry.response_ids.length, 0);
    const recorded = new Set(this.session.completions().map(({ completionId }) => completionId));
    const unrecorded = entries.filter((entry) => !recorded.has(entry.request_id));
    // Only replies that the engine aborted, or that the proxy refused because of a fault, may be missing from the records.
    expect(unrecorded.filter((entry) => entry.faults.length === 0 && entry.aborted_at === null)).toEqual([]);
    const lostTokens = unrecorded.reduce((sum, entry) => sum + entry.response_ids.length, 0);
    expect(audit.tokens.sampled).toBe(sampled - lostTokens);
    return { trajectory, audit, report };
  }
}

export const user = (text: string): ConversationTurn => ({ role: 'user', text });
export const assistant = (parsed: ParsedReply): ConversationTurn => ({ role: 'assistant', parsed });
/** Makes results for all calls of a turn. Each contains the call's index and arguments. */
export const results = (parsed: ParsedReply, text = 'fine'): ConversationTurn => ({
  role: 'results',
  results: parsed.calls.map((call, index) => ({ call, text: `${text} ${index}: ${call.arguments}` })),
});
