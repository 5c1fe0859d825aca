// Creates the secrets and servers that hostile agents try to reach, on the host and in the service.
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseAs, parseJson } from '@floe-rl/core';
import { z } from 'zod';
import type { Service } from '../faults/service.ts';
import type { Trainer } from '../faults/trainer.ts';
import { makeImage } from '../fixtures/image.ts';
import type { Leftovers } from '../fixtures/launcher.ts';
import { until } from '../runner/until.ts';
import { childrenOf, processesWith } from '../services/processes.ts';
import { modelCall, type Target, taskOf } from './attack.ts';
import { neighbourCommand } from './attacks/sandbox.ts';

/** Maximum time in milliseconds for the sessions that must run before the attacks can start. */
const SETUP_MS = 120_000;
/** Programs of the image in addition to the programs of every test image. Floe and the agents run them. */
const IMAGE_PROGRAMS = ['git', 'curl', 'sed', 'find', 'gzip', 'mktemp', 'ln', 'chmod', 'seq'];
/** Name of the variable of the gateway's environment that contains a secret. */
export const SECRET_VARIABLE = 'FLOE_HOSTILE_SECRET';
const KEY_NAME = 'floe-hostile';

const readySchema = z.object({ control_url: z.string(), proxy_origin: z.string() });

/** Secrets and servers on the host. None of them may be reached from a sandbox. */
export class Host {
  readonly dir: string;
  readonly image: string;
  readonly abstractSocket: string;
  readonly secrets = {
    file: newSecret('file'),
    key: newSecret('key'),
    environment: newSecret('environment'),
    session: newSecret('session'),
  };
  private readonly servers: Server[];
  /** Number of connections that the servers received. Each connection means that an agent has escaped from its sandbox. */
  connections = 0;

  static async open(): Promise<Host> {
    const dir = await mkdtemp(join(tmpdir(), 'floe-hostile-'));
    const host = new Host(dir);
    // Every user of the host may read the secret, so that only the mounts of a sandbox protect it.
    await chmod(dir, 0o755);
    await writeFile(join(dir, 'secret'), host.secrets.file, { mode: 0o644 });
    makeImage(host.image, IMAGE_PROGRAMS);
    await mkdir(join(host.image, 'work'), { recursive: true });
    for (const address of [{ host: '127.0.0.1', port: 0 }, join(dir, 'socket'), `\0${host.abstractSocket}`]) {
      await host.listen(address);
    }
    return host;
  }

  private constructor(dir: string) {
    this.dir = dir;
    this.image = join(dir, 'image');
    this.abstractSocket = `floe-hostile-${process.pid}`;
    this.servers = [];
  }

  get port(): number {
    const [first] = this.servers;
    const address = first?.address() ?? null;
    if (address === null || typeof address === 'string') throw new Error('the host has no server');
    return address.port;
  }

  leftovers(): Leftovers {
    return { keyName: KEY_NAME, keyValue: this.secrets.key, file: join(this.dir, 'secret'), directory: this.dir };
  }

  async close(): Promise<void> {
    for (const server of this.servers) server.close();
    await rm(this.dir, { recursive: true, force: true });
  }

  private async listen(address: string | { readonly host: string; readonly port: number }): Promise<void> {
    const server = createServer((socket) => {
      this.connections++;
      socket.destroy();
    });
    server.listen(address);
    await once(server, 'listening');
    this.servers.push(server);
  }
}

function newSecret(place: string): string {
  return `floe-hostile-secret-${place}-${randomBytes(12).toString('hex')}`;
}

/** The addresses that the gateway reports when it is ready. */
export function addressesOf(service: Service): { readonly controlUrl: string; readonly proxyPort: number } {
  const line = service.child('gateway', 0).readyLine;
  const { control_url, proxy_origin } = parseAs(readySchema, parseJson(line), 'first line of the gateway');
  return { controlUrl: control_url, proxyPort: Number(new URL(proxy_origin).port) };
}

/**
 * Runs the two sessions whose keys attacks use. One session ends, and the other session runs until its task is cancelled. Resolves to
 * everything that attacks try to reach.
 */
export async function plant(service: Service, host: Host, trainer: Trainer): Promise<Target> {
  const endedKey = await keyOfEndedSession(service, trainer);
  const gateway = service.child('gateway', 0).pid;
  const { controlUrl, proxyPort } = addressesOf(service);
  const [stateDir = ''] = service.stateDirs();
  return {
    mark: service.mark,
    secrets: Object.values(host.secrets),
    secretDir: host.dir,
    stateDir,
    serviceDir: service.dir,
    pids: [service.child('server', 0).pid, gateway, ...childrenOf(gateway)],
    ports: {
      "the server's API": service.port(),
      "the node's control listener": Number(new URL(controlUrl).port),
      "the node's proxy": proxyPort,
      'the engine': service.simPort(),
      'a server of the host': host.port,
    },
    abstractSocket: host.abstractSocket,
    liveKey: await keyOfRunningSession(service, host, trainer),
    endedKey,
    image: host.image,
  };
}

async function keyOfEndedSession(service: Service, trainer: Trainer): Promise<string> {
  const { session_ids } = await trainer.submit(
    taskOf(`ended-${service.mark}`, service.mark, { command: 'echo "key: $FLOE_API_KEY"', task: { evaluator: null } }),
  );
  const result = (): string => trainer.results.get(session_ids[0] ?? '')?.agent?.stdout_tail ?? '';
  await until(() => result() !== '', SETUP_MS);
  const key = /^key: (\S+)$/m.exec(result())?.[1];
  if (key === undefined) throw new Error('the first session did not end, so no attack can start');
  return key;
}

/** Task id of the session that runs during all attacks. */
export function runningTask(service: Service): string {
  return `running-${service.mark}`;
}

async function keyOfRunningSession(service: Service, host: Host, trainer: Trainer): Promise<string | null> {
  const id = runningTask(service);
  const command = `${modelCall()}; ${neighbourCommand(host.secrets.session)}`;
  await trainer.submit(
    taskOf(id, service.mark, { command, task: { evaluator: null, timeout_seconds: 3600 }, makesOwnCall: true }),
  );
  let key: string | null = null;
  const mark = `FLOE_TASK_ID=${id}\0`;
  const find = async (): Promise<void> => {
    for (const pid of processesWith(mark)) {
      const environment = await readFile(`/proc/${pid}/environ`, 'latin1').catch(() => '');
      key ??= /\0OPENAI_API_KEY=([^\0]+)/.exec(environment)?.[1] ?? null;
    }
  };
  await until(
    () => {
      void find();
      return key !== null;
    },
    SETUP_MS / 4,
    200,
  );
  return key;
}
