import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import type { Runtime } from '../../../src/api/runtime.ts';
import { collect } from '../../../src/workspace/collect.ts';
import { bubblewrapMissing, never, processesMentioning, uniqueSeconds, Workbench } from '../../backends/workbench.ts';

const problem = await bubblewrapMissing();
const MIB = 1024 * 1024;
/** Shell text that expands to the path of the folder for temporary files. */
const TMP = `"\${TMPDIR:-/tmp}"`;

describeIf(null, 'collect in a local sandbox', () => suite('local'));
describeIf(problem, 'collect in a bubblewrap sandbox', () => suite('bubblewrap'));

/** Returns an object with the methods of a sandbox, so that a test can replace some of them. */
function forwarding(runtime: Runtime): Runtime {
  return {
    backend: runtime.backend,
    isolation: runtime.isolation,
    paths: runtime.paths,
    proxyOrigin: runtime.proxyOrigin,
    mcpCommand: runtime.mcpCommand,
    exec: (request, signal) => runtime.exec(request, signal),
    writeFiles: (files, signal) => runtime.writeFiles(files, signal),
    uploadDir: (source, target, signal) => runtime.uploadDir(source, target, signal),
    readFile: (path, maxBytes, signal) => runtime.readFile(path, maxBytes, signal),
    openTools: (signal) => runtime.openTools(signal),
    snapshot: (signal) => runtime.snapshot(signal),
    restore: (snapshot, signal) => runtime.restore(snapshot, signal),
    asRoot: () => runtime.asRoot(),
    stop: () => runtime.stop(),
  };
}

