import { describe, expect, it } from 'vitest';
import { Thread } from '../../src/channel/thread.ts';
import { FloeError } from '../../src/errors.ts';

type Echo = { echo(text: string): string };

/** Starts a thread with the source text of its program. */
function started(source: string): Thread<Echo> {
  const program = `const { parentPort } = require('node:worker_threads');
    parentPort.on('message', ({ id, argument }) => { ${source} });`;
  return new Thread(program, (cause) => new FloeError('internal', `ended: ${cause ?? 'no cause'}`), { eval: true });
}

describe('a thread', () => {
  it('answers calls until it is closed', async () => {
    const thread = started(`parentPort.postMessage({ type: 'result', id, value: argument });`);
    expect(await thread.call('echo', 'hello')).toBe('hello');
    await thread.close();
    await thread.close();
    expect(thread.hasEnded).toBe(true);
    await expect(thread.call('echo', 'hello')).rejects.toThrow('ended: no cause');
  });

  it('rejects its calls with the error that ended it', async () => {
    const thread = started(`throw new Error('broken');`);
    await expect(thread.call('echo', 'hello')).rejects.toMatchObject({
      code: 'internal',
      message: 'ended: broken',
    });
    expect(thread.hasEnded).toBe(true);
  });

  it('rejects its calls when it exits without an answer', async () => {
    await expect(started('process.exit(0);').call('echo', 'hello')).rejects.toThrow('ended: no cause');
  });

  it('lets the process continue after messages that are no answers', async () => {
    const thread = started(`parentPort.postMessage(null); parentPort.postMessage({ type: 'result', id, value: 1 });`);
    expect(await thread.call('echo', 'hello')).toBe(1);
    await thread.close();
  });
});
