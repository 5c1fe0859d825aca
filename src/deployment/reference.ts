import { keyTable } from '../schema/key-table.ts';
import { clusterConfigSchema } from './cluster-config.ts';
import { topologySchema } from './topology.ts';

/** docs/cluster-reference.md: every key of `topology.yaml` and `cluster.yaml`, taken from their schemas. */
export function clusterReference(): string {
  return [
    '# Keys of topology.yaml and cluster.yaml',
    '',
    'Generated from `src/cluster/` by `npm run generate`. `[]` stands for each entry of a list, `*` for any name. Other keys are',
    'refused. What the files are for: [cluster.md](cluster.md).',
    '',
    '## topology.yaml',
    '',
    ...keyTable(topologySchema),
    '',
    '## cluster.yaml',
    '',
    'Each `job` has the keys of `slurm`.',
    '',
    ...keyTable(clusterConfigSchema),
    '',
  ].join('\n');
}
