import { clusterConfigSchema } from './cluster-config.ts';
import { keyList } from './key-list.ts';
import { topologySchema } from './topology.ts';

/** Returns the text of docs/cluster-reference.md: all keys of `topology.yaml` and `cluster.yaml`, derived from their schemas. */
export function clusterReference(): string {
  return [
    '# Keys of topology.yaml and cluster.yaml',
    '',
    'Generated from `packages/floe/src/deployment/` by `npm run generate`. `[]` means each entry of a list and `*` any name. Other keys are refused. Keys that may be',
    'null are null by default, unless another default is given.',
    '[cluster.md](cluster.md) explains how to use the files.',
    '',
    '## topology.yaml',
    '',
    ...keyList(topologySchema),
    '',
    '## cluster.yaml',
    '',
    'Each `job` has the keys of `slurm`.',
    '',
    ...keyList(clusterConfigSchema),
    '',
  ].join('\n');
}
