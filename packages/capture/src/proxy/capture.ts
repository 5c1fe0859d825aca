import { type Clock, newId, newSessionKey, parseAs, systemClock, undoAll } from '@floe-rl/core';
import {
  type EngineSpec,
  engineSpecSchema,
  type StrategySpec,
  samplingSchema,
  taskEngineSchema,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import type { EngineNotice } from '../engines/engine.ts';
import { createEnginePools } from '../engines/pool/managed-engine-pools.ts';
import type { BuiltTrace } from '../tokens/builders/builder.ts';
import { buildTraces } from '../tokens/trajectory.ts';
import { createProxy } from './http/proxy.ts';
import { CaptureJournal } from './journal/journal.ts';
import type { ProxySession } from './session/session.ts';

export type CaptureOptions = {
  /** The engines that sample, as in the setting `node.engines` of floe: at least the field `base_url` of each. */
  readonly engines: readonly z.input<typeof engineSpecSchema>[];
  /** Folder of the journal, in which every reply is recorded before its end reaches the client. It is created when it does not exist. */
  readonly journalDir: string;
  /** Name of the model in requests. Default: `policy`. */
  readonly modelName?: string;
  /** Address of the proxy. Default: 127.0.0.1 and a free port. */
  readonly host?: string;
  readonly port?: number;
  /** Receives notices about engines that are intended for the operator. By default, these notices are dropped. */
  readonly notice?: EngineNotice;
  readonly clock?: Clock;
};

export type CaptureSessionOptions = {
  /** Default: a new id. */
  readonly sessionId?: string;
  /** Sampling parameters of all model calls of the session, whatever its client requests. Default: the engine's own parameters. */
  readonly sampling?: z.input<typeof samplingSchema>;
};

/** One agent's model calls. */
export type CaptureSession = {
  readonly sessionId: string;
  /** Base URL for OpenAI clients, which ends with `/v1`. It contains the key of the session. */
  readonly baseUrl: string;
  /** Key of the session, for clients that send one. */
  readonly key: string;
  /**
   * Returns the recorded conversations as token sequences, one for each conversation that does not continue another. Throws `audit_failed`
   * when the check of the tokens finds an error.
   */
  traces(): readonly BuiltTrace[];
  /** Ends the session: its requests are refused from now on. Resolves when all sampled tokens are recorded. */
  close(): Promise<void>;
};

/** A model proxy with its engines and its journal. */
export type Capture = {
  /** Address of the proxy, as `http://host:port`. */
  readonly origin: string;
  openSession(options?: CaptureSessionOptions): Promise<CaptureSession>;
  /** Closes sessions, proxy, engines and journal. */
  close(): Promise<void>;
};

/** Makes one trace of all calls of a conversation. */
const BUILDER: StrategySpec = { strategy: 'prefix_merging', config: {} };
const engineListSchema = z.array(engineSpecSchema).min(1);

/**
 * Starts a model proxy for engines, without a server and a node of floe. Rejects with `schema_violation` for wrong options, and with the error
 * of an engine that cannot be used. Rejects with `store_unavailable` when the journal cannot be opened, and with `setup_failed` when the proxy
 * cannot listen.
 */
export async function startCapture(options: CaptureOptions): Promise<Capture> {
  const { modelName = 'policy', host = '127.0.0.1', port = 0, clock = systemClock, notice = () => {} } = options;
  const specs: readonly EngineSpec[] = parseAs(engineListSchema, options.engines, 'engines', 'engines');
  const undo: (() => Promise<void>)[] = [];
  try {
    const journal = await CaptureJournal.open(options.journalDir, { clock });
    undo.push(() => journal.close());
    const engines = await createEnginePools(specs, { clock, notice });
    undo.push(() => engines.close());
    const proxy = createProxy({ engines, journal, clock, notice });
    undo.push(() => proxy.close());
    await proxy.listen({ host, port });
    const openSession = async (session: CaptureSessionOptions = {}): Promise<CaptureSession> => {
      const key = newSessionKey();
      const sessionId = session.sessionId ?? newId('ses', clock);
      const opened = await proxy.open({
        ...{ sessionId, attempt: 0, sampleIndex: 0, key, socketPath: null, modelName },
        sampling: parseAs(samplingSchema, session.sampling ?? {}, 'sampling', 'sampling'),
        engine: taskEngineSchema.parse({}),
      });
      return { sessionId, key, baseUrl: `${proxy.origin}/s/${key}/v1`, ...recorded(opened) };
    };
    return { origin: proxy.origin, openSession, close: () => undoAll(undo) };
  } catch (error) {
    await undoAll(undo);
    throw error;
  }
}

function recorded(session: ProxySession): Pick<CaptureSession, 'traces' | 'close'> {
  return {
    traces: () => buildTraces({ spec: BUILDER, completions: session.completions() }).traces,
    close: () => session.close(),
  };
}
