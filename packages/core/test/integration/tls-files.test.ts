import { renameSync, rmSync, symlinkSync } from 'node:fs';
import { afterEach, expect, it } from 'vitest';
import { describeIf } from '../../../../test/skip.ts';
import { Authority, whyNoCertificates } from '../../../server/test/rollout/certificates.ts';
import { FloeError } from '../../src/errors.ts';
import { type TlsMaterial, watchTls } from '../../src/tls-files.ts';
import { VirtualClock } from '../../src/virtual-clock.ts';

describeIf(whyNoCertificates(), 'watchTls', () => {
  const undo: (() => void)[] = [];
  afterEach(() => {
    for (const step of undo.splice(0).reverse()) step();
  });

  function watchFiles(apply: (material: TlsMaterial) => void) {
    const authority = new Authority('floe-test');
    undo.push(() => authority.remove());
    const files = { ...authority.issue('server'), ca: null };
    const clock = new VirtualClock();
    const problems: FloeError[] = [];
    undo.push(watchTls(files, clock, apply, (error) => problems.push(error)));
    return { authority, files, clock, problems };
  }

  it('reports inaccessible files only once, and applies them when they are accessible again', () => {
    let applied = 0;
    const { files, clock, problems } = watchFiles(() => applied++);
    const aside = `${files.cert}.aside`;
    renameSync(files.cert, aside);
    // Replaces the certificate file by a link to itself, which cannot be read, not even by root.
    symlinkSync(files.cert, files.cert);
    clock.advance(20_000);
    expect([problems.map(({ code }) => code), applied]).toEqual([['setup_failed'], 0]);
    rmSync(files.cert);
    renameSync(aside, files.cert);
    clock.advance(5_000);
    expect([problems.length, applied]).toEqual([1, 0]);
  });

  it('applies changed files at a later check when applying them failed', () => {
    let failing = true;
    let applied = 0;
    const { authority, clock, problems } = watchFiles(() => {
      if (failing) throw new FloeError('internal', 'not now');
      applied++;
    });
    authority.issue('server');
    clock.advance(15_000);
    expect(problems.length).toBe(1);
    failing = false;
    clock.advance(15_000);
    expect([problems.length, applied]).toEqual([1, 1]);
  });
});
