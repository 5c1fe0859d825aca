import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { withTopology } from '../../src/commands/topology.ts';
import { gatewayArguments, serverUrls, topologySchema } from '../../src/deployment/topology.ts';

const fullTopology = {
  server: {
    replicas: [{ host: 'head1' }, { host: 'head2', port: 9090, listen: '0.0.0.0' }],
    database: 'postgres://floe@db/floe',
    blobs: 's3://bucket',
  },
  token_file: '/etc/floe/token',
  tls: { cert: '/t/c', key: '/t/k', ca: '/t/ca' },
  nodes: [
    { id: 'n1', host: 'a', runtime: 'bubblewrap', pools: { run: 3 }, builders: { x: '/m=1.mjs' }, allow_local: true },
    { id: 'n2', control: { host: '0.0.0.0', port: 8082 } },
  ],
  engines: [{ base_url: 'http://e:8000', pool: 'p' }],
};

describe('a topology', () => {
  it('gives the arguments of its processes', () => {
    const topology = topologySchema.parse(fullTopology);
    expect(serverUrls(topology)).toBe('https://head1:8080,https://head2:9090');
    expect(gatewayArguments(topology, 'n1')).toEqual([
      '--server=https://head1:8080,https://head2:9090',
      '--token-file=/etc/floe/token',
      '--ca=/t/ca',
      '--node-id=n1',
      '--node-host=a',
      '--backend=bubblewrap',
      '--run=3',
      '--builder=x=/m=1.mjs',
      '--allow-local',
    ]);
    expect(() => gatewayArguments(topology, 'n3')).toThrow(expect.objectContaining({ code: 'not_found' }));
  });

  it('may be empty', () => {
    expect(serverUrls(topologySchema.parse({}))).toBe('http://127.0.0.1:8080');
  });

  it.each([
    ['an unknown key', { server: { databse: 'x' } }, 'server'],
    ['an unknown key of a pool', { nodes: [{ id: 'n', pools: { rum: 1 } }] }, 'nodes.0.pools'],
    ['a secret', { engines: [{ base_url: 'http://e', api_key: 'k' }] }, 'engines.0'],
    ['replicas without a database', { server: { replicas: [{ host: 'a' }, { host: 'b' }] } }, 'server.database'],
    ['two databases', { server: { database: 'postgres://a', database_file: '/f' } }, 'server.database_file'],
    [
      'a repeated replica',
      { ...fullTopology, server: { ...fullTopology.server, replicas: [{ host: 'a' }, { host: 'a' }] } },
      'server.replicas.1',
    ],
    ['a repeated node', { nodes: [{ id: 'n' }, { id: 'n' }] }, 'nodes.1.id'],
    ['an invalid host', { nodes: [{ id: 'n', host: 'a b' }] }, 'nodes.0.host'],
  ])('refuses %s with its path', (_, topology, path) => {
    const parsed = topologySchema.safeParse(topology);
    expect(parsed.error?.issues.map((issue) => issue.path.join('.'))).toEqual([path]);
  });
});

describe('the --topology option', () => {
  let dir: string;
  let file: string;
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-topology-'));
    file = join(dir, 'topology.yaml');
    await writeFile(file, stringify(fullTopology));
  });
  afterAll(() => rm(dir, { recursive: true }));
  const expand = (...args: string[]): Promise<string[]> => withTopology(['node', 'floe', ...args]);

  it('becomes the arguments of a server, before the other arguments', async () => {
    const argv = await expand('server', '--topology', file, '--replica=2', '--port', '7');
    expect(argv.slice(0, 5)).toEqual(['node', 'floe', 'server', '--host=0.0.0.0', '--port=9090']);
    expect(argv.slice(-2)).toEqual(['--port', '7']);
    expect(argv).toContain('--tls-key=/t/k');
  });

  it('becomes the arguments of the named node', async () => {
    expect(await expand('gateway', `--topology=${file}`, '--node-id', 'n2')).toContain('--control-port=8082');
    await expect(expand('gateway', '--topology', file)).rejects.toMatchObject({ code: 'bad_request' });
    await expect(expand('gateway', '--topology', file, '--node-id', 'x')).rejects.toMatchObject({ code: 'not_found' });
  });

  it.each([
    ['another command', ['status', '--topology', 'x'], 'bad_request'],
    ['no value', ['server', '--topology'], 'bad_request'],
    ['a missing file', ['server', '--topology', '/no/such'], 'setup_failed'],
  ])('is refused with %s', async (_, args, code) => {
    await expect(expand(...args)).rejects.toMatchObject({ code });
  });

  it('is refused for a replica that the topology does not have', async () => {
    await expect(expand('server', '--topology', file, '--replica', '3')).rejects.toMatchObject({ code: 'not_found' });
    await expect(expand('server', '--topology', file, '--replica', 'x')).rejects.toMatchObject({ code: 'bad_request' });
  });
});
