import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { BoxFiles } from '../../src/box/files.ts';
import type { FileReply, FileRequest } from '../../src/box/messages.ts';

const dir = mkdtempSync(join(tmpdir(), 'floe-box-files-'));
const unhandled: unknown[] = [];
const remember = (reason: unknown): number => unhandled.push(reason);
process.on('unhandledRejection', remember);

afterEach(() => {
  process.off('unhandledRejection', remember);
  rmSync(dir, { recursive: true, force: true });
});

describe('files of a box server', () => {
  it('report at the close that a file could not be created, and fail nothing before', async () => {
    const replies: FileReply[] = [];
    const files = new BoxFiles((reply) => replies.push(reply), false);
    const path = join(dir, 'file', 'below');
    writeFileSync(join(dir, 'file'), 'in the way');

    for (const request of [
      { type: 'create_file', id: 1, path, mode: 0o644, owner: null },
      { type: 'append', id: 1 },
    ] satisfies FileRequest[]) {
      files.receive(request, Buffer.from('content'));
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(unhandled).toEqual([]);
    expect(replies).toEqual([]);

    files.receive({ type: 'close_file', id: 1 }, Buffer.alloc(0));
    await expect.poll(() => replies).toMatchObject([{ type: 'file_failed', id: 1 }]);
    expect(readFileSync(join(dir, 'file'), 'utf8')).toBe('in the way');
  });
});
