import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { VirtualClock } from '@floe-rl/core';
import { extract } from 'tar-stream';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ContainerEngine } from '../../../../src/backends/container/engine-api.ts';
import { buildEngineImage, type ImageBuild, imageName } from '../../../../src/backends/container/image-build.ts';
import { never } from '../../../backends/workbench.ts';

let dir: string;
let server: Server;
let engine: ContainerEngine;
/** Requests for a build that the engine received, with the entries of their archives. */
let builds: { url: string; entries: Record<string, string> }[];
/** Output of the next build; `null` for an engine that never replies. */
let output: readonly object[] | null;
let status: number;
const images = new Set<string>();

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), 'floe-build-'));
  builds = [];
  output = [{ stream: 'Step 1\n' }];
  status = 200;
  images.clear();
  server = createServer(async (request, reply) => {
    const url = decodeURIComponent(request.url ?? '');
    const image = /\/images\/(.+)\/json/.exec(url)?.[1];
    if (image !== undefined) {
      reply.statusCode = images.has(image) ? 200 : 404;
      return reply.end('{"Id": "sha256:1"}');
    }
    const entries: Record<string, string> = {};
    const archive = extract();
    request.pipe(archive);
    for await (const entry of archive) {
      const { name, type, mode = 0, linkname = '' } = entry.header;
      const text = (await buffer(entry)).toString();
      entries[name] = `${type} ${mode.toString(8)} ${type === 'symlink' ? linkname : text}`;
    }
    builds.push({ url, entries });
    if (output === null) return;
    reply.statusCode = status;
    reply.end(output.map((line) => `${JSON.stringify(line)}\n`).join(''));
  });
  const socket = join(dir, 'engine.sock');
  await new Promise<void>((resolve) => server.listen(socket, resolve));
  engine = new ContainerEngine(socket);
});
afterEach(async () => {
  await engine.close();
  await new Promise((resolve) => {
    server.close(resolve);
    server.closeAllConnections();
  });
  rmSync(dir, { recursive: true, force: true });
});

/** Writes a build context, and returns a build of it. */
function contextOf(files: Readonly<Record<string, string>>, name = 'context'): ImageBuild {
  const context = join(dir, name);
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(context, path)), { recursive: true, mode: 0o755 });
    writeFileSync(join(context, path), content, { mode: 0o644 });
  }
  return { context, dockerfile: 'Dockerfile', name: 'floe-test', limitSeconds: 60 };
}

const FILES = { Dockerfile: 'FROM base\n', 'src/main.c': 'int main;' };

describe('building an image', () => {
  it('sends the context to the engine and returns a name with its hash', async () => {
    const build = contextOf(FILES);
    chmodSync(join(build.context, 'src/main.c'), 0o755);
    symlinkSync('src', join(build.context, 'link'));
    writeFileSync(join(build.context, 'empty'), '', { mode: 0o644 });
    const reference = await buildEngineImage(engine, { ...build, network: 'none' }, never);
    expect(reference).toMatch(/^floe-test:[0-9a-f]{16}$/);
    const { url, entries } = builds[0] ?? { url: '', entries: {} };
    expect(Object.fromEntries(new URL(url, 'http://x').searchParams)).toMatchObject({
      t: reference,
      dockerfile: 'Dockerfile',
      networkmode: 'none',
    });
    expect(entries).toEqual({
      Dockerfile: 'file 644 FROM base\n',
      empty: 'file 644 ',
      link: expect.stringMatching(/^symlink \d+ src$/),
      src: 'directory 755 ',
      'src/main.c': 'file 755 int main;',
    });
  });

  it('leaves out what .dockerignore names, but not the Dockerfile', async () => {
    await buildEngineImage(
      engine,
      contextOf({ ...FILES, 'secret/key': 'k', '.dockerignore': 'secret\nDockerfile\n' }),
      never,
    );
    expect(Object.keys(builds[0]?.entries ?? {}).sort()).toEqual(['.dockerignore', 'Dockerfile', 'src', 'src/main.c']);
  });

  it('is skipped when the engine has an image of the same context', async () => {
    const build = contextOf(FILES);
    const reference = await buildEngineImage(engine, build, never);
    images.add(reference);
    expect(await buildEngineImage(engine, build, never)).toBe(reference);
    expect(builds).toHaveLength(1);
  });

  it('returns another name when a file, a mode, or the name of the Dockerfile changes', async () => {
    const same = await buildEngineImage(engine, contextOf(FILES), never);
    const other = contextOf({ ...FILES, 'src/main.c': 'int moon;' }, 'content');
    const mode = contextOf(FILES, 'mode');
    chmodSync(join(mode.context, 'src/main.c'), 0o755);
    const file = contextOf({ ...FILES, Other: 'FROM base\n' }, 'file');
    const names = [same, await buildEngineImage(engine, other, never), await buildEngineImage(engine, mode, never)];
    names.push(
      await buildEngineImage(engine, file, never),
      await buildEngineImage(engine, { ...file, dockerfile: 'Other' }, never),
    );
    expect(new Set(names).size).toBe(5);
    expect(await buildEngineImage(engine, contextOf(FILES, 'copy'), never)).toBe(same);
  });

  it('fails with the end of its output', async () => {
    output = [
      ...Array.from({ length: 40 }, (_, line) => ({ stream: `line ${line}\n` })),
      { errorDetail: {}, error: 'make returned 2' },
    ];
    const failed = await buildEngineImage(engine, contextOf(FILES), never).catch((error: unknown) => error);
    expect(failed).toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('make returned 2\nline 20\n'),
    });
    expect(failed).toMatchObject({ message: expect.stringMatching(/line 39$/) });
  });

  it('fails with the reason of an engine that refuses it', async () => {
    status = 400;
    output = [{ message: 'dockerfile parse error line 1' }];
    await expect(buildEngineImage(engine, contextOf(FILES), never)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('dockerfile parse error line 1'),
    });
  });

  it('fails when it takes longer than its time limit', async () => {
    output = null;
    const clock = new VirtualClock();
    const building = buildEngineImage(engine, { ...contextOf(FILES), clock }, never).catch((error: unknown) => error);
    await expect.poll(() => builds.length).toBe(1);
    clock.advance(60_000);
    expect(await building).toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('longer than 60 s'),
    });
  });

  it('stops when its signal aborts', async () => {
    output = null;
    const stop = new AbortController();
    const building = buildEngineImage(engine, contextOf(FILES), stop.signal).catch((error: unknown) => error);
    await expect.poll(() => builds.length).toBe(1);
    stop.abort(new Error('stopped'));
    expect(await building).toMatchObject({ message: 'stopped' });
  });
});

describe('the name of an image', () => {
  it.each([
    ['Floe/Git Repair', 'floe-harbor-floe-git-repair'],
    ['a'.repeat(200), `floe-harbor-${'a'.repeat(88)}`],
    ['---', 'floe-harbor-image'],
  ])('of %j has only characters that engines accept', (name, expected) => {
    expect(imageName('floe-harbor', name)).toBe(expected);
  });
});
