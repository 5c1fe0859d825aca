import { PassThrough } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { DevTools, type DevToolsEvent } from '../../../src/box/browser/devtools.ts';

/** A connection whose other end is the test. */
function connected() {
  const [input, output] = [new PassThrough(), new PassThrough()];
  const events: DevToolsEvent[] = [];
  let ends = 0;
  const devtools = new DevTools(
    input,
    output,
    (event) => events.push(event),
    () => ends++,
  );
  const say = (text: string) => output.write(text);
  return { devtools, input, output, events, say, ends: () => ends };
}

describe('a connection to a browser', () => {
  it('matches replies to commands, and reads messages that arrive in parts', async () => {
    const { devtools, input, events, say } = connected();
    const first = devtools.send('A', { x: 1 }, null, 60_000);
    const second = devtools.send('B', {}, 's', 60_000);
    expect(String(input.read())).toBe(
      '{"id":1,"method":"A","params":{"x":1}}\0{"id":2,"method":"B","params":{},"sessionId":"s"}\0',
    );
    say('{"id":2,"error":{"message":"no such"}}\0{"method":"E","params":{"y":2},"sess');
    say('ionId":"s"}\0{"id":1,"result":{"z":3}}\0');
    await expect(second).rejects.toMatchObject({ reason: 'refused', message: 'no such' });
    expect(await first).toEqual({ z: 3 });
    expect(events).toEqual([{ method: 'E', params: { y: 2 }, sessionId: 's' }]);
  });

  it('rejects commands that get no reply in time, or whose tab or browser has ended', async () => {
    const { devtools, output, ends } = connected();
    await expect(devtools.send('A', {}, null, 1)).rejects.toMatchObject({ reason: 'late' });
    const lost = devtools.send('A', {}, 's', 60_000);
    devtools.endSession('s', 'the page crashed');
    await expect(lost).rejects.toMatchObject({ reason: 'refused', message: 'the page crashed' });
    const open = devtools.send('A', {}, null, 60_000);
    output.destroy();
    await expect(open).rejects.toMatchObject({ reason: 'ended' });
    await expect(devtools.send('A', {}, null, 1)).rejects.toMatchObject({ reason: 'ended' });
    expect(ends()).toBe(1);
  });

  it('ends when the browser sends something that is no message', async () => {
    const { devtools, say } = connected();
    const open = devtools.send('A', {}, null, 60_000);
    say('no JSON\0');
    await expect(open).rejects.toMatchObject({ reason: 'ended' });
  });
});
