import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { type AddressInfo, createServer } from 'node:net';
import { text } from 'node:stream/consumers';
import { VirtualClock } from '@floe-rl/core';
import { createGatewayMetrics, type Logger } from '@floe-rl/observe';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { enginePoolsOf } from '../../../../../capture/src/engines/pool/managed-engine-pools.ts';
import { ToyEngine } from '../../../../../capture/test/engines/pool/toy-engine.ts';
import { Authority, serialOf, whyNoCertificates } from '../../../../../server/test/rollout/certificates.ts';
import { type GatewayConfigInput, gatewayConfigSchema } from '../../../../src/gateway/node/config.ts';
import { type ControlListener, openControlListener } from '../../../../src/gateway/node/control-listener.ts';
import { nodeReports } from '../../../../src/gateway/node/node-reports.ts';
import { bench } from '../../../gateway/session-bench.ts';

type Parts = Parameters<typeof nodeReports>[1];

const SIZES = { init: 10, ready: 20, run: 30, postrun: 40 };
const IN_USE = { init_inflight: 1, ready_depth: 2, run_inflight: 3, postrun_inflight: 4, postrun_queue_depth: 5 };

let listener: ControlListener | null = null;
let clock: VirtualClock;
let errors: unknown[][];
beforeEach(() => {
  clock = new VirtualClock();
  errors = [];
});
afterEach(async () => {
  await listener?.close();
  listener = null;
});

/** Opens the listener of a node that runs one session and has one engine. `parts` replaces parts of this node. */
async function open(config: Partial<GatewayConfigInput> = {}, parts: Partial<Parts> = {}): Promise<ControlListener> {
  const directories = { state_dir: '/nowhere', harness_dir: '/nowhere' };
  const complete = gatewayConfigSchema.parse({
    node_id: 'n1',
    server_url: 'http://127.0.0.1:1',
    ...directories,
    ...config,
  });
  const { attempt } = bench();
  const engines = [new ToyEngine('a', undefined, { metricsText: 'vllm:num_requests_running 6\n' })];
  const node = {
    agent: { live: () => [attempt] },
    engines: enginePoolsOf(engines, { clock }),
    pools: { policy: 'batch', sizes: SIZES, metrics: () => IN_USE },
    sandboxes: { startCounts: () => new Map([['local', { starting: 6, waiting: 7, limit: 8 }]]) },
    journal: { bytes: 4096 },
    metrics: createGatewayMetrics(),
    ...parts,
  };
  const log = { error: (...args: unknown[]) => void errors.push(args) } as unknown as Logger;
  listener = await openControlListener(complete, nodeReports(complete, node as unknown as Parts), { clock, log });
  return listener;
}

type Reply = {
  readonly status: number | undefined;
  readonly headers: IncomingMessage['headers'];
  readonly body: string;
};

/** Sends a GET for `path`. An https URL needs the certificate `ca` of the authority that signed the listener's certificate. */
async function get(path: string, headers: readonly string[] = [], ca?: Buffer): Promise<Reply> {
  const url = `${listener?.url}${path}`;
  const options = { headers: ['host', 'localhost', ...headers], agent: false as const };
  const sent = url.startsWith('https:') ? httpsRequest(url, { ...options, ca }) : httpRequest(url, options);
  const [response] = (await once(sent.end(), 'response')) as [IncomingMessage];
  return { status: response.statusCode, headers: response.headers, body: await text(response) };
}

const right = ['authorization', 'Bearer secret'];
const wrong = ['authorization', 'Bearer wrong'];

describe('the control listener of a node with a token', () => {
  it('answers a request with the token', async () => {
    await open({ token: 'secret' });
    expect((await get('/status', right)).status).toBe(200);
  });

  it('reports without the token that the node is alive', async () => {
    await open({ token: 'secret' });
    const { status, body } = await get('/health');
    expect([status, JSON.parse(body)]).toEqual([200, { status: 'ok', node_id: 'n1' }]);
  });

  it.each([
    ['no token', [], 401, 'unauthorized'],
    ['a wrong token', wrong, 401, 'unauthorized'],
    ['two different tokens, the right one first', [...right, ...wrong], 400, 'bad_request'],
    ['an expectation that is unknown', [...right, 'expect', 'anything'], 417, 'bad_request'],
  ])('refuses a request with %s, with an error body', async (_, headers, code, name) => {
    await open({ token: 'secret' });
    const error = { code: name, message: expect.stringMatching(/token|authorization|100-continue/), details: {} };
    const { status, headers: answered, body } = await get('/status', headers);
    expect([status, JSON.parse(body)]).toEqual([code, { error: { ...error, retryable: false } }]);
    expect(answered['content-type']).toContain('application/json');
  });

  it('closes the connection of a request with an unknown expectation, whose body it does not read', async () => {
    await open({ token: 'secret' });
    expect((await get('/status', [...right, 'expect', 'anything'])).headers.connection).toBe('close');
  });
});

