// Starts floe's proxy and journal with the simulated engine, and compares what they recorded with the ledger, the engine's own list of
// sampled tokens.
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  attemptKey,
  buildTrajectory,
  CaptureJournal,
  type Completion,
  createEnginePools,
  createProxy,
  indexSegment,
  type ProxyDeps,
  type ProxySession,
  readRecords,
} from '@floe-rl/capture';
import { systemClock } from '@floe-rl/core';
import {
  engineSpecSchema,
  linkKindSchema,
  samplingSchema,
  type Trajectory,
  taskEngineSchema,
  trajectorySchema,
} from '@floe-rl/core/schema';
import { checkAgainstLedger, type LedgerEntry, type SimConfigInput, startSim } from '@floe-rl/sim';
import { expect } from 'vitest';
import { MODE_SIM } from './mode.ts';
import { SCENARIOS } from './scenarios.ts';

/**
 * Context window of the simulated engine in tokens. A single long message of one test exceeds it; every other conversation of this suite
 * fits.
 */
const MAX_MODEL_LEN = 4096;

/** Attempt number of every session that this suite opens. */
const ATTEMPT = 0;

let sessions = 0;

export type FloeOptions = {
  /** Settings of the simulated engine that replace the defaults of this suite. */
  readonly sim?: SimConfigInput;
  /** Settings of the proxy, in addition to its defaults. */
  readonly proxy?: Pick<ProxyDeps, 'heartbeatMs' | 'abandonGraceMs'>;
};

async function startParts(options: FloeOptions) {
  const dir = await mkdtemp(join(tmpdir(), 'floe-conformance-'));
  const sim = await startSim({ scenarios: SCENARIOS, maxModelLen: MAX_MODEL_LEN, ...MODE_SIM, ...options.sim });
  const engines = await createEnginePools([engineSpecSchema.parse({ base_url: sim.url })], { clock: systemClock });
  const journal = await CaptureJournal.open(dir);
  const proxy = createProxy({ engines, journal, clock: systemClock, ...options.proxy });
  await proxy.listen({ host: '127.0.0.1', port: 0 });
  return { dir, sim, engines, journal, proxy };
}

type Parts = Awaited<ReturnType<typeof startParts>>;

/** Starts the simulated engine and the proxy on free ports, and opens a first session. */
export async function startFloe(options: FloeOptions = {}): Promise<Floe> {
  const parts = await startParts(options);
  const first = newIdentity();
  return new Floe(parts, first, await openSession(parts, first));
}

type Identity = { readonly sessionId: string; readonly key: string };

function newIdentity(): Identity {
  const number = ++sessions;
  return { sessionId: `ses_${number}`, key: `key-${String(number).padStart(40, '0')}` };
}

function openSession({ proxy }: Parts, { sessionId, key }: Identity): Promise<ProxySession> {
  return proxy.open({
    sessionId,
    attempt: ATTEMPT,
    sampleIndex: 0,
    key,
    socketPath: null,
    modelName: 'policy',
    sampling: samplingSchema.parse({}),
    engine: taskEngineSchema.parse({}),
  });
}

/** The running proxy and simulated engine, with one open session at a time. */
export class Floe {
  readonly sim: Parts['sim'];
  readonly engines: Parts['engines'];
  readonly proxy: Parts['proxy'];
  session: ProxySession;
  private readonly parts: Parts;
  private identity: Identity;

  constructor(parts: Parts, identity: Identity, session: ProxySession) {
    this.parts = parts;
    this.sim = parts.sim;
    this.engines = parts.engines;
    this.proxy = parts.proxy;
    this.identity = identity;
    this.session = session;
  }

  get key(): string {
    return this.identity.key;
  }

  /** The URL under which an agent sends model calls in the current session; floe sets it in the agent's environment. */
  get baseUrl(): string {
    return `${this.proxy.origin}/s/${this.key}`;
  }

  /** Ends the current session, checks it as `check` does, and opens a new one. */
  async renew(): Promise<void> {
    await this.check();
    this.identity = newIdentity();
    this.session = await openSession(this.parts, this.identity);
  }

