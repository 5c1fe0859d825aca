import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { asFloeError } from '@floe-rl/core';
import { until } from '../../runner/until.ts';
import type { Service } from '../service.ts';
import { underTraffic } from '../traffic.ts';
import type { Trainer } from '../trainer.ts';
import type { Suite } from './suite.ts';

/** Callback URLs that a server which listens on loopback and has the default configuration must refuse when a task is submitted. */
const REFUSED_URLS = [
  'file:///etc/passwd',
  'gopher://127.0.0.1:70/',
  'ftp://127.0.0.1/',
  'data:text/plain,x',
  'http://169.254.169.254/latest/meta-data/',
  'http://[::ffff:169.254.169.254]/',
  'http://2852039166/',
  'http://0xa9fea9fe/',
  'http://0251.0376.0251.0376/',
  'http://169.254.169.254.nip.io/',
  'http://metadata.google.internal/',
  'http://10.0.0.1/',
  'http://172.16.0.1/',
  'http://192.168.0.1/',
  'http://[fe80::1]/',
  'http://[fd00::1]/',
  'http://[::]/',
  'http://0.0.0.0/',
  'http://0/',
  'http://224.0.0.1/',
  'http://255.255.255.255/',
  'http://user:password@127.0.0.1/',
  'http://8.8.8.8/',
  'http://example.com/',
  'http://127.0.0.1.example.com/',
  'http:///x',
  'javascript:alert(1)',
  '//127.0.0.1/',
  'http://[::ffff:8.8.8.8]/',
  'http://[64:ff9b::169.254.169.254]/',
];
const RUNS = REFUSED_URLS.length + 1;

/**
 * Suite S18: submits tasks with callback URLs that would make the server send requests to hosts that are not trainers (SSRF). Such hosts are
 * the server itself, the cloud's metadata service and all others.
 */
export const ssrf: Suite = {
  id: 'S18',
  title: 'callbacks go to trainers only, and follow no redirect',
  runs: { full: RUNS, quick: RUNS },
  stores: ['sqlite'],
  async run({ random }) {
    const options = { random, gateways: 1, feeder: { outstanding: 4, callbacks: false } };
    return underTraffic(options, async (service, trainer) => {
      for (const url of REFUSED_URLS) {
        const problem = await problemWith(service, trainer, url);
        if (problem !== null) trainer.violations.push(`callback_url ${url} ${problem}`);
      }
      await redirectIsNotFollowed(service, trainer);
      return { runs: RUNS };
    });
  },
};

/**
 * Submits a task with the callback URL `url`, which the server must refuse. Returns how the reply differs from the expected refusal; `null`
 * when it does not differ.
 */
async function problemWith(service: Service, trainer: Trainer, url: string): Promise<string | null> {
  const error = await trainer.client.submit(service.task({ callback_url: url })).then(
    () => null,
    (thrown) => asFloeError(thrown),
  );
  if (error === null) return 'was accepted';
  if (error.code !== 'schema_violation') return `was refused with ${error.code}`;
  return JSON.stringify(error.details).includes('callback_url') ? null : 'was refused without naming the field';
}

/**
 * Checks that the server does not follow a redirect when it sends a callback: the callback URL redirects to a second server, which must
 * never be called.
 */
async function redirectIsNotFollowed(service: Service, trainer: Trainer): Promise<void> {
  let targetCalls = 0;
  let calls = 0;
  const target = await listening((_, reply) => {
    targetCalls++;
    reply.end();
  });
  const redirecting = await listening((_, reply) => {
    calls++;
    reply.writeHead(calls < 3 ? 307 : 200, { location: urlOf(target) }).end();
  });
  try {
    const task = service.task({ task_id: 'redirected', callback_url: urlOf(redirecting) });
    const reply = await trainer.submit(task);
    // Records the task as one without a callback, because its callback goes to the redirecting test server and not to the trainer's own
    // callback server.
    trainer.acknowledge(reply, false);
    await until(() => calls >= 3, 20_000);
    if (calls < 3) trainer.violations.push('a redirected callback was not retried');
    if (targetCalls > 0) trainer.violations.push('a callback followed a redirect');
  } finally {
    for (const server of [target, redirecting]) {
      server.close();
      server.closeAllConnections();
    }
  }
}

async function listening(listener: RequestListener): Promise<Server> {
  const server = createServer(listener).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return server;
}

function urlOf(server: Server): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
}
