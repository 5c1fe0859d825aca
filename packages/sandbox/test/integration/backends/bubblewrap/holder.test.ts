import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { expect } from 'vitest';
import { itIf } from '../../../../../../test/skip.ts';
import { deriveHolder, endHolder, type Holder, startHolder } from '../../../../src/backends/bubblewrap/holder.ts';
import { describeHost } from '../../../../src/backends/bubblewrap/host.ts';
import { architectureOf } from '../../../../src/backends/bubblewrap/syscall-filter.ts';
import { createSpawner } from '../../../../src/spawn/client.ts';
import { bubblewrapMissing, never } from '../../../backends/workbench.ts';

itIf(
  await bubblewrapMissing(),
  'the holder copies the files of frozen sessions on kernels without overlays on tmpfs',
  async () => {
    const dir = mkdtempSync(join(tmpdir(), 'floe-holder-'));
    const spawner = await createSpawner();
    try {
      mkdirSync(join(dir, 'root'));
      const described = await describeHost(join(dir, 'share'), architectureOf(process.arch) ?? 'x86_64');
      const host = { ...described, snapshots: 'copy' as const };
      const spec = runtimeSpecSchema.parse({ storage_mb: 16 });
      const request = { name: 'h', spec, proxy: null, readOnlyMounts: [] };
      const holderRequest = { spawner, dir, host, request, imagePath: null, uid: 1_900_000_001 };
      const inside = ({ process, layout }: Holder, command: string): string => {
        const enter = [...(host.mode === 'root' ? [] : ['--preserve-credentials']), '--user', '--mount'];
        const script = `cd ${layout.base}/files/work; ${command}`;
        const argv = [...enter, '--target', String(process.pid), '--', '/bin/sh', '-c', script];
        return execFileSync('nsenter', argv).toString();
      };
      const first = await startHolder(holderRequest, never);
      inside(first, 'mkdir d; echo one >d/f; chmod 640 d/f; ln -s d l');
      const second = await deriveHolder(first, holderRequest, never);
      inside(second, 'rm -r d; mkdir d; echo two >d/f');
      const third = await deriveHolder(second, holderRequest, never);
      expect(inside(third, 'cat l/f; grep -c "/files .* overlay " /proc/self/mountinfo || :')).toBe('two\n0\n');
      const again = await deriveHolder(first, holderRequest, never);
      expect(inside(again, 'cat l/f; stat -c %a d/f; readlink l')).toBe('one\n640\nd\n');
      await Promise.all([first, second, third, again].map(({ process }) => endHolder(process)));
    } finally {
      await spawner.close();
      rmSync(dir, { recursive: true, force: true });
    }
  },
);