  /** Returns the ledger entries of all replies that the engine sampled in the current session, in the order of the ledger. */
  ledger(): LedgerEntry[] {
    return this.sim.ledger.entries({ sessionId: this.identity.sessionId });
  }

  /** The last completion that the proxy recorded in the current session. Throws when there is none. */
  get last(): Completion {
    return defined(this.session.completions().at(-1));
  }

  /**
   * Ends the current session and compares three things with the engine's ledger: the recorded completions, the journal on disk and the
   * trajectory. Returns the trajectory. A second call repeats the comparison.
   */
  async check(): Promise<Trajectory> {
    await this.session.close();
    const sampled = this.ledger().filter((entry) => entry.aborted_at === null);
    const completions = this.session.completions();
    const recorded = byId(completions.map(columnsOf));
    expect(recorded).toEqual(byId(sampled.map(ledgerColumns)));
    expect(byId((await this.readJournal()).map(columnsOf))).toEqual(recorded);
    // Constrained replies are trained here, so that their tokens are compared with the ledger, too.
    const spec = { strategy: 'prefix_merging', config: { constrained: 'train' } };
    const { json } = buildTrajectory({ spec, completions, status: 'COMPLETED', reward: 1, error: null, metadata: {} });
    const trajectory = trajectorySchema.parse(JSON.parse(json.toString()));
    const result = { session_id: this.identity.sessionId, trajectory };
    expect(checkAgainstLedger([result], this.ledger(), 'processed').mismatches).toEqual([]);
    return trajectory;
  }

  /**
   * Ends and checks the current session as `check` does. Also checks that its turns became one trace, and that every turn was sampled in
   * exactly the context in which it is trained.
   */
  async checkOneTrace(): Promise<void> {
    const { traces, audit } = await this.check();
    expect(traces).toHaveLength(1);
    const links = linkKindSchema.array().parse(defined(traces[0]).metadata.links);
    expect(links.slice(1).filter((link) => link !== 'exact')).toEqual([]);
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
  }

  /** Reads the completions of the current session from the journal's files on disk. */
  private async readJournal(): Promise<readonly Completion[]> {
    const { dir } = this.parts;
    const names = (await readdir(dir)).sort();
    const segments = await Promise.all(names.map((name) => indexSegment(join(dir, name))));
    const key = attemptKey(this.identity.sessionId, ATTEMPT);
    const { completions, undecodable } = await readRecords(
      segments.flatMap(({ locations }) => locations.get(key) ?? []),
    );
    expect(undecodable).toBe(0);
    return completions;
  }

  async close(): Promise<void> {
    await this.check();
    await this.proxy.close();
    await this.engines.close();
    await this.parts.journal.close();
    await this.sim.close();
    await rm(this.parts.dir, { recursive: true, force: true });
  }
}

/** Returns `value`. Throws when it is `undefined` or `null`, which fails the test. */
export function defined<T>(value: T | undefined | null): T {
  if (value === undefined || value === null) throw new Error(`a value is ${value}`);
  return value;
}

type Columns = Readonly<Record<string, unknown>> & { readonly id: string };

/**
 * Returns the recorded fields of each completion, keyed by completion id. The comparison then ignores order, because the ledger is ordered
 * by the end of sampling.
 */
function byId(columns: readonly Columns[]): Record<string, unknown> {
  return Object.fromEntries(columns.map(({ id, ...rest }) => [id, rest]));
}

function columnsOf({ completionId, promptIds, responseIds, responseLogprobs, versionSpans }: Completion): Columns {
  return {
    id: completionId,
    promptIds: [...promptIds],
    responseIds: [...responseIds],
    logprobs: [...responseLogprobs],
    versionSpans: [...versionSpans],
  };
}

function ledgerColumns(entry: LedgerEntry): Columns {
  return {
    id: entry.request_id,
    promptIds: entry.prompt_ids,
    responseIds: entry.response_ids,
    logprobs: entry.processed_logprobs.map(Math.fround),
    versionSpans: entry.version_spans,
  };
}

/** A PNG image of one red pixel, in base64. */
export const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';

/** A message that is longer than the engine's context window. */
export const TOO_LONG = 'word '.repeat(2 * MAX_MODEL_LEN);
