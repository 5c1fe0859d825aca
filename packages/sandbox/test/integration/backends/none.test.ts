import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Runtime } from '../../../src/api/runtime.ts';
import { never, Workbench } from '../../backends/workbench.ts';

describe('the none runtime', () => {
  let bench: Workbench;
  let runtime: Runtime;
  beforeAll(async () => {
    bench = await Workbench.open();
    const proxy = { socketPath: '/no/proxy', tcpOrigin: 'http://127.0.0.1:4242' };
    runtime = await bench.start('none', {}, { proxy });
  });
  afterAll(async () => {
    await runtime?.stop();
    await bench?.close();
  });

  it('works on every host', async () => {
    expect(await bench.provider('none').probe()).toBeNull();
  });

  it('reaches the session’s proxy and is not isolated', () => {
    expect(runtime).toMatchObject({ proxyOrigin: 'http://127.0.0.1:4242', isolation: 'none' });
  });

  it.each([
    ['commands', () => runtime.exec({ command: 'true' }, never)],
    ['files', () => runtime.writeFiles([{ path: 'a', content: '' }], never)],
    ['files', () => runtime.uploadDir('/tmp', 'a', never)],
    ['tools', () => runtime.openTools(never)],
    ['snapshots', () => runtime.snapshot(never)],
  ])('refuses %s', async (what, action) => {
    await expect(action()).rejects.toMatchObject({
      code: 'unsupported',
      message: `runtime.backend: none has no ${what}; choose a back end that runs commands`,
    });
  });

  it('has nothing to read and nothing to prepare', async () => {
    expect(await runtime.readFile('a', 10, never)).toBeNull();
    expect(await runtime.writeFiles([], never)).toBeUndefined();
  });

  it('refuses an image', async () => {
    await expect(bench.start('none', { image: '/' })).rejects.toMatchObject({ code: 'unsupported' });
  });
});