describe('the control listener of a node', () => {
  it('needs no token when none is configured', async () => {
    await open();
    expect((await get('/status')).status).toBe(200);
  });

  it('reports the stages, the sandbox starts, the engines and the sessions', async () => {
    await open();
    expect(JSON.parse((await get('/status')).body)).toEqual({
      node_id: 'n1',
      pools: { init: 4, ready: 2, run: 4, postrun: 4 },
      dispatch_policy: 'batch',
      metrics: IN_USE,
      starts: { local: { starting: 6, waiting: 7, limit: 8 } },
      engines: [expect.objectContaining({ engine_id: 'a' })],
      sessions: [{ session_id: 'ses_1', epoch: 1, status: 'LEASED', turns: 0, sampled_tokens: 0 }],
    });
  });

  it('serves the current metrics of the node', async () => {
    await open();
    const { headers, body } = await get('/metrics');
    expect(headers['content-type']).toMatch(/^text\/plain; .*version=/);
    const samples = body.split('\n').filter((line) => /^floe_(stage_slots|runtime_starts|journal_bytes)\b/.test(line));
    expect(new Set(samples)).toEqual(
      new Set([
        'floe_stage_slots{stage="init",state="used"} 1',
        'floe_stage_slots{stage="init",state="size"} 10',
        'floe_stage_slots{stage="ready",state="used"} 2',
        'floe_stage_slots{stage="ready",state="size"} 20',
        'floe_stage_slots{stage="run",state="used"} 3',
        'floe_stage_slots{stage="run",state="size"} 30',
        'floe_stage_slots{stage="postrun",state="used"} 4',
        'floe_stage_slots{stage="postrun",state="waiting"} 5',
        'floe_stage_slots{stage="postrun",state="size"} 40',
        'floe_runtime_starts{backend="local",state="starting"} 6',
        'floe_runtime_starts{backend="local",state="waiting"} 7',
        'floe_journal_bytes 4096',
      ]),
    );
  });

  it('serves the metrics of the engines in the text format of Prometheus', async () => {
    await open();
    const { headers, body } = await get('/metrics/engines');
    expect(headers['content-type']).toBe('text/plain; version=0.0.4; charset=utf-8');
    expect(body).toBe('vllm:num_requests_running{engine_id="a",pool="default"} 6\n');
  });

  it('answers with an internal error when the node fails to report its state', async () => {
    const live = (): never => {
      throw new Error('broken');
    };
    await open({}, { agent: { live } as unknown as Parts['agent'] });
    const { status, body } = await get('/status');
    const error = { code: 'internal', message: 'broken', details: {}, retryable: true };
    expect([status, JSON.parse(body)]).toEqual([500, { error }]);
  });
});

describeIf(whyNoCertificates(), 'the control listener of a node with a certificate', () => {
  let authority: Authority;
  beforeAll(() => {
    authority = new Authority('floe-test');
  });
  afterAll(() => authority.remove());

  it('answers over TLS', async () => {
    const { url } = await open({ control_tls: authority.issue('node') });
    expect(url).toMatch(/^https:/);
    expect((await get('/health', [], readFileSync(authority.cert))).status).toBe(200);
  });

  it('uses a replaced certificate for new connections, and ignores a broken one', async () => {
    const files = authority.issue('node');
    const { url } = await open({ control_tls: files });
    const before = await serialOf(url);
    authority.issue('node');
    clock.advance(6_000);
    const renewed = await serialOf(url);
    expect(renewed).not.toBe(before);
    writeFileSync(files.cert, 'half a fi');
    clock.advance(6_000);
    expect(await serialOf(url)).toBe(renewed);
    expect(errors).toEqual([
      [
        { error: expect.stringContaining('node.pem') },
        'the changed certificate cannot be used; the previous one stays in use',
      ],
    ]);
  });

  it('is not checked for changes any more once the listener is closed', async () => {
    const own = await open({ control_tls: authority.issue('node') });
    await own.close();
    expect(clock.fireNext()).toBe(false);
    await expect(serialOf(own.url)).rejects.toMatchObject({ code: 'ECONNREFUSED' });
  });
});

describe('opening the control listener', () => {
  it('fails with the option of the port when another program uses the port', async () => {
    const other = createServer().listen(0, '127.0.0.1');
    await once(other, 'listening');
    const { port } = other.address() as AddressInfo;
    await expect(open({ control: { host: '127.0.0.1', port } })).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(/^the control listener cannot listen on .*another program.* with --control-port$/),
      details: { host: '127.0.0.1', port },
    });
    other.close();
  });

  it('fails with the option of the host when this machine does not have the address', async () => {
    // The address is reserved for documentation, so that no machine has it.
    await expect(open({ control: { host: '192.0.2.1', port: 0 } })).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(/does not have this address.* with --control-host$/),
    });
  });

  it('fails when a file of the certificate cannot be read', async () => {
    await expect(open({ control_tls: { cert: '/nowhere/node.pem', key: '/nowhere/node.key' } })).rejects.toMatchObject({
      code: 'setup_failed',
      details: { path: '/nowhere/node.pem' },
    });
  });
});
