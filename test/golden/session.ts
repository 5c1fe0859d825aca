import {
  createEnginePools,
  createProxy,
  type EnginePools,
  type GraphOptions,
  type ModelProxy,
  type ProxySession,
  type ProxySessionSpec,
  proveSameText,
} from '@floe-rl/capture';
import {
  type Audit,
  engineSpecSchema,
  type SessionResult,
  samplingSchema,
  type Trajectory,
  taskEngineSchema,
  trajectorySchema,
} from '@floe-rl/core/schema';
import {
  checkAgainstLedger,
  type LedgerEntry,
  type LedgerReport,
  type SimOptions,
  type SimServer,
  startSim,
} from '@floe-rl/sim';
import { expect } from 'vitest';
import { buildTrajectory } from '#capture/tokens/trajectory';
import { HandJournal, WatchedClock } from '../../packages/capture/test/proxy/rig.ts';
import type { ChatRequest, ConversationTurn, DialectClient, ParsedReply } from './dialect-clients.ts';
import type { Mode } from './modes.ts';
import { SkippingClock } from './skipping-clock.ts';

/**
 * How long the proxy continues a model call whose client has disconnected. No other timer of the proxy has this delay, so the tests can
 * recognise this timer by it.
 */
const GRACE_MS = 61_000;

export type Answer = { readonly status: number; readonly body: string };

/** A proxy with a simulated engine. All results are compared with the engine's ledger, its own list of every token that it sampled. */
export class Golden {
  readonly sim: SimServer;
  readonly journal = new HandJournal();
  private readonly clock = new WatchedClock();
  readonly engines: EnginePools;
  /** The clock of the engine pools. */
  readonly engineClock: SkippingClock;
  private readonly proxy: ModelProxy;
  private sessions = 0;
  private replyCount = 0;
  private readonly replyWaiters = new Map<() => void, number>();

  private constructor(sim: SimServer, engines: EnginePools, engineClock: SkippingClock) {
    this.sim = sim;
    this.engines = engines;
    this.engineClock = engineClock;
    this.proxy = createProxy({ engines, journal: this.journal, clock: this.clock, abandonGraceMs: GRACE_MS });
  }

  static async start({ kind, sim: settings }: Mode, options: SimOptions): Promise<Golden> {
    const sim = await startSim({ ...settings, ...options });
    const clock = new SkippingClock();
    const engines = await createEnginePools([engineSpecSchema.parse({ kind, base_url: sim.url })], { clock });
    const golden = new Golden(sim, engines, clock);
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
      // The test clients send the headers of these harnesses to name their sub-agents.
      callRules: client.dialect === 'anthropic' ? 'claude_code' : 'opencode',
      ...over,
    });
    return new GoldenSession(this, client, stream, session, `${this.proxy.origin}/s/${key}`);
  }

  /** Resolves when the proxy has noticed that no client waits for a reply any longer, and has therefore set its timer of `GRACE_MS`. */
  clientGone(): Promise<void> {
    return this.clock.scheduled(GRACE_MS);
  }

  /** Resolves when clients have received `count` more replies, of whatever status. */
  replies(count: number): Promise<void> {
    return new Promise((resolve) => this.replyWaiters.set(resolve, this.replyCount + count));
  }

  /** Records that a client has received a whole reply. */
  replied(): void {
    this.replyCount++;
    for (const [resolve, wanted] of this.replyWaiters) {
      if (wanted > this.replyCount) continue;
      this.replyWaiters.delete(resolve);
      resolve();
    }
  }

  /** Returns the number of tokens that the simulated engine has sampled so far. Tokens of unfinished replies count. */
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

/** A session of one agent that uses one API dialect. When it ends, all sampled tokens are compared with the engine's ledger. */
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
    const text = await reply.text();
    this.golden.replied();
    return { status: reply.status, body: text };
  }

  /** Sends a request, checks that it succeeds, and parses the reply. */
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

  /**
   * Returns the options of a gateway for building the token graph. `closeIds` are the end-of-turn ids of the chat template. `sameText` reports
   * which pairs of different token ids were proven to have the same text.
   */
  async graphOptions(): Promise<GraphOptions> {
    const { engines } = this.golden;
    const closeIds = engines.modeOf('default', 'chat').template.close_ids;
    const names = { completionId: 'cpl_proof', sessionId: this.session.sessionId, pool: 'default' };
    const decode = (ids: Int32Array) => engines.detokenize(ids, names, AbortSignal.timeout(60_000));
    return { closeIds, sameText: await proveSameText(this.session.completions(), closeIds, decode) };
  }

  /**
   * Ends the session, builds its trajectory, and checks three invariants. The traces match the engine's ledger. Trained and excluded tokens
   * add up to the sampled tokens. Every complete reply was recorded.
   */
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
    // Only replies that the engine aborted, or into which the test inserted a fault, may lack a recorded completion.
    expect(unrecorded.filter((entry) => entry.faults.length === 0 && entry.aborted_at === null)).toEqual([]);
    const lostTokens = unrecorded.reduce((sum, entry) => sum + entry.response_ids.length, 0);
    expect(audit.tokens.sampled).toBe(sampled - lostTokens);
    return { trajectory, audit, report };
  }
}

export const user = (text: string): ConversationTurn => ({ role: 'user', text });
export const assistant = (parsed: ParsedReply): ConversationTurn => ({ role: 'assistant', parsed });
/** Returns a turn with a result for each tool call of a reply. Each result contains the call's index and arguments. */
export const results = (parsed: ParsedReply, text = 'fine'): ConversationTurn => ({
  role: 'results',
  results: parsed.calls.map((call, index) => ({ call, text: `${text} ${index}: ${call.arguments}` })),
});