function suite(backend: 'local' | 'bubblewrap'): void {
  const bubblewrap = backend === 'bubblewrap' ? it : () => {};
  const local = backend === 'local' ? it : () => {};
  let bench: Workbench;
  beforeAll(async () => {
    bench = await Workbench.open();
  });
  afterAll(() => bench.close());

  /** Starts a sandbox and runs the command in it. `$A` and `$L` are the directories of artifacts and logs. Returns the sandbox. */
  async function after(command: string, spec: Parameters<Workbench['start']>[1] = {}): Promise<Runtime> {
    const runtime = await bench.start(backend, spec);
    const env = { A: runtime.paths.artifacts, L: runtime.paths.logs };
    const ended = await runtime.exec({ command: `set -e; ${command}`, env }, never);
    expect(ended).toMatchObject({ exitCode: 0, killedBy: null });
    return runtime;
  }

  /** Starts a sandbox and runs the command in it. In the command's PATH, the shell script `script` replaces `tar`. Returns the sandbox. */
  async function withTar(script: string, command: string): Promise<Runtime> {
    const dir = backend === 'local' ? join(bench.dir, `bin-${uniqueSeconds()}`) : '/work/bin';
    const BIN = { BIN: dir, PATH: `${dir}:/usr/local/bin:/usr/bin:/bin` };
    const place = `mkdir -p "$BIN"; cat >"$BIN/tar" <<'FLOE'\n#!/bin/sh\n${script}\nFLOE\nchmod 755 "$BIN/tar"; `;
    return after(place + command, { env: BIN });
  }

  /** Lists an archive like `tar -tv`: the kind and the name of each entry, and also the target of a link. */
  function listing(archive: Buffer | null | undefined): string[] {
    if (!archive) throw new Error('there is no archive');
    const file = join(bench.dir, 'archive.tar.gz');
    writeFileSync(file, archive);
    const lines = execFileSync('tar', ['-tvzf', file], { encoding: 'utf8', env: { ...process.env, LC_ALL: 'C' } });
    return lines
      .trim()
      .split('\n')
      .map((line) => line.replace(/^(.)\S* +\S+ +\S+ +\S+ +\S+ /, '$1 '))
      .sort();
  }

  it('packs artifacts, logs and further paths each under its own name', async () => {
    const runtime = await after(
      'mkdir -p "$A/sub" "$L/pi" out/deep; echo a >"$A/sub/a b"; echo l >"$L/pi/log"; echo o >out/deep/o; echo f >f; echo no >g',
    );
    const collected = await collect(runtime, { maxBytes: MIB, paths: ['out', 'f'] }, never);
    expect(collected?.omitted).toBeNull();
    expect(listing(collected?.archive)).toEqual([
      '- artifacts/sub/a b',
      '- logs/pi/log',
      '- paths/work/f',
      '- paths/work/out/deep/o',
      'd artifacts/sub/',
      'd logs/pi/',
      'd paths/work/out/',
      'd paths/work/out/deep/',
    ]);
    await runtime.stop();
  });

  it('returns null when there are only empty folders', async () => {
    const runtime = await after('mkdir -p "$L/pi/sessions" out');
    expect(await collect(runtime, { maxBytes: MIB, paths: ['out'] }, never)).toBeNull();
    await runtime.stop();
  });

  it('reports further paths that do not exist or are outside the sandbox', async () => {
    const runtime = await after('echo a >"$A/a"');
    const paths = ['nowhere', ...(backend === 'local' ? ['/etc/hostname'] : [])];
    const collected = await collect(runtime, { maxBytes: MIB, paths }, never);
    expect(listing(collected?.archive)).toEqual(['- artifacts/a']);
    expect(collected?.omitted).toContain('nowhere does not exist');
    if (backend === 'local') expect(collected?.omitted).toContain('/etc/hostname is not in the sandbox');
    const alone = await after('true');
    expect(await collect(alone, { maxBytes: MIB, paths: ['nowhere'] }, never)).toEqual({
      archive: null,
      omitted: 'nowhere does not exist',
    });
    await Promise.all([runtime.stop(), alone.stop()]);
  });

  it('packs links as links and opens no pipe, socket or device', async () => {
    const runtime = await after(
      `cd "$A"; ln -s / root; ln -s loop loop; ln -s ../artifacts self; ln -s /etc/passwd p; mkfifo fifo; echo f >file
       ln file again; mkdir .hidden; echo h >.hidden/h; echo d >-rf; echo n >"two
lines"; ${backend === 'bubblewrap' ? 'ln -s /dev/zero zero' : ''}`,
    );
    const collected = await collect(runtime, { maxBytes: MIB, paths: [] }, never);
    expect(collected?.omitted).toBeNull();
    const names = listing(collected?.archive);
    expect(names).toEqual(expect.arrayContaining(['l artifacts/root -> /', 'l artifacts/loop -> loop']));
    expect(names).toEqual(expect.arrayContaining(['l artifacts/p -> /etc/passwd', 'l artifacts/self -> ../artifacts']));
    expect(names).toEqual(
      expect.arrayContaining(['- artifacts/.hidden/h', '- artifacts/-rf', '- artifacts/two\\nlines']),
    );
    expect(names.filter((name) => name.includes('fifo'))).toEqual([]);
    expect(names.filter((name) => name.startsWith('h '))).toHaveLength(1);
    await runtime.stop();
  });

  it('packs neither the target of a link nor the archive itself', async () => {
    const runtime = await after(`ln -s / out; echo a >"$A/a"; echo t >${TMP}/t; mkdir out2; ln -s /etc out2/etc`);
    const tmp = join(runtime.paths.artifacts, '..', 'tmp');
    const collected = await collect(runtime, { maxBytes: MIB, paths: ['out', 'out2', tmp] }, never);
    const names = ['l paths/work/out -> /', 'd paths/work/out2/', 'l paths/work/out2/etc -> /etc'];
    expect(listing(collected?.archive)).toEqual(['- artifacts/a', '- paths/tmp/t', 'd paths/tmp/', ...names].sort());
    await runtime.stop();
  });

  it('packs sparse files of terabytes in little time and space', async () => {
    const spec = { max_file_mb: 16 * MIB };
    const runtime = await after('for i in 1 2 3; do truncate -s 9T "$A/$i"; done; echo end >>"$A/3"', spec);
    const collected = await collect(runtime, { maxBytes: MIB, paths: [] }, never);
    expect(collected?.omitted).toBeNull();
    expect(listing(collected?.archive)).toEqual(['- artifacts/1', '- artifacts/2', '- artifacts/3']);
    expect(collected?.archive?.length).toBeLessThan(10_000);
    await runtime.stop();
  });

  it('omits an archive that is larger than allowed without packing all of it', async () => {
    const runtime = await after('head -c 40000000 /dev/urandom >"$A/noise"');
    expect(await collect(runtime, { maxBytes: MIB, paths: [] }, never)).toEqual({
      archive: null,
      omitted: 'the archive is larger than the 1 MiB of artifacts.max_mb',
    });
    const { stdout } = await runtime.exec({ command: `cat ${TMP}/*/packed | wc -c` }, never);
    expect(Number(stdout)).toBe(MIB + 1);
    await runtime.stop();
  });

  it('accepts an archive of exactly the allowed size', async () => {
    const runtime = await after('head -c 3000 /dev/urandom >"$A/noise"');
    const bytes = (await collect(runtime, { maxBytes: MIB, paths: [] }, never))?.archive?.length ?? 0;
    expect(bytes).toBeGreaterThan(3000);
    expect((await collect(runtime, { maxBytes: bytes, paths: [] }, never))?.archive).toHaveLength(bytes);
    expect((await collect(runtime, { maxBytes: bytes - 1, paths: [] }, never))?.archive).toBeNull();
    await runtime.stop();
  });

  it('stops when the signal aborts and leaves no process, however long the tree takes', async () => {
    const seconds = uniqueSeconds();
    const runtime = await withTar(`case "$1" in --version) echo GNU ;; *) sleep ${seconds} ;; esac`, 'echo a >"$A/a"');
    const controller = new AbortController();
    const reason = new Error('too late');
    const packing = expect(collect(runtime, { maxBytes: MIB, paths: [] }, controller.signal)).rejects.toBe(reason);
    await expect.poll(() => processesMentioning(seconds), { timeout: 90_000, interval: 20 }).not.toEqual([]);
    controller.abort(reason);
    await packing;
    expect(await processesMentioning(seconds)).toEqual([]);
    await runtime.stop();
  });

  it('works with a tar that has none of the options of GNU tar', async () => {
    const plain = 'case "$*" in *--*) echo "no such option" >&2; exit 1 ;; esac; exec /usr/bin/tar "$@"';
    const runtime = await withTar(plain, 'echo a >"$A/a"; ln -s a "$A/l"; mkdir out; echo o >out/o');
    const collected = await collect(runtime, { maxBytes: MIB, paths: ['out'] }, never);
    expect(collected?.omitted).toBeNull();
    const names = ['- artifacts/./a', 'l artifacts/./l -> a', '- paths/work/out/o'];
    expect(listing(collected?.archive)).toEqual(expect.arrayContaining(names));
    await runtime.stop();
  });

  it.each([
    ['exits with an unknown code', 'echo broken >&2; exit 3', 'tar ended with exit code 3: broken'],
    ['fails before it packs', 'echo broken >&2; exit 2', 'tar ended with exit code 2: broken'],
    ['is killed halfway', 'echo content; kill -9 $$', 'tar ended with exit code 137'],
  ])('omits the archive when tar %s', async (_, tar, why) => {
    const runtime = await withTar(`case "$1" in --version) echo GNU ;; *) ${tar} ;; esac`, 'echo a >"$A/a"');
    const collected = await collect(runtime, { maxBytes: MIB, paths: [] }, never);
    expect(collected).toEqual({ archive: null, omitted: expect.stringContaining(why) });
    await runtime.stop();
  });

  it('reports the files that tar could not read', async () => {
    const complain = 'cat >/dev/null; echo content; echo "a: Cannot open" >&2; exit 2';
    const runtime = await withTar(`case "$1" in --version) echo GNU ;; *) ${complain} ;; esac`, 'echo a >"$A/a"');
    const collected = await collect(runtime, { maxBytes: MIB, paths: [] }, never);
    expect(collected?.archive).not.toBeNull();
    expect(collected?.omitted).toBe('a: Cannot open');
    await runtime.stop();
  });

  it('omits output of the sandbox that is not an archive', async () => {
    const runtime = await withTar(
      ':',
      'echo a >"$A/a"; printf "#!/bin/sh\\necho nothing" >"$BIN/gzip"; chmod 755 "$BIN/gzip"',
    );
    const collected = await collect(runtime, { maxBytes: MIB, paths: [] }, never);
    expect(collected).toEqual({ archive: null, omitted: 'the sandbox packed something that is not an archive' });
    await runtime.stop();
  });

  it('reads only the first lines of an output that the agent forged', async () => {
    const runtime = await after('echo a >"$A/a"');
    const forged = 'noise 0\n'.repeat(100_000);
    const exec: Runtime['exec'] = async (request, signal) => ({
      ...(await runtime.exec(request, signal)),
      stdout: `${forged}head 0\nbytes 1\narchive /etc/hostname\n`,
    });
    const collected = await collect({ ...forwarding(runtime), exec }, { maxBytes: MIB, paths: [] }, never);
    expect(collected).toEqual({ archive: null, omitted: expect.stringContaining('packing ended with exit code 0') });
    await runtime.stop();
  });

  bubblewrap('reports a sandbox whose storage is full', async () => {
    const fill = 'echo a >"$A/a"; head -c 2000000 /dev/urandom >"$A/b"; cat /dev/zero >/tmp/full || true';
    const runtime = await after(fill, { storage_mb: 4 });
    const collected = await collect(runtime, { maxBytes: 4 * MIB, paths: [] }, never);
    expect(collected).toEqual({
      archive: null,
      omitted: expect.stringMatching(/^the archive could not be written: .*No space left on device/),
    });
    await runtime.stop();
  });

  local('does not follow a link in place of the artifacts folder', async () => {
    const runtime = await after('echo l >"$L/l"; rm -rf "$A"; ln -s / "$A"');
    const collected = await collect(runtime, { maxBytes: MIB, paths: [] }, never);
    expect(collected?.omitted).toBeNull();
    expect(listing(collected?.archive)).toEqual(['- logs/l']);
    await runtime.stop();
  });
}
