import { describe, expect, it } from 'vitest';
import { clusterConfigSchema } from '../../src/deployment/cluster-config.ts';
import { mergeJobs, slurmJobSchema } from '../../src/deployment/slurm-job.ts';

const minimal = { name: 'demo', shared: '/s', nodes: [{ name: 'cpu' }] };

function pathsOf(config: object): string[] {
  const parsed = clusterConfigSchema.safeParse(config);
  return parsed.success ? [] : parsed.error.issues.map((issue) => issue.path.join('.'));
}

describe('a cluster configuration', () => {
  it('needs a name, a shared directory and a role of nodes', () => {
    expect(clusterConfigSchema.parse(minimal)).toMatchObject({
      server: { replicas: 1 },
      database: { kind: 'postgres' },
    });
    expect(pathsOf({}).sort()).toEqual(['name', 'nodes', 'shared']);
  });

  it.each([
    ['an unknown key', { ...minimal, server: { replica: 2 } }, 'server'],
    ['a name with a line break', { ...minimal, name: 'demo\nx' }, 'name'],
    ['a shared directory with a command', { ...minimal, shared: '/s/$(id)' }, 'shared'],
    ['a relative directory', { ...minimal, shared: 's' }, 'shared'],
    ['a partition that ends its line', { ...minimal, slurm: { partition: 'a\n#SBATCH --uid=0' } }, 'slurm.partition'],
    ['an account with a space', { ...minimal, slurm: { account: 'a --uid=0' } }, 'slurm.account'],
    ['an invalid sbatch option', { ...minimal, slurm: { sbatch: ['rm -rf /'] } }, 'slurm.sbatch.0'],
    ['an invalid time', { ...minimal, slurm: { time: '4h' } }, 'slurm.time'],
    ['an option with a line break', { ...minimal, server: { options: ['a\nb'] } }, 'server.options.0'],
    ['a line separator', { ...minimal, floe: ['a\u2028b'] }, 'floe.0'],
    ['a health path with a quote', engine({ health: '/"; id; "' }), 'nodes.0.engines.0.health'],
    ['an engine without a command', engine({ command: [] }), 'nodes.0.engines.0.command'],
    ['two roles of one name', { ...minimal, nodes: [{ name: 'a' }, { name: 'a' }] }, 'nodes.1.name'],
    ['a role called server', { ...minimal, nodes: [{ name: 'server' }] }, 'nodes.0.name'],
    ['replicas on SQLite', { ...minimal, database: { kind: 'sqlite' }, server: { replicas: 2 } }, 'server.replicas'],
    ['a certificate elsewhere', { ...minimal, tls: { cert: 'c', key: '/k', ca: '/ca' } }, 'tls.cert'],
  ])('refuses %s with its path', (_, config, path) => {
    expect(pathsOf(config)).toEqual([path]);
  });
});

function engine(change: object): object {
  return { ...minimal, nodes: [{ name: 'gpu', engines: [{ command: ['serve'], ...change }] }] };
}

describe('the Slurm options of a job', () => {
  it('are those of the job where it sets them, else the shared ones', () => {
    const shared = slurmJobSchema.parse({ partition: 'a', time: '1:00:00', exclusive: true, sbatch: ['--x'] });
    const own = slurmJobSchema.parse({ partition: 'b', sbatch: ['--y=1'] });
    const expected = { partition: 'b', time: '1:00:00', exclusive: true, sbatch: ['--x', '--y=1'] };
    expect(mergeJobs(shared, own)).toMatchObject(expected);
  });
});
