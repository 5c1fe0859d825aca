// The real proxy and journal in front of the simulated engine, and the judge of what was recorded: the engine's own ledger.
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import { systemClock } from '../../src/core/clock.ts';
import { createEnginePools } from '../../src/engines/pool/managed-engine-pools.ts';
import { createProxy } from '../../src/proxy/http/proxy.ts';
import { CaptureJournal } from '../../src/proxy/journal/journal.ts';
import { attemptKey, indexSegment, readRecords } from '../../src/proxy/journal/journal-index.ts';
import { engineSpecSchema, samplingSchema, taskEngineSchema, trajectorySchema } from '../../src/schema/index.ts';
import { checkAgainstLedger, startSim } from '../../src/sim/index.ts';
import { buildTrajectory } from '../../src/tokens/trajectory.ts';
import { SCENARIOS } from './scenarios.mjs';

/** Small enough that a test can overflow it with one message, large enough for every conversation of the suite. */
const MAX_MODEL_LEN = 4096;

/** The attempt that every session here is. */
const ATTEMPT = 0;

let sessions = 0;

/** Starts engine and proxy on ports of their own. `proxy`: further settings of the proxy; `sim`: of the engine. */
export async function startFloe({ sim: simOptions = {}, proxy: proxyOptions = {} } = {}) {
  const dir = await mkdtemp(join(tmpdir(), 'floe-conformance-'));
  const sim = await startSim({ scenarios: SCENARIOS, maxModelLen: MAX_MODEL_LEN, ...simOptions });
  const engines = await createEnginePools([engineSpecSchema.parse({ base_url: sim.url })], { clock: systemClock });
  const journal = await CaptureJournal.open(dir);
  const proxy = createProxy({ engines, journal, clock: systemClock, ...proxyOptions });
  await proxy.listen({ host: '127.0.0.1', port: 0 });
  const floe = new Floe({ dir, sim, engines, journal, proxy });
  await floe.renew();
  return floe;
}

/** One session at a time: `renew` closes it, holds what was recorded against the ledger, and opens the next one. */
class Floe {
  constructor(parts) {
    Object.assign(this, parts);
    this.session = null;
  }

  /** What an agent finds in its environment. */
  get baseUrl() {
    return `${this.proxy.origin}/s/${this.key}`;
  }

  async renew(over = {}) {
    if (this.session !== null) await this.check();
    const number = ++sessions;
    this.sessionId = `ses_${number}`;
    this.key = `key-${String(number).padStart(40, '0')}`;
    this.session = await this.proxy.open({
      sessionId: this.sessionId,
      attempt: ATTEMPT,
      sampleIndex: 0,
      key: this.key,
      socketPath: null,
      modelName: 'policy',
      sampling: samplingSchema.parse({}),
      engine: taskEngineSchema.parse({}),
      ...over,
    });
  }

  /** Everything that the engine sampled for this session, in order. */
  ledger() {
    return this.sim.ledger.entries({ sessionId: this.sessionId });
  }

  get last() {
    return this.session.completions().at(-1);
  }

  /**
   * Ends the session and compares what was recorded, what is on the disk and what would be trained with the ledger. Returns the
   * trajectory. May be called twice.
   */
  async check() {
    await this.session.close();
    const sampled = this.ledger().filter((entry) => entry.aborted_at === null);
    const completions = this.session.completions();
    const byId = (columns) => Object.fromEntries(columns.map(({ id, ...rest }) => [id, rest]));
    const recorded = byId(completions.map(columnsOf));
    expect(recorded).toEqual(byId(sampled.map(ledgerColumns)));
    expect(byId((await this.readJournal()).map(columnsOf))).toEqual(recorded);
    const spec = { strategy: 'prefix_merging', config: {} };
    const outcome = { status: 'COMPLETED', reward: 1, error: null, metadata: {} };
    const { json } = buildTrajectory({ spec, completions, ...outcome });
    const trajectory = trajectorySchema.parse(JSON.parse(json.toString()));
    const report = checkAgainstLedger([{ session_id: this.sessionId, trajectory }], this.ledger(), 'processed');
    expect(report.mismatches).toEqual([]);
    return trajectory;
  }

  /** Ends the session; its turns must have become one trace, each sampled in exactly the context that it is trained in. */
  async checkOneTrace() {
    const { traces, audit } = await this.check();
    expect(traces).toHaveLength(1);
    expect(traces[0].metadata.links.slice(1).filter((link) => link !== 'exact')).toEqual([]);
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
    return traces[0];
  }

  /** What the journal's files hold of this session. */
  async readJournal() {
    const places = [];
    for (const name of (await readdir(this.dir)).sort()) {
      const segment = await indexSegment(join(this.dir, name));
      places.push(...(segment.locations.get(attemptKey(this.sessionId, ATTEMPT)) ?? []));
    }
    const { completions, undecodable } = await readRecords(places);
    expect(undecodable).toBe(0);
    return completions;
  }

  async close() {
    await this.check();
    await this.proxy.close();
    await this.engines.close();
    await this.journal.close();
    await this.sim.close();
    await rm(this.dir, { recursive: true, force: true });
  }
}

function columnsOf({ completionId, promptIds, responseIds, responseLogprobs, versionSpans }) {
  return {
    id: completionId,
    promptIds: [...promptIds],
    responseIds: [...responseIds],
    logprobs: [...responseLogprobs],
    versionSpans: [...versionSpans],
  };
}

function ledgerColumns(entry) {
  return {
    id: entry.request_id,
    promptIds: entry.prompt_ids,
    responseIds: entry.response_ids,
    logprobs: entry.processed_logprobs.map(Math.fround),
    versionSpans: entry.version_spans,
  };
}

/** A red pixel. */
export const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';

/** More text than the engine has room for. */
export const TOO_LONG = 'word '.repeat(2 * MAX_MODEL_LEN);
