import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '../../../../../verify/services/ports.ts';
import { findTool } from '../../../../../verify/services/tools.ts';

const PROGRAM = 'versitygw';
const BUCKET = 'floe';

/**
 * Returns the path of the S3 server's program: from `$FLOE_S3_SERVER`, the PATH, or the directory of `npm run verify -- install`. Returns
 * `null` when the program is missing.
 */
function findS3Server(): string | null {
  const configured = process.env.FLOE_S3_SERVER;
  return configured !== undefined && existsSync(configured) ? configured : findTool(PROGRAM);
}

/**
 * Returns the reason why the S3 server cannot be started on this machine and the command that installs it; `null` when it can be started.
 */
export function s3Missing(): string | null {
  return findS3Server() === null ? `${PROGRAM} is not installed: npm run verify -- install` : null;
}

export type S3Server = {
  readonly url: (prefix: string, fields?: Readonly<Record<string, string>>) => string;
  /** Directory that contains the files of the S3 server's only bucket. */
  readonly bucketDir: string;
  stop(): Promise<void>;
  start(): Promise<void>;
  close(): Promise<void>;
};

/**
 * Starts a real S3 server on a temporary directory with one bucket. Puts the credentials into environment variables of this process, where
 * an AWS client expects them.
 */
export async function startS3(): Promise<S3Server> {
  const program = findS3Server();
  if (program === null) throw new Error('there is no S3 server');
  const dir = await mkdtemp(join(tmpdir(), 'floe-s3-'));
  const [root, sidecar] = [join(dir, 'root'), join(dir, 'meta')];
  await mkdir(join(root, BUCKET), { recursive: true });
  await mkdir(sidecar);
  const port = await freePort();
  const key = { AWS_ACCESS_KEY_ID: 'floe-test', AWS_SECRET_ACCESS_KEY: randomBytes(20).toString('hex') };
  Object.assign(process.env, key);
  let child: ChildProcess | null = null;
  const start = async (): Promise<void> => {
    const env = {
      PATH: '',
      ROOT_ACCESS_KEY_ID: key.AWS_ACCESS_KEY_ID,
      ROOT_SECRET_ACCESS_KEY: key.AWS_SECRET_ACCESS_KEY,
    };
    const args = ['--port', `127.0.0.1:${port}`, '--quiet', 'posix', '--sidecar', sidecar, root];
    child = spawn(program, args, { stdio: 'ignore', env });
    await untilOpen(port, child);
  };
  const stop = async (): Promise<void> => {
    const running = child;
    child = null;
    if (running === null || running.exitCode !== null) return;
    const ended = once(running, 'exit');
    running.kill('SIGKILL');
    await ended;
  };
  await start();
  return {
    bucketDir: join(root, BUCKET),
    url: (prefix, fields = {}) => {
      const query = { endpoint: `http://127.0.0.1:${port}`, region: 'us-east-1', path_style: 'true', ...fields };
      return `s3://${BUCKET}/${prefix}?${new URLSearchParams(query)}`;
    },
    start,
    stop,
    close: async () => {
      await stop();
      for (const name of Object.keys(key)) delete process.env[name];
      await rm(dir, { recursive: true, force: true });
    },
  };
}

async function untilOpen(port: number, child: ChildProcess): Promise<void> {
  for (;;) {
    if (child.exitCode !== null) throw new Error(`the S3 server ended with ${child.exitCode}`);
    const socket = connect(port, '127.0.0.1');
    const open = await new Promise<boolean>((resolve) => {
      socket.once('connect', () => resolve(true));
      socket.once('error', () => resolve(false));
    });
    socket.destroy();
    if (open) return;
  }
}
