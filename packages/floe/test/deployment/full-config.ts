import {
  type ClusterConfig,
  type ClusterConfigInput,
  clusterConfigSchema,
} from '../../src/deployment/cluster-config.ts';

/** Returns a cluster configuration for tests that uses every feature once; `changes` overrides its fields. */
export function fullConfig(changes: Partial<ClusterConfigInput> = {}): ClusterConfig {
  return clusterConfigSchema.parse({
    name: 'demo',
    shared: '/shared/floe',
    host_name: '{hostname}-ib0',
    setup: '/shared/env.sh',
    harness_dir: '/shared/harnesses',
    slurm: { partition: 'main', account: 'me', time: '4:00:00', sbatch: ['--licenses=x'] },
    server: { replicas: 2, options: ['--log-level', 'warn'], job: { cpus: 4, time: '1-00:00:00' } },
    database: { kind: 'postgres', job: { nodelist: 'n1', memory: '4G' } },
    nodes: [
      {
        name: 'gpu',
        count: 2,
        pools: { init: 4, run: 8 },
        backend: 'bubblewrap',
        engines: [
          { command: ['vllm', 'serve', 'Qwen/Qwen3-8B', '--port', '{port}'], count: 2, gpus: 4, max_concurrency: 64 },
          { command: ['sglang', '--port={port}'], kind: 'sglang', port: 9000, pool: 'judge' },
        ],
        job: { gres: 'gpu:8', exclusive: true },
      },
      { name: 'cpu', count: 3 },
    ],
    engines: [{ url: 'http://engine:8000', model: 'm' }],
    tls: { cert: '/tls/{host}.pem', key: '/tls/{host}.key', ca: '/tls/ca.pem' },
    ...changes,
  });
}
