import { onAbort } from '@floe-rl/core';
import { beforeEach, describe, expect, it } from 'vitest';
import { type Host, Network, RELIABLE_NETWORK } from '../../../verify/control-plane/network.ts';
import { SeededRandom } from '../../../verify/control-plane/random.ts';
import { SimProcess } from '../../../verify/control-plane/sim-process.ts';
import { Timeline } from '../../../verify/control-plane/timeline.ts';

let timeline: Timeline;
let network: Network;
let caller: SimProcess;
let server: Host;
let handledCount: number;
beforeEach(() => {
  timeline = new Timeline();
  network = new Network(timeline, new SeededRandom(7));
  caller = new SimProcess('caller', timeline);
  server = { name: 'server', process: new SimProcess('server', timeline) };
  handledCount = 0;
});

async function call(handle = async (_: AbortSignal): Promise<string> => 'answer'): Promise<string> {
  let outcome = 'nothing';
  const handleCall = (disconnected: AbortSignal): Promise<string> => {
    handledCount++;
    return handle(disconnected);
  };
  network.call(caller, { to: server, name: 'call', handle: handleCall }).then(
    (value) => {
      outcome = value;
    },
    (thrown: { code: string }) => {
      outcome = thrown.code;
    },
  );
  await timeline.run(() => false, timeline.nowMs + 20_000);
  return outcome;
}

describe('a call over the simulated network', () => {
  it('resolves to the reply', async () => {
    expect(await call()).toBe('answer');
  });

  it.each([
    ['a dropped request', { drop: 1 }, 0],
    ['a lost reply', { loseReply: 1 }, 1],
  ])('rejects as unreachable after %s', async (_, fault, times) => {
    network.faults = { ...RELIABLE_NETWORK, ...fault };
    expect(await call()).toBe('peer_unreachable');
    expect(handledCount).toBe(times);
  });

  it('is handled twice when the network duplicates the request, and resolves once', async () => {
    network.faults = { ...RELIABLE_NETWORK, duplicate: 1 };
    expect(await call()).toBe('answer');
    expect(handledCount).toBe(2);
  });

  it('has its effect although the network drops all replies', async () => {
    network.partition('server', 'caller', true);
    expect(await call()).toBe('peer_unreachable');
    expect(handledCount).toBe(1);
    network.heal();
    expect(await call()).toBe('answer');
  });

  it('rejects when the server is killed, and notifies the server when the caller is killed', async () => {
    timeline.after(10, () => server.process?.kill());
    expect(await call(() => new Promise(() => {}))).toBe('peer_unreachable');
    server.process = new SimProcess('server', timeline);
    let serverNotified = false;
    timeline.after(10, () => caller.kill());
    const waiting = (disconnected: AbortSignal): Promise<string> =>
      new Promise(() => {
        onAbort(disconnected, () => {
          serverNotified = true;
        });
      });
    expect(await call(waiting)).toBe('nothing');
    expect(serverNotified).toBe(true);
  });
});
