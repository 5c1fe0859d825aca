import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError } from '@floe-rl/core';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type TarEntry, tarEntries } from '../../../src/commands/tar-entries.ts';

async function* cut(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function read(bytes: Buffer, size = 1000): Promise<TarEntry[]> {
  const entries: TarEntry[] = [];
  for await (const entry of tarEntries(cut(bytes, size))) entries.push(entry);
  return entries;
}

describe('tarEntries', () => {
  const long = `${'deep-folder-of-a-long-name/'.repeat(9)}${'x'.repeat(120)}`;
  const unicode = 'größe 大.txt';
  let dir: string;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'floe-tar-'));
    mkdirSync(join(dir, 'artifacts', long, '..'), { recursive: true });
    writeFileSync(join(dir, 'artifacts', long), 'long');
    writeFileSync(join(dir, 'artifacts', unicode), 'x'.repeat(1025));
    writeFileSync(join(dir, 'artifacts', 'line\nbreak'), '');
    symlinkSync(long, join(dir, 'artifacts', 'link'));
    writeFileSync(join(dir, 'artifacts', 'sparse'), '');
    // Writes more separate areas of data than the tar header of a sparse file can list, so that the archive needs additional map blocks.
    const area = Buffer.alloc(4096, 'i');
    for (let i = 0; i < 40; i++) {
      truncateSync(join(dir, 'artifacts', 'sparse'), i * 1024 * 1024);
      writeFileSync(join(dir, 'artifacts', 'sparse'), area, { flag: 'a' });
    }
    truncateSync(join(dir, 'artifacts', 'sparse'), 3 * 1024 ** 4);
  });
  afterAll(() => rmSync(dir, { recursive: true }));

  function packed(...options: string[]): Buffer {
    return execFileSync('tar', ['-c', '-f', '-', ...options, 'artifacts'], { cwd: dir, maxBuffer: 64 * 1024 * 1024 });
  }

  it.each(['gnu', 'posix'])('yields long names, links and sparse files of the %s format', async (form) => {
    const archive = packed('--sparse', `--format=${form}`);
    for (const size of [1, 511, 100_000]) {
      const entries = await read(archive, size);
      expect(entries.find(({ name }) => name === `artifacts/${long}`)).toMatchObject({ kind: 'file', bytes: 4 });
      expect(entries.find(({ name }) => name === `artifacts/${unicode}`)).toMatchObject({ kind: 'file', bytes: 1025 });
      expect(entries.find(({ name }) => name === 'artifacts/link')).toMatchObject({ kind: 'link', target: long });
      expect(entries.find(({ name }) => name === 'artifacts/sparse')).toMatchObject({
        kind: 'file',
        bytes: 3 * 1024 ** 4,
      });
      expect(entries.map(({ name }) => name)).toContain('artifacts/line\nbreak');
      expect(entries.filter(({ kind }) => kind === 'folder')).toHaveLength(10);
      expect(entries).toHaveLength(15);
    }
  });

  it('joins the two parts of a name in the ustar format', async () => {
    const name = `artifacts/${'deep-folder-of-a-long-name/'.repeat(4)}`;
    const archive = packed('--format=ustar', '--no-recursion', name);
    expect((await read(archive)).map((entry) => entry.name)).toContain(name);
  });

  it('yields the complete entries of an archive that is cut off, then rejects', async () => {
    const archive = packed('--format=gnu', '--exclude=sparse');
    const seen: string[] = [];
    const reading = (async () => {
      for await (const { name } of tarEntries(cut(archive.subarray(0, 700), 100))) seen.push(name);
    })();
    await expect(reading).rejects.toMatchObject({ code: 'corrupt_record' });
    expect(seen).toEqual(['artifacts/']);
  });

  it('rejects every damaged archive with corrupt_record', async () => {
    const archive = packed('--format=posix', '--exclude=sparse');
    const change = fc.record({
      at: fc.nat(archive.length - 1),
      to: fc.integer({ min: 0, max: 255 }),
      fix: fc.boolean(),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(change, { minLength: 1, maxLength: 20 }), async (changes) => {
        const bytes = Buffer.from(archive);
        for (const { at, to, fix } of changes) {
          bytes[at] = to;
          if (fix) sign(bytes, at - (at % 512));
        }
        try {
          await read(bytes);
        } catch (error) {
          expect(FloeError.is(error) && error.code).toBe('corrupt_record');
        }
      }),
      { numRuns: 300 },
    );
  });

  it('rejects a name whose header states gigabytes before reading it', async () => {
    const header = Buffer.alloc(512);
    header.write('././@LongLink');
    header.write('77777777777\0', 124);
    header.write('L', 156);
    sign(header, 0);
    await expect(read(header)).rejects.toMatchObject({
      code: 'corrupt_record',
      message: expect.stringContaining('too long'),
    });
  });
});

/** Writes the correct checksum into the tar header that starts at offset `at`. */
function sign(bytes: Buffer, at: number): void {
  bytes.fill(' ', at + 148, at + 156);
  const sum = bytes.subarray(at, at + 512).reduce((total, byte) => total + byte, 0);
  bytes.write(`${sum.toString(8).padStart(6, '0')}\0 `, at + 148, 'latin1');
}
