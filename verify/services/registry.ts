// Starts a private container registry for tests and programs, with a directory of its own. It is ended with the process that started it.
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse, request as startRequest } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep, systemClock } from '@floe-rl/core';
import { request } from 'undici';
import { freePort } from './ports.ts';

const PROGRAMS = { 'docker-registry': 'docker-registry', skopeo: 'skopeo', umoci: 'umoci' } as const;
/** Maximum number of checks of whether the registry answers, and the interval between them in milliseconds. */
const START_CHECKS = 200;
const CHECK_INTERVAL_MS = 50;
/** Error codes of registries by HTTP status. */
const ERROR_CODES: Readonly<Record<number, string>> = {
  401: 'UNAUTHORIZED',
  404: 'MANIFEST_UNKNOWN',
  429: 'TOOMANYREQUESTS',
};

/** A private container registry without TLS. Requests pass through a server that can answer them with errors instead. */
export type TestRegistry = {
  /** Host and port. */
  readonly host: string;
  /** Paths of the requests that were received. */
  readonly requests: string[];
  /** Answers the next `count` requests for manifests with `status`. */
  failNext(status: number, count: number): void;
  /** Makes an image of a directory that contains a root file system, and pushes it. */
  push(repository: string, rootDirectory: string, config?: { env?: Record<string, string> }): void;
  stop(): Promise<void>;
};

/** Returns why this machine cannot start a registry, with the command that installs what is missing; `null` when it can. */
export function registryMissing(): string | null {
  for (const [program, packageName] of Object.entries(PROGRAMS)) {
    const { status } = spawnSync('/bin/sh', ['-c', 'command -v "$1"', 'sh', program]);
    if (status !== 0) return `${program} is not installed: apt-get install --no-install-recommends ${packageName}`;
  }
  return null;
}

/** Starts a registry. Rejects with an `Error` when it does not respond. */
export async function startRegistry(): Promise<TestRegistry> {
  const dir = mkdtempSync(join(tmpdir(), 'floe-registry-'));
  const port = await freePort();
  const config = {
    version: '0.1',
    storage: { filesystem: { rootdirectory: join(dir, 'data') } },
    http: { addr: `127.0.0.1:${port}` },
  };
  writeFileSync(join(dir, 'config.yml'), JSON.stringify(config));
  const registry = spawn('docker-registry', ['serve', join(dir, 'config.yml')], { stdio: 'ignore' });
  const ended = new Promise<void>((resolve) => registry.once('exit', () => resolve()));
  for (let checks = 0; ; checks++) {
    const isUp = await request(`http://127.0.0.1:${port}/v2/`).then(
      async ({ statusCode, body }) => {
        await body.dump();
        return statusCode === 200;
      },
      () => false,
    );
    if (isUp) break;
    if (checks === START_CHECKS || registry.exitCode !== null) throw new Error('the registry did not start');
    await sleep(systemClock, CHECK_INTERVAL_MS);
  }
  const failures = { status: 200, left: 0 };
  const requests: string[] = [];
  const front = createServer((incoming, response) => {
    requests.push(incoming.url ?? '');
    if (failures.left > 0 && incoming.url?.includes('/manifests/')) {
      failures.left--;
      // Without a time in `Retry-After`, clients of registries wait for seconds before they repeat a request.
      response.writeHead(failures.status, { 'content-type': 'application/json', 'retry-after': '0' });
      const code = ERROR_CODES[failures.status] ?? 'UNKNOWN';
      response.end(JSON.stringify({ errors: [{ code, message: code.toLowerCase() }] }));
    } else forward(incoming, response, port);
  });
  await new Promise<void>((resolve) => front.listen(0, '127.0.0.1', resolve));
  const host = `127.0.0.1:${(front.address() as AddressInfo).port}`;
  return {
    host,
    requests,
    failNext(status, count) {
      failures.status = status;
      failures.left = count;
    },
    push(repository, rootDirectory, { env = {} } = {}) {
      const layout = mkdtempSync(join(dir, 'image-'));
      const reference = `${join(layout, 'oci')}:image`;
      const run = (...[program = '', ...args]: string[]) => execFileSync(program, args, { stdio: 'pipe' });
      const owner = process.getuid?.() === 0 ? [] : ['--rootless'];
      run('umoci', 'init', '--layout', join(layout, 'oci'));
      run('umoci', 'new', '--image', reference);
      run('umoci', 'insert', ...owner, '--image', reference, rootDirectory, '/');
      for (const [name, value] of Object.entries(env))
        run('umoci', 'config', '--image', reference, '--config.env', `${name}=${value}`);
      run(
        'skopeo',
        'copy',
        '--quiet',
        '--dest-tls-verify=false',
        '--dest-no-creds',
        `oci:${reference}`,
        `docker://127.0.0.1:${port}/${repository}`,
      );
      rmSync(layout, { recursive: true, force: true });
    },
    async stop() {
      front.closeAllConnections();
      await new Promise((resolve) => front.close(resolve));
      registry.kill();
      await ended;
      rmSync(dir, { recursive: true, force: true });
    },
  };
}

function forward(incoming: IncomingMessage, response: ServerResponse, port: number): void {
  const { method, url: path, headers } = incoming;
  const upstream = startRequest({ host: '127.0.0.1', port, method, path, headers }, (reply) => {
    response.writeHead(reply.statusCode ?? 502, reply.headers);
    reply.pipe(response);
  });
  upstream.once('error', () => response.destroy());
  incoming.pipe(upstream);
}
