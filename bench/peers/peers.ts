import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { freePort } from '../../verify/services/ports.ts';
import { installPortkey, installPython } from './installs.ts';
import { type Server, startServer } from './processes.ts';

export const PEERS = ['portkey', 'litellm', 'rllm'] as const;
export type PeerName = (typeof PEERS)[number];

/** A proxy of another project, running as its own process in front of the stub engine. */
export type Peer = Server & {
  readonly origin: string;
  /** Headers that every request needs besides the content type. */
  readonly headers: Readonly<Record<string, string>>;
  /** Returns the path of the chat completions of one session. Proxies without sessions have the same path for all. */
  path(session: string): string;
  /**
   * Resolves to the number of calls of a session that the proxy has recorded with the ids of the reply; `null` for a proxy that records
   * none.
   */
  readonly recorded: ((session: string) => Promise<number>) | null;
};

const LOCAL = '127.0.0.1';
const CHAT_PATH = '/v1/chat/completions';

/** Module that Node loads before Portkey, which otherwise listens on all network interfaces. */
const ON_LOOPBACK = `data:text/javascript,${encodeURIComponent(`
import { Server } from 'node:net';
const { listen } = Server.prototype;
Server.prototype.listen = function (port, host, ...rest) {
  return listen.call(this, port, host ?? '${LOCAL}', ...rest);
};`)}`;

/**
 * Installs a peer if it is missing and starts it, as its documentation describes production: one worker, logs of errors only, no database
 * that it does not need. Rejects with an Error that states why it cannot run here.
 */
export async function startPeer(name: PeerName, engineUrl: string, directory: string): Promise<Peer> {
  const port = await freePort();
  const origin = `http://${LOCAL}:${port}`;
  const log = join(directory, `${name}.log`);
  return await STARTS[name]({ engineUrl, directory, port, origin, log });
}

type Start = {
  readonly engineUrl: string;
  readonly directory: string;
  readonly port: number;
  readonly origin: string;
  readonly log: string;
};

const STARTS: Readonly<Record<PeerName, (start: Start) => Promise<Peer>>> = {
  async portkey({ engineUrl, port, origin, log }) {
    const server = await startServer({
      program: process.execPath,
      args: ['--import', ON_LOOPBACK, installPortkey(), `--port=${port}`, '--headless'],
      env: { NODE_ENV: 'production' },
      log,
      readyUrl: origin,
    });
    const headers = {
      'x-portkey-provider': 'openai',
      'x-portkey-custom-host': `${engineUrl}/v1`,
      authorization: 'Bearer none',
    };
    return { ...server, origin, headers, path: () => CHAT_PATH, recorded: null };
  },
  async litellm({ engineUrl, directory, port, origin, log }) {
    const config = join(directory, 'litellm.json');
    // LiteLLM does not start without a key, as floe's proxy accepts no request without one.
    const key = `sk-${randomBytes(32).toString('hex')}`;
    const params = { model: 'openai/policy', api_base: `${engineUrl}/v1`, api_key: 'none' };
    // JSON is YAML, which LiteLLM reads.
    writeFileSync(
      config,
      JSON.stringify({
        model_list: [{ model_name: 'policy', litellm_params: params }],
        litellm_settings: { request_timeout: 600, set_verbose: false },
        general_settings: { master_key: key, disable_error_logs: true },
      }),
    );
    const server = await startServer({
      program: join(installPython('litellm'), 'litellm'),
      args: ['--config', config, '--host', LOCAL, '--port', `${port}`, '--num_workers', '1', '--telemetry', 'False'],
      env: { LITELLM_MODE: 'PRODUCTION', LITELLM_LOG: 'ERROR', LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
      log,
      readyUrl: `${origin}/health/liveliness`,
    });
    const headers = { authorization: `Bearer ${key}` };
    return { ...server, origin, headers, path: () => CHAT_PATH, recorded: null };
  },
  async rllm({ engineUrl, directory, port, origin, log }) {
    const server = await startServer({
      program: join(installPython('rllm'), 'rllm-model-gateway'),
      args: [
        ...['--host', LOCAL, '--port', `${port}`, '--worker', `${engineUrl}/v1`],
        ...['--db-path', join(directory, 'rllm.db'), '--log-level', 'warning'],
      ],
      env: {},
      log,
      readyUrl: `${origin}/health`,
    });
    const recorded = async (session: string): Promise<number> => {
      await fetch(`${origin}/admin/flush`, { method: 'POST' });
      const traces = (await (await fetch(`${origin}/sessions/${session}/traces`)).json()) as readonly {
        readonly completion_token_ids?: readonly number[] | null;
      }[];
      return traces.filter(({ completion_token_ids: ids }) => (ids?.length ?? 0) > 0).length;
    };
    return { ...server, origin, headers: {}, path: (session) => `/sessions/${session}${CHAT_PATH}`, recorded };
  },
};
