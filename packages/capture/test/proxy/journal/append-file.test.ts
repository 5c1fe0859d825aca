import { constants, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { encodeFrame, openAppendFile, readFrames } from '../../../src/proxy/journal/append-file.ts';

const payloads = fc.array(
  fc.uint8Array({ maxLength: 60 }).map((bytes) => Buffer.from(bytes)),
  { minLength: 1, maxLength: 6 },
);

describe('a file to append to', () => {
  it('is opened with O_DSYNC, so that each write is on the disk when it returns', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'floe-append-'));
    const path = join(dir, 'segment');
    const file = await openAppendFile(path);
    await file.append(Buffer.from('x'));
    const fds = readdirSync('/proc/self/fd').filter((fd) => linkOf(`/proc/self/fd/${fd}`) === path);
    expect(fds).toHaveLength(1);
    const flags = Number.parseInt(
      /^flags:\s+([0-7]+)$/m.exec(readFileSync(`/proc/self/fdinfo/${fds[0]}`, 'utf8'))?.[1] ?? '',
      8,
    );
    expect(flags & constants.O_DSYNC).toBe(constants.O_DSYNC);
    expect(flags & constants.O_APPEND).toBe(constants.O_APPEND);
    await file.close();
    await rm(dir, { recursive: true });
  });
});

/** Returns the target of a symbolic link; `null` when the link no longer exists. */
function linkOf(path: string): string | null {
  try {
    return readlinkSync(path);
  } catch {
    return null;
  }
}

describe('a file of frames', () => {
  it('yields the appended payloads', () => {
    fc.assert(
      fc.property(payloads, (written) => {
        const journal = Buffer.concat(written.map(encodeFrame));
        const reading = readFrames(journal);
        expect(reading.frames.map((frame) => frame.toString('hex'))).toEqual(written.map((p) => p.toString('hex')));
        expect(reading).toMatchObject({ endBytes: journal.length, tornBytes: 0, corrupt: [] });
      }),
    );
  });

  it('loses only the torn frame when it is cut at any byte', () => {
    fc.assert(
      fc.property(payloads, (written) => {
        const frames = written.map(encodeFrame);
        const journal = Buffer.concat(frames);
        for (let cut = 0; cut <= journal.length; cut++) {
          const reading = readFrames(journal.subarray(0, cut));
          let whole = 0;
          let end = 0;
          while (whole < frames.length && end + (frames[whole]?.length ?? 0) <= cut)
            end += frames[whole++]?.length ?? 0;
          expect(reading.frames).toHaveLength(whole);
          expect(reading).toMatchObject({ endBytes: end, tornBytes: cut - end, corrupt: [] });
        }
      }),
      { numRuns: 30 },
    );
  });

  it('ends at the tear when zeros follow it, as after a loss of power', () => {
    const frame = encodeFrame(Buffer.from('first'));
    const torn = Buffer.concat([frame, encodeFrame(Buffer.from('second')).subarray(0, 14), Buffer.alloc(4096)]);
    expect(readFrames(torn)).toMatchObject({ endBytes: frame.length, corrupt: [] });
    expect(readFrames(torn).frames.map(String)).toEqual(['first']);
  });

  it('reports damage at any byte before the last frame and continues after it', () => {
    const parts = ['first', 'second', 'third'].map((text) => encodeFrame(Buffer.from(text)));
    const start = parts[0]?.length ?? 0;
    const end = start + (parts[1]?.length ?? 0);
    for (let at = start; at < end; at++) {
      const journal = Buffer.concat(parts);
      journal[at] = (journal[at] ?? 0) ^ 0x41;
      const reading = readFrames(journal);
      expect(reading.frames.map(String)).toEqual(['first', 'third']);
      expect(reading).toMatchObject({ corrupt: [{ start, end }], tornBytes: 0 });
    }
  });

  it('is read without an exception, whatever it contains', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), payloads, (noise, written) => {
        const journal = Buffer.concat([Buffer.from(noise), ...written.map(encodeFrame)]);
        expect(readFrames(journal).frames.length).toBe(written.length);
        expect(readFrames(Buffer.from(noise)).endBytes).toBe(0);
      }),
    );
  });
});
