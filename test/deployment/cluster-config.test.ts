import { describe, expect, it } from 'vitest';
import { clusterConfigSchema } from '../../src/deployment/cluster-config.ts';
import { mergedJob, slurmJobSchema } from '../../src/deployment/slurm-job.ts';

const least = { name: 'demo', shared: '/s', nodes: [{ name: 'cpu' }] };

function pathsOf(config: object): string[] {
  const parsed = clusterConfigSchema.safeParse(config);
  return parsed.success ? [] : parsed.error.issues.map((issue) => issue.path.join('.'));
}

describe('a cluster', () => {
  it('needs a name, a shared directory and a role of nodes', () => {
    expect(clusterConfigSchema.parse(least)).toMatchObject({ server: { replicas: 1 }, database: { kind: 'postgres' } });
    expect(pathsOf({}).sort()).toEqual(['name', 'nodes', 'shared']);
  });

  it.each([
    ['an unknown key', { ...least, server: { replica: 2 } }, 'server'],
    ['a name with a line break', { ...least, name: 'demo\nx' }, 'name'],
    ['a shared directory with a command', { ...least, shared: '/s/$(id)' }, 'shared'],
    ['a relative directory', { ...least, shared: 's' }, 'shared'],
    ['a partition that ends its line', { ...least, slurm: { partition: 'a\n#SBATCH --uid=0' } }, 'slurm.partition'],
    ['an account with a space', { ...least, slurm: { account: 'a --uid=0' } }, 'slurm.account'],
    ['a further option that is none', { ...least, slurm: { sbatch: ['rm -rf /'] } }, 'slurm.sbatch.0'],
    ['a time that is none', { ...least, slurm: { time: '4h' } }, 'slurm.time'],
    ['an option with a line break', { ...least, server: { options: ['a\nb'] } }, 'server.options.0'],
    ['a line separator', { ...least, floe: ['a\u2028b'] }, 'floe.0'],
    ['a path of health with a quote', engine({ health: '/"; id; "' }), 'nodes.0.engines.0.health'],
    ['an engine without a command', engine({ command: [] }), 'nodes.0.engines.0.command'],
    ['two roles of one name', { ...least, nodes: [{ name: 'a' }, { name: 'a' }] }, 'nodes.1.name'],
    ['a role called server', { ...least, nodes: [{ name: 'server' }] }, 'nodes.0.name'],
    ['replicas on SQLite', { ...least, database: { kind: 'sqlite' }, server: { replicas: 2 } }, 'server.replicas'],
    ['a certificate elsewhere', { ...least, tls: { cert: 'c', key: '/k', ca: '/ca' } }, 'tls.cert'],
  ])('refuses %s, naming it', (_, config, path) => {
    expect(pathsOf(config)).toEqual([path]);
  });
});

function engine(change: object): object {
  return { ...least, nodes: [{ name: 'gpu', engines: [{ command: ['serve'], ...change }] }] };
}

describe('what Slurm is asked for', () => {
  it('is what a job says itself, and otherwise what all jobs say', () => {
    const shared = slurmJobSchema.parse({ partition: 'a', time: '1:00:00', exclusive: true, sbatch: ['--x'] });
    const own = slurmJobSchema.parse({ partition: 'b', sbatch: ['--y=1'] });
    const expected = { partition: 'b', time: '1:00:00', exclusive: true, sbatch: ['--x', '--y=1'] };
    expect(mergedJob(shared, own)).toMatchObject(expected);
  });
});
