import { renameSync, rmSync, symlinkSync } from 'node:fs';
import { afterEach, expect, it } from 'vitest';
import { FloeError } from '../../src/core/errors.ts';
import { followTls, type TlsMaterial } from '../../src/core/tls-files.ts';
import { VirtualClock } from '../../src/core/virtual-clock.ts';
import { Authority, whyNoCertificates } from '../rollout/certificates.ts';
import { describeIf } from '../skip.ts';

describeIf(whyNoCertificates(), 'TLS files that are followed', () => {
  const undo: (() => void)[] = [];
  afterEach(() => {
    for (const step of undo.splice(0).reverse()) step();
  });

  function following(apply: (material: TlsMaterial) => void) {
    const authority = new Authority('floe-test');
    undo.push(() => authority.remove());
    const files = { ...authority.issue('server'), ca: null };
    const clock = new VirtualClock();
    const problems: FloeError[] = [];
    undo.push(followTls(files, clock, apply, (error) => problems.push(error)));
    return { authority, files, clock, problems };
  }

  it('may be impossible to look at for a while: that is told once, and the process goes on', () => {
    let applied = 0;
    const { files, clock, problems } = following(() => applied++);
    const aside = `${files.cert}.aside`;
    renameSync(files.cert, aside);
    // As EIO or EACCES, for root too.
    symlinkSync(files.cert, files.cert);
    clock.advance(20_000);
    expect([problems.map(({ code }) => code), applied]).toEqual([['setup_failed'], 0]);
    rmSync(files.cert);
    renameSync(aside, files.cert);
    clock.advance(5_000);
    expect([problems.length, applied]).toEqual([1, 0]);
  });

  it('are read again when they could not be put to use', () => {
    let failing = true;
    let applied = 0;
    const { authority, clock, problems } = following(() => {
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
