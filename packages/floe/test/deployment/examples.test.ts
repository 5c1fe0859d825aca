import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../../tools/repository.ts';
import { readYamlFile } from '../../src/commands/yaml-file.ts';
import { clusterConfigSchema } from '../../src/deployment/cluster-config.ts';
import { clusterReference } from '../../src/deployment/reference.ts';
import { slurmPlan } from '../../src/deployment/slurm-plan.ts';
import { serverUrls, topologySchema } from '../../src/deployment/topology.ts';

const DEPLOY = join(repositoryRoot(), 'deploy');

describe('the example files', () => {
  it('are a valid cluster and a valid topology', async () => {
    const cluster = await readYamlFile(join(DEPLOY, 'slurm', 'cluster.yaml'), clusterConfigSchema);
    expect(slurmPlan(cluster).map((job) => job.name)).toEqual(['database', 'server', 'gpu', 'cpu']);
    const topology = await readYamlFile(join(DEPLOY, 'topology.yaml'), topologySchema);
    expect(serverUrls(topology)).toBe('https://head1:8080,https://head2:8080');
  });
});

describe('the cluster reference', () => {
  it('lists keys at every depth with their types and defaults', () => {
    const text = clusterReference();
    expect(text).toContain('- `nodes[].engines[].command` (list of string, required): program and arguments;');
    expect(text).toContain('- `database(external).url_file` (string, required): ');
    expect(text).toContain('- `server.replicas[].port` (integer, default `8080`)');
  });
});
